"""A finished run as one web page."""
