"""Convert parameters between the authors' PyTorch checkpoints and ours."""
