"""The commands: one module or folder each, found by its name (`stepcot NAME`). No tool imports another.

What two commands need is library; options that several share stand in `options`. A folder's program is `command.py`.
"""
