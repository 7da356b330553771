"""`stepcot tables`: the paper's tables, made by training what they compare."""
