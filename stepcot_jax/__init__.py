"""Step-CoT in JAX: a seven-step reading of chest radiographs, taught by a graph and distilled into a chain.

    import stepcot_jax as sc

Every name of `__all__` is public and documented in docs/api.md with an example; everything else may move. Names are
imported when they are first used, so that `import stepcot_jax` loads neither jax nor any other module of the package.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "Baseline": "models.student",
    "BaselineSystem": "systems.baseline",
    "Box": "box",
    "Chain": "chain",
    "Curriculum": "systems.options:CurriculumOptions",
    "DIALECTS": "reasoning.dialects",
    "Dataset": "data.dataset",
    "GRPO": "systems.recipes",
    "ImageReader": "reading.image_reader",
    "Interval": "host.ranges",
    "LLMAnnotator": "annotate.llm.client:Endpoint",
    "Objective": "losses.step_cot",
    "Phase": "training.system",
    "Policy": "systems.recipes",
    "PolicyGradient": "losses.policy_gradient",
    "PolicyReader": "reading.policy_reader",
    "Predictions": "evaluation.predictions",
    "Record": "record",
    "Records": "record",
    "Reply": "reasoning.replies",
    "ReplyScores": "tools.evaluate_replies.scored_replies",
    "RulesAnnotator": "annotate.annotating",
    "Run": "run.training_run",
    "SFT": "systems.recipes",
    "SelfCheck": "systems.options:SelfCheckOptions",
    "Step": "chain",
    "StepCoT": "systems.step_cot",
    "Stream": "training.system",
    "Student": "models.student",
    "System": "training.system",
    "Teacher": "models.teacher",
    "TrainState": "training.state",
    "advantages": "losses.policy_gradient",
    "annotate_report": "annotate.rules.annotator",
    "annotate_reports": "annotate.annotating",
    "apply_gradients": "training.state",
    "bootstrap": "evaluation.statistics",
    "collect": "evaluation.predictions",
    "compare_accuracy": "evaluation.statistics",
    "describe_focus": "reading.explain:describe_change",
    "draw_phantom": "data.phantom.phantom:draw_case",
    "evaluate": "evaluation.chains",
    "explain_image": "reading.image_reader",
    "export_model": "export.folder",
    "fit": "run.fit",
    "holm": "evaluation.statistics:correct",
    "load": "reading.image_reader",
    "load_chain": "data.sources.csv_table:read_chain",
    "load_dataset": "run.inputs:load_cases",
    "load_records": "data.sources.layouts",
    "load_settings": "run.settings",
    "losses": "losses",
    "make_dataset": "run.fit",
    "make_records": "annotate.annotating",
    "make_resnet": "encoders.resnet",
    "map_spread": "reading.explain:spread",
    "models": "models",
    "policy_gradient_loss": "losses.policy_gradient",
    "read_reply": "reasoning.dialects",
    "rewards": "rewards",
    "score_replies": "tools.evaluate_replies.scored_replies",
    "token_log_probs": "losses.sequence",
    "write_question": "reasoning.dialects",
    "write_reply": "reasoning.dialects",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home, _, attribute = _HOMES[name].partition(":")
    module = importlib.import_module(f"{__name__}.{home}")
    value = module if home == name else getattr(module, attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
