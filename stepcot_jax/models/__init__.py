"""Networks from features to logits: teacher, student, baseline, decoder, Qwen2.5-VL; no files, no settings.

`systems` trains them with the losses of `losses`. Read `teacher_reference`, then `teacher`.
"""

from stepcot_jax.models import teacher_reference

__all__ = ["teacher_reference"]
