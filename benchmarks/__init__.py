"""Speed and memory of this machine; see `benchmarks.run`."""
