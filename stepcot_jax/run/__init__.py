"""One run in one workdir: inputs, training, results."""
