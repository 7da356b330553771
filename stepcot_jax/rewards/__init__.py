"""Verifiable rewards: pure functions of a reply and its record, on the host."""
