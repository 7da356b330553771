"""Counting rules of public suites by name: what each makes of a reply, without its judge. `rule_table` has the list.

Each is written from a description of its behaviour and held against verdicts of the originals. Read `verdicts`.
"""
