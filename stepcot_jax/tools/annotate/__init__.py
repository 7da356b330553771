"""`stepcot annotate`: reports to chains, boxes to questions, and their review."""
