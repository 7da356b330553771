"""Frozen features: encode every distinct image and prompt once, keep them in a store, train from the store."""
