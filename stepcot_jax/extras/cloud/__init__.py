"""Folders on gs://, brought to a folder of this machine and sent back; any store of fsspec for `stepcot sync`."""
