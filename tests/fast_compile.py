"""XLA flags for programs that run for milliseconds: they cut compile time to about a third."""

import importlib.metadata
import os

FLAGS = ("--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true")
if importlib.metadata.version("jaxlib").startswith("0.10."):
    # Later ones may not know these, and end the process. Programs this small take longer in parts than in one.
    FLAGS = (*FLAGS, "--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1")


def set_flags(*more: str) -> None:
    """Add FLAGS and `more` to XLA_FLAGS, for this process and those it starts; before JAX makes its devices."""
    given = os.environ.get("XLA_FLAGS", "").split()
    os.environ["XLA_FLAGS"] = " ".join([*given, *(flag for flag in (*more, *FLAGS) if flag not in given)])
