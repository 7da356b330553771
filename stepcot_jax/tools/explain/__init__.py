"""`stepcot explain`: maps of what an answer depends on, drawn and scored against boxes."""
