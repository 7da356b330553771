"""Records, splits, images and the phantom: from files to cases."""
