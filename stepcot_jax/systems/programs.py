"""The compiled programs of a run: its state from a seed, and a training step for each phase."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax

from stepcot_jax.data.batches import batches_per_epoch
from stepcot_jax.features.inputs import Inputs
from stepcot_jax.host.process_memory import release_freed_memory
from stepcot_jax.settings.run_settings import Settings
from stepcot_jax.systems.baseline_updates import (
    init_baseline_params,
    make_baseline_optimizer,
    make_baseline_step,
    start_baseline_state,
)
from stepcot_jax.systems.gradients import Objective
from stepcot_jax.systems.updates import make_joint_step, make_teacher_step, start_state
from stepcot_jax.training.loop import Phase
from stepcot_jax.training.optimizers import make_optimizer
from stepcot_jax.training.parallel import Devices
from stepcot_jax.training.state import Networks, TrainState, init_params


@dataclasses.dataclass(frozen=True)
class Programs:
    """What a run compiles.

    Attributes:
      settings: of the run.
      networks: the modules.
      objective: how the losses are put together.
      inputs: data and encoders, for the shapes of a batch.
      devices: what runs the steps.
    """

    settings: Settings
    networks: Networks
    objective: Objective
    inputs: Inputs
    devices: Devices

    @functools.cached_property
    def optimizers(self) -> dict[str, Any]:
        """The optimizer of each network."""
        training = self.settings.training
        if self.settings.job == "baseline":
            return {"baseline": self._make_baseline_optimizer()}
        rates = {"teacher": training.teacher_learning_rate, "student": training.student_learning_rate}
        return {
            name: make_optimizer(
                learning_rate=rate,
                weight_decay=training.weight_decay,
                epsilon=training.adam_epsilon,
                clip_norm=training.clip_norm,
            )
            for name, rate in rates.items()
        }

    @functools.cached_property
    def state_shapes(self) -> TrainState:
        """Shapes, types and places of the state, to compile for and to restore to before there is one."""
        place = self.devices.whole
        shapes = jax.eval_shape(self._make_state)
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), shapes)

    def make_state(self) -> TrainState:
        """The state at the start of the run, a function of the seed."""
        state = jax.block_until_ready(jax.jit(self._make_state, out_shardings=self.devices.whole)())
        release_freed_memory()
        return state

    def compile_phases(self, *, epochs_done: int, say: Callable[[str], None]) -> list[Phase]:
        """The phases in order, their steps compiled unless the phase is over.

        Args:
          epochs_done: epochs that an earlier start of the run has finished.
          say: told before each compilation.
        """
        training = self.settings.training
        make_step = {"teacher": make_teacher_step, "joint": make_joint_step, "baseline": make_baseline_step}
        lengths = {"teacher": training.teacher_epochs, "joint": training.joint_epochs}
        if self.settings.job == "teacher":
            lengths = {"teacher": training.teacher_job_epochs}
        if self.settings.job == "baseline":
            lengths = {"baseline": self.settings.baseline.epochs}
        phases, last_epoch = [], 0
        for name, length in lengths.items():
            step: Any = None
            last_epoch += length
            if length and epochs_done < last_epoch:
                say(f"compiling the {name} step")
                step = self.devices.compile_step(
                    functools.partial(make_step[name], self.networks, self.objective, self.optimizers),
                    state=self.state_shapes,
                    batch=self._batch_shapes,
                    text_features=self.text_features,
                )
                release_freed_memory()
            phases.append(Phase(name, length, step))
        return phases

    @functools.cached_property
    def text_features(self) -> jax.Array | None:
        """The prompts' vectors [step, width] on every device; None without text."""
        features = self.inputs.text_features
        return None if features is None else self.devices.put_whole(features)

    @property
    def _batch_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        num_cases = self.settings.training.batch_size
        return {
            name: jax.ShapeDtypeStruct((num_cases, *rows.shape[1:]), rows.dtype)
            for name, rows in self.inputs.example.items()
        }

    def _keys(self) -> tuple[jax.Array, jax.Array]:
        """Random keys of the parameters and of the run."""
        init_key, run_key = jax.random.split(jax.random.key(self.settings.seed))
        return init_key, run_key

    def _make_baseline_optimizer(self) -> Any:
        settings = self.settings
        num_batches = batches_per_epoch(self.inputs.dataset, settings.training.batch_size)
        return make_baseline_optimizer(
            learning_rate=settings.baseline.learning_rate,
            schedule=settings.baseline.schedule,
            num_batches=settings.baseline.epochs * num_batches,
            weight_decay=settings.baseline.weight_decay,
            epsilon=settings.training.adam_epsilon,
            clip_norm=settings.training.clip_norm,
        )

    def _make_state(self) -> TrainState:
        init_key, run_key = self._keys()
        if self.settings.job == "baseline":
            params = init_baseline_params(
                self.networks, key=init_key, batch=self.inputs.example, text_features=self.inputs.text_features
            )
            return start_baseline_state(params, self.optimizers, key=run_key)
        params = init_params(
            self.networks, key=init_key, batch=self.inputs.example, text_features=self.inputs.text_features
        )
        return start_state(params, self.objective, self.optimizers, key=run_key)
