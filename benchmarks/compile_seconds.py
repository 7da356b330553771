"""CPU seconds that a run spends in XLA's compiler: `python -m benchmarks.compile_seconds --config=... --workdir=...`.

Flags are those of `stepcot_jax.main`. The last line of the output has the seconds of each program, largest first.
CPU seconds of the whole process count, from the end of a program's lowering to the end of its compilation.
"""

import collections
import json
import os
import sys
import time
from typing import Any

from absl import app

_LOWERED, _COMPILED = (f"/jax/core/compile/{name}_duration" for name in ("jaxpr_to_mlir_module", "backend_compile"))


def main() -> None:
    """Run `stepcot_jax.main`, then print the seconds."""
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    import jax.monitoring

    from stepcot_jax.tools.options import define_flags, parse
    from stepcot_jax.tools.train import main as train

    programs, started = collections.defaultdict[str, list[float]](list), [0.0]

    def note(event: str, _: float, **about: Any) -> None:
        if event == _LOWERED:
            started[0] = time.process_time()
        elif event == _COMPILED:
            programs[str(about.get("fun_name"))].append(round(time.process_time() - started[0], 2))

    jax.monitoring.register_event_duration_secs_listener(note)
    define_flags()
    try:
        app.run(train, flags_parser=parse)
    finally:
        ordered = sorted(programs.items(), key=lambda entry: -sum(entry[1]))
        total = sum(sum(seconds) for seconds in programs.values())
        number = sum(map(len, programs.values()))
        print(json.dumps({"seconds": round(total, 1), "programs": number, **dict(ordered)}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
