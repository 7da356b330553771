"""A page to drop a radiograph on, which is read step by step and can be corrected."""
