"""Compare this machine with golden numbers of the authors' code."""
