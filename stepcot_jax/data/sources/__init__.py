"""Readers of the collections that cases come from, each as it is released, and of a hospital's own table."""
