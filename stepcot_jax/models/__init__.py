"""Networks from features to logits: teacher, student, baseline, decoder, Qwen2.5-VL; no files, no settings.

What trains them stands in `systems`, their losses in `losses`. Read `teacher_reference`, then `teacher`.
"""
