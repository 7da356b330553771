"""`stepcot constrain`: language models that answer the steps, one constraint more at each level."""
