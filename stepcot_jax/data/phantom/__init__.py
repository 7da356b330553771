"""Chest phantoms: drawn radiographs with known answers."""
