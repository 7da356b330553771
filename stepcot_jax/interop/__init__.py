"""Other frameworks' checkpoints."""
