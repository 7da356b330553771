"""Where a network looks: maps over the image for each step, attention between the steps, and whether either is true."""
