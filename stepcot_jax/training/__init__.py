"""The only loop, with checkpoints, devices, processes, optimizers and logs; it names no network and no loss.

What it trains stands in `systems`. Read `system`, then `loop`.
"""
