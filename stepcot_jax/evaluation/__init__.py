"""Metrics and the evaluator, which takes a function and knows no trainer."""
