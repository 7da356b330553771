"""Files, locks, errors, terminal and memory of the machine; no medicine."""
