"""The settings of a run: sections, checks, configs by name.

What a setting means is the room's that takes its value; `run.build` hands values down. Read `sections` first.
"""
