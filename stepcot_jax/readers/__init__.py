"""Compare the models with human readers."""
