"""The training loop, with checkpoints, devices, processes, optimizers and logs; it knows no network and no loss.

`systems` defines what it trains. Read `system`, then `loop`.
"""
