"""Extras, each optional and registered by an entry point of the group `stepcot_jax.extras`. No extra imports another.

The library and the tools never import this room; see `host.extras`. Read `loggers` first, the smallest.
"""
