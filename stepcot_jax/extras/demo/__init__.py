"""A page in the browser that reads radiographs; `stepcot demo`."""
