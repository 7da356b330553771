"""`stepcot data`: check, count, draw and fetch folders of cases and questions."""
