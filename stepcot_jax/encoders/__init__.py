"""Image and text encoders, and the weights of published ones.

What they computed is stored by `features`; networks on top of features stand in `models`. Read `load` first.
"""
