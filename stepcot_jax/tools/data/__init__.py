"""`stepcot data`: check, count, draw, shard and fetch folders of cases and questions."""
