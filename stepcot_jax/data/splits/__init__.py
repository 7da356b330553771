"""Train, validation and test splits by patient."""
