"""The settings of a run: sections, checks and flags."""
