"""Files to records, splits, images and batches; phantoms, which need no files.

Features that an encoder computes once are in `features`, the meaning of texts in `reasoning`. Read `dataset` first.
"""
