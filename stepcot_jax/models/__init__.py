"""Networks from features to logits: teacher, student, baseline, decoder, Qwen2.5-VL; no files, no settings.

`systems` trains them with the losses of `losses`. Read `teacher_reference`, then `teacher`.
"""

import importlib
from typing import Any

__all__ = ["teacher_reference"]


def __getattr__(name: str) -> Any:
    """Import the paper's teacher at its first use; no network needs it."""
    if name != "teacher_reference":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")
