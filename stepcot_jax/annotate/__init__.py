"""Reports to chains and boxes to questions: annotators by rules or language models, their checks, how far they agree.

A source that already has answers stands in `data`, a reward by a judge takes `llm.judge`. Read `pipeline` first.
"""
