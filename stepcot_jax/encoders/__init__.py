"""Image and text encoders, and the weights of published ones; `features` stores their output. Read `load` first."""
