"""What answers in words: tokens, sampling, log-probabilities, Qwen2.5-VL's inputs, weights and sharding.

Networks stand in `models`, updates in `systems`. Read `policy`, then `sampling`.
"""
