"""`stepcot readers`: forms for people who read, and their answers beside the networks'."""
