"""Image and text encoders, and the weights of published ones.

`features` stores their output; `models` holds the networks on top of features. Read `load` first.
"""
