"""Train steps, optimizers, checkpoints, logs and the only loop."""
