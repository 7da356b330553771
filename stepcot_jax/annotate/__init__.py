"""Reports to chains and boxes to questions: annotators by rules or language models, their checks and agreement.

`data` reads sources that already have answers; a judge as reward is `llm.judge`. Read `runner` first.
"""
