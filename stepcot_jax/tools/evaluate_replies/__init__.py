"""`stepcot evaluate_replies`: scores of any model's replies."""
