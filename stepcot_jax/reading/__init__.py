"""A trained run or export that reads radiographs: load, read, correct, ask, answer, explain; and large models.

How a network computes stands in `models` and `systems`, how a run trains in `run`. Read `image_reader` first.
"""
