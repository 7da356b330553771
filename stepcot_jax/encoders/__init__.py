"""Image and text encoders, and their pretrained weights."""
