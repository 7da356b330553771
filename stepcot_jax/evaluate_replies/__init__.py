"""Score replies that any model of any framework wrote; imports neither jax nor flax."""
