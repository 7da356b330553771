"""`stepcot conformance`: this code against numbers of the authors' code."""
