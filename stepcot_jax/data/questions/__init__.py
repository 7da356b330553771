"""Grounded reasoning data: images with boxed findings, questions about them, and files of reasoning records."""
