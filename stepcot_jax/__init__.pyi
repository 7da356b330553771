"""The public names, for type checkers; see `__init__.py`."""

from stepcot_jax import losses as losses
from stepcot_jax import models as models
from stepcot_jax import rewards as rewards
from stepcot_jax.annotate.annotating import RulesAnnotator as RulesAnnotator
from stepcot_jax.annotate.annotating import annotate_reports as annotate_reports
from stepcot_jax.annotate.annotating import make_records as make_records
from stepcot_jax.annotate.llm.client import Endpoint as LLMAnnotator
from stepcot_jax.annotate.rules.annotator import annotate_report as annotate_report
from stepcot_jax.box import Box as Box
from stepcot_jax.chain import Chain as Chain
from stepcot_jax.chain import Step as Step
from stepcot_jax.data.dataset import Dataset as Dataset
from stepcot_jax.data.phantom.phantom import draw_case as draw_phantom
from stepcot_jax.data.sources.csv_table import read_chain as load_chain
from stepcot_jax.data.sources.layouts import load_records as load_records
from stepcot_jax.encoders.resnet import make_resnet as make_resnet
from stepcot_jax.evaluation.chains import evaluate as evaluate
from stepcot_jax.evaluation.predictions import Predictions as Predictions
from stepcot_jax.evaluation.predictions import collect as collect
from stepcot_jax.evaluation.statistics import bootstrap as bootstrap
from stepcot_jax.evaluation.statistics import compare_accuracy as compare_accuracy
from stepcot_jax.evaluation.statistics import correct as holm
from stepcot_jax.export.folder import export_model as export_model
from stepcot_jax.losses.policy_gradient import PolicyGradient as PolicyGradient
from stepcot_jax.losses.policy_gradient import advantages as advantages
from stepcot_jax.losses.policy_gradient import policy_gradient_loss as policy_gradient_loss
from stepcot_jax.losses.sequence import token_log_probs as token_log_probs
from stepcot_jax.losses.step_cot import Objective as Objective
from stepcot_jax.models.student import Baseline as Baseline
from stepcot_jax.models.student import Student as Student
from stepcot_jax.models.teacher import Teacher as Teacher
from stepcot_jax.pages.sheets import Interval as Interval
from stepcot_jax.reading.explain import describe_change as describe_focus
from stepcot_jax.reading.explain import spread as map_spread
from stepcot_jax.reading.image_reader import ImageReader as ImageReader
from stepcot_jax.reading.image_reader import explain_image as explain_image
from stepcot_jax.reading.image_reader import load as load
from stepcot_jax.reading.policy_reader import PolicyReader as PolicyReader
from stepcot_jax.reasoning.dialects import DIALECTS as DIALECTS
from stepcot_jax.reasoning.dialects import read_reply as read_reply
from stepcot_jax.reasoning.dialects import write_question as write_question
from stepcot_jax.reasoning.dialects import write_reply as write_reply
from stepcot_jax.reasoning.replies import Reply as Reply
from stepcot_jax.record import Record as Record
from stepcot_jax.record import Records as Records
from stepcot_jax.run.fit import fit as fit
from stepcot_jax.run.fit import make_dataset as make_dataset
from stepcot_jax.run.inputs import load_cases as load_dataset
from stepcot_jax.run.settings import load_settings as load_settings
from stepcot_jax.run.training_run import Run as Run
from stepcot_jax.systems.baseline import BaselineSystem as BaselineSystem
from stepcot_jax.systems.options import CurriculumOptions as Curriculum
from stepcot_jax.systems.options import SelfCheckOptions as SelfCheck
from stepcot_jax.systems.recipes import GRPO as GRPO
from stepcot_jax.systems.recipes import SFT as SFT
from stepcot_jax.systems.recipes import Policy as Policy
from stepcot_jax.systems.step_cot import StepCoT as StepCoT
from stepcot_jax.tools.evaluate_replies.scored_replies import ReplyScores as ReplyScores
from stepcot_jax.tools.evaluate_replies.scored_replies import score_replies as score_replies
from stepcot_jax.training.state import TrainState as TrainState
from stepcot_jax.training.state import apply_gradients as apply_gradients
from stepcot_jax.training.system import Phase as Phase
from stepcot_jax.training.system import Stream as Stream
from stepcot_jax.training.system import System as System

__version__: str
__all__ = [
    "DIALECTS",
    "GRPO",
    "SFT",
    "Baseline",
    "BaselineSystem",
    "Box",
    "Chain",
    "Curriculum",
    "Dataset",
    "ImageReader",
    "Interval",
    "LLMAnnotator",
    "Objective",
    "Phase",
    "Policy",
    "PolicyGradient",
    "PolicyReader",
    "Predictions",
    "Record",
    "Records",
    "Reply",
    "ReplyScores",
    "RulesAnnotator",
    "Run",
    "SelfCheck",
    "Step",
    "StepCoT",
    "Stream",
    "Student",
    "System",
    "Teacher",
    "TrainState",
    "advantages",
    "annotate_report",
    "annotate_reports",
    "apply_gradients",
    "bootstrap",
    "collect",
    "compare_accuracy",
    "describe_focus",
    "draw_phantom",
    "evaluate",
    "explain_image",
    "export_model",
    "fit",
    "holm",
    "load",
    "load_chain",
    "load_dataset",
    "load_records",
    "load_settings",
    "losses",
    "make_dataset",
    "make_records",
    "make_resnet",
    "map_spread",
    "models",
    "policy_gradient_loss",
    "read_reply",
    "rewards",
    "score_replies",
    "token_log_probs",
    "write_question",
    "write_reply",
]
