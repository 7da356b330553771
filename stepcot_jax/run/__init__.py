"""One run in one workdir: settings to values, training, results; the only room below `tools` that reads settings.

`systems` defines what is trained, `training` how; neither knows a workdir. Read `fit`, then `build`.
"""
