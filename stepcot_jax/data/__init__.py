"""Files to records, splits, images and batches; phantoms, which need no files.

What an encoder computes once stands in `features`, what text means in `reasoning`. Read `dataset`, then `loading`.
"""
