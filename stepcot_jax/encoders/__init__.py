"""Encoders: images and prompts to feature vectors."""
