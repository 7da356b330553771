"""The commands: one module or folder each, found by its name (`stepcot NAME`). No tool imports another.

Code that two commands need belongs to the library; `options` holds the options that several share. The program of a
folder is its `command.py`. Commands import within functions what takes seconds, so that `--help` is fast.
"""
