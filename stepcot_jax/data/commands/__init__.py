"""The commands of `python -m stepcot_jax.data`, one module each with an `add_command`."""
