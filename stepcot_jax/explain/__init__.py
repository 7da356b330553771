"""Saliency maps for each step, attention between the steps, and scores of both against lesion boxes."""
