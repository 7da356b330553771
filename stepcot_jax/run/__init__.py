"""One run in one workdir: settings to values, training, results; the only room below `tools` that reads settings.

A system (`systems`) is what is trained, the loop (`training`) how; neither knows a workdir. Read `fit`, then `build`.
"""
