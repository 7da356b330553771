"""`stepcot data`: check, count and draw folders of cases and questions."""
