"""Frozen features: encode every distinct image and prompt once, store them, train from the store."""
