"""Teacher and student; they see features, never files or tokenizers."""
