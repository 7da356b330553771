"""What is trained: Step-CoT, the baseline, fine-tuning, GRPO, self-check, curriculum; updates of one device.

The loop that calls them stands in `training`, their data in `data`. Read `training.system`, then `step_cot`.
"""
