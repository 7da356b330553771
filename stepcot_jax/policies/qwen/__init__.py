"""Qwen2.5 and Qwen2.5-VL: config, weights, images and prompts around the network of `models.qwen_vl`."""
