"""Frozen features: encode every distinct image once, store them, train from the store.

`encoders` holds the networks; `run.inputs` decides which features a run needs. Read `store` first.
"""
