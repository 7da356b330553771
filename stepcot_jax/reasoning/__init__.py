"""Dialects of prompts and replies: write records as text, and read replies back.

`rewards` scores replies; `data` makes questions. Read `replies`, then `dialects`.
"""
