"""jax.jit with few optimizations: the arrays of the suite are tiny, and compiling takes most of its time."""

import functools

import jax

quick_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
