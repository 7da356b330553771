"""Policies: what samples replies and scores them."""
