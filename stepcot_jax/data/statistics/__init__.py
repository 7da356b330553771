"""Counts of a dataset and their pictures."""
