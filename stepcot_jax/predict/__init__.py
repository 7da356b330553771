"""Trained networks that read radiographs."""
