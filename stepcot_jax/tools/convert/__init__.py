"""`stepcot convert`: the authors' checkpoints in and out."""
