"""Text of prompts and replies to records and back: the dialects, and what a reply says.

What a reply is worth stands in `rewards`; questions are made in `data`. Read `replies`, then `dialects`.
"""
