"""Losses of teacher and student; `masked` does all averaging."""
