"""Readers of the collections that cases come from, in their released formats, and of a hospital's table."""
