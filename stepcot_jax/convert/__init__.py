"""Checkpoints of other frameworks: names, layouts and conversion both ways."""
