"""A web page that reads a dropped radiograph step by step, with correctable answers."""
