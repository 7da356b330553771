"""The public names, for type checkers; see `__init__.py`."""

from stepcot_jax import losses as losses
from stepcot_jax import rewards as rewards
from stepcot_jax.annotate.rules.annotator import annotate_report as annotate_report
from stepcot_jax.box import Box as Box
from stepcot_jax.chain import Chain as Chain
from stepcot_jax.chain import Step as Step
from stepcot_jax.data.dataset import Dataset as Dataset
from stepcot_jax.data.phantom.phantom import draw_case as draw_phantom
from stepcot_jax.data.sources.csv_table import read_chain as load_chain
from stepcot_jax.encoders.resnet import make_resnet as make_resnet
from stepcot_jax.evaluation.chains import evaluate as evaluate
from stepcot_jax.evaluation.predictions import Predictions as Predictions
from stepcot_jax.evaluation.predictions import collect as collect
from stepcot_jax.export.folder import export_model as export_model
from stepcot_jax.losses.step_cot import Objective as Objective
from stepcot_jax.models.student import Baseline as Baseline
from stepcot_jax.models.student import Student as Student
from stepcot_jax.models.teacher import Teacher as Teacher
from stepcot_jax.reading.explain import explain_image as explain_image
from stepcot_jax.reading.loading import load as load
from stepcot_jax.record import Record as Record
from stepcot_jax.run.fit import fit as fit
from stepcot_jax.run.inputs import load_cases as load_dataset
from stepcot_jax.run.records import Records as Records
from stepcot_jax.run.records import load_records as load_records
from stepcot_jax.run.records import make_dataset as make_dataset
from stepcot_jax.run.settings import load_settings as load_settings
from stepcot_jax.run.training_run import Run as Run
from stepcot_jax.systems.baseline import BaselineSystem as BaselineSystem
from stepcot_jax.systems.options import CurriculumOptions as Curriculum
from stepcot_jax.systems.options import SelfCheckOptions as SelfCheck
from stepcot_jax.systems.recipes import GRPO as GRPO
from stepcot_jax.systems.recipes import SFT as SFT
from stepcot_jax.systems.recipes import Policy as Policy
from stepcot_jax.systems.step_cot import StepCoT as StepCoT
from stepcot_jax.training.state import TrainState as TrainState
from stepcot_jax.training.system import Phase as Phase
from stepcot_jax.training.system import Stream as Stream
from stepcot_jax.training.system import System as System

__version__: str
__all__ = [
    "GRPO",
    "SFT",
    "Baseline",
    "BaselineSystem",
    "Box",
    "Chain",
    "Curriculum",
    "Dataset",
    "Objective",
    "Phase",
    "Policy",
    "Predictions",
    "Record",
    "Records",
    "Run",
    "SelfCheck",
    "Step",
    "StepCoT",
    "Stream",
    "Student",
    "System",
    "Teacher",
    "TrainState",
    "annotate_report",
    "collect",
    "draw_phantom",
    "evaluate",
    "explain_image",
    "export_model",
    "fit",
    "load",
    "load_chain",
    "load_dataset",
    "load_records",
    "load_settings",
    "losses",
    "make_dataset",
    "make_resnet",
    "rewards",
]
