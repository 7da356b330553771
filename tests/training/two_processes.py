"""One of two test processes: a divided tree that the first gathers, and a joint update on its rows of the batch.

python two_processes.py PORT PROCESS TRANSFORM OUT
"""

import os
import pathlib
import socket
import subprocess
import sys

here = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(here), str(here.parent)]

from stepcot_jax.training.processes import any_process, gather_on_first, is_first, join_processes


def step(process, transform, out):
    import jax
    import numpy as np
    from training import parallel_step

    assert jax.process_count() == 2
    assert jax.device_count() == 8
    assert is_first() == (process == "0")
    assert any_process(process == "1")
    assert not any_process(False)
    gradients, metrics, _ = parallel_step.run(transform=transform, num_devices=8)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves((gradients, metrics))]
    np.savez(f"{out}.{process}.npz", *leaves)


def gather(process):
    import jax
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh((8,), ("data",))
    whole = np.arange(24, dtype=np.float32).reshape(8, 3)

    def place(spec):
        return jax.make_array_from_callback(whole.shape, NamedSharding(mesh, spec), lambda index: whole[index])

    tree = {"divided": place(PartitionSpec("data")), "same": place(PartitionSpec()), "own": np.float32(3)}
    found = gather_on_first(tree)
    if process == "1":
        assert found is None
        return
    np.testing.assert_array_equal(found["divided"], whole)
    np.testing.assert_array_equal(found["same"], whole)
    assert found["own"] == 3
    assert not any(isinstance(leaf, jax.Array) for leaf in found.values())


def run_both(script, *arguments, num_devices):
    """Run the module `script` in two processes, with so many devices each."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    flags = [flag for flag in os.environ["XLA_FLAGS"].split() if "device_count" not in flag]
    flags.append(f"--xla_force_host_platform_device_count={num_devices}")
    options = {"env": {**os.environ, "XLA_FLAGS": " ".join(flags)}, "stderr": subprocess.PIPE, "text": True}
    processes = [
        subprocess.Popen([sys.executable, script.__file__, *map(str, (port, index, *arguments))], **options)
        for index in range(2)
    ]
    outputs = [process.communicate(timeout=240)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs


if __name__ == "__main__":
    port, process, transform, out = sys.argv[1:]
    join_processes(coordinator=f"localhost:{port}", num_processes=2, process_id=int(process))
    gather(process)
    step(process, transform, out)
