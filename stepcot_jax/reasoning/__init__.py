"""Reasoning in text with boxes: records, the dialects that write them, and replies as they are read."""
