"""Frozen features: encode every distinct image and prompt once, store them, train from the store.

Networks that encode stand in `encoders`; which run needs what is decided in `run.inputs`. Read `store` first.
"""
