"""`stepcot report`: a finished run as one page."""
