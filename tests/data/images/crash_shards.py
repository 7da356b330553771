"""Shards a folder and is killed at the n-th of the steps that change the disk: python crash_shards.py ROOT OUT N."""

import os
import pathlib
import signal
import sys

from stepcot_jax.data.images import shards as shard_writing
from stepcot_jax.tools.data.command import main

root, out, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
left = [steps]


def count(function):
    def counted(*arguments, **options):
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)

    return counted


pathlib.Path.replace = count(pathlib.Path.replace)
pathlib.Path.unlink = count(pathlib.Path.unlink)
os.fsync = count(os.fsync)
shard_writing.decode_picture = count(shard_writing.decode_picture)
main(["shards", root, "--out", out, "--shard-megabytes", "0.01", "--num-threads", "1"])
print("done")
