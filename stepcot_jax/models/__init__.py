"""Teacher, student and baseline networks: features to logits."""
