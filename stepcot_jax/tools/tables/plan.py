"""Plan of the tables: settings, seeds, encoders, and the cells that tables share."""

import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from stepcot_jax.evaluation.comparison import AnswerComparison, join
from stepcot_jax.evaluation.published import Constrained
from stepcot_jax.host.errors import BadInput
from stepcot_jax.pages.sheets import Table
from stepcot_jax.run.settings import Settings
from stepcot_jax.tools.tables.cells import Cell, Cells, vary
from stepcot_jax.tools.tables.encoders import Encoder, list_encoders

ABLATIONS: dict[str, dict[str, Any]] = {
    "without memory": {"teacher.memory": False},
    "without text": {"teacher.text": False},
    "without write-back": {"teacher.write_back": False},
    "without distillation": {"loss.soft_label_scale": 0.0},
    "without channel alignment": {"loss.channel_alignment_scale": 0.0},
}
"""Ablations with their settings; the last two change the student alone."""

NETWORKS = ("teacher", "student")

OF_STUDENT = ("without distillation", "without channel alignment")
"""Ablations that leave the teacher unchanged."""


@dataclasses.dataclass(frozen=True)
class Grid:
    """Runs of the table `supervision`."""

    sizes: Mapping[int, int]  # training cases -> number of sets, which are the first of the seeds
    withhold_at: int = 3000  # training cases of the runs that lack labels
    num_updates: int = 2000  # of every network, in ten epochs
    num_unseen: int = 4000  # chests of each set that no run draws


@dataclasses.dataclass(frozen=True)
class Plan:
    """Inputs of every table."""

    settings: Settings  # of the full teacher and student; the job is "distill"
    seeds: tuple[int, ...]  # of the runs of each cell
    cells: Cells
    named_encoders: Mapping[str, str] = dataclasses.field(default_factory=dict)  # folders or ids, given by the user
    target: Settings | None = None  # whose data `transfer` reads; None for the phantom's held-out styles
    num_resamples: int = 1000
    constrained: tuple[Constrained, ...] = ()  # large models put through the steps
    zero_shot: Mapping[str, pathlib.Path] = dataclasses.field(default_factory=dict)  # replies untrained, by table
    grid: Grid = Grid({})
    partial: bool = False  # of finished cells alone, without running others

    def __post_init__(self) -> None:
        if self.settings.job != "distill":
            raise BadInput(f"{self.settings.named_job} is not 'distill'; the tables choose the other jobs")
        if not self.settings.teacher.memory or not self.settings.teacher.write_back or not self.settings.teacher.text:
            raise BadInput(
                "config.teacher.memory, write_back and text must be True; the tables switch them off one by one"
            )
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise BadInput(f"--seeds: {list(self.seeds)} are not distinct whole numbers")

    @property
    def workdir(self) -> pathlib.Path:
        """Workdir of the tables."""
        return self.cells.workdir

    def main(self, seed: int) -> Cell:
        """Return the full teacher and student."""
        return Cell("teacher and student", vary(self.settings, {"seed": seed}))

    def compare(self, list_parts: Callable[[int], Mapping[str, tuple[Cell, str]]]) -> AnswerComparison:
        """Compare models of finished cells on the test split."""
        splits = [
            join({name: (self.cells.predictions(cell), model) for name, (cell, model) in list_parts(seed).items()})
            for seed in self.seeds
        ]
        return AnswerComparison(splits, self.num_resamples, chain=self.cells.chain(self.main(self.seeds[0])))

    def compare_baselines(self, steps: Sequence[str]) -> AnswerComparison:
        """Compare teacher, student and the baselines on all encoders."""

        def list_parts(seed: int) -> dict[str, tuple[Cell, str]]:
            networks = {network: (self.main(seed), network) for network in NETWORKS}
            return networks | {cell.name: (cell, "baseline") for cell in self.baselines(seed, steps)}

        return self.compare(list_parts)

    def ablation(self, name: str, seed: int) -> Cell:
        """Return an ablation of teacher and student."""
        return Cell(name, vary(self.settings, {**ABLATIONS[name], "seed": seed}))

    def encoders(self, seed: int | None = None) -> list[Encoder]:
        """Return the encoders of the baselines; the teacher's is that of this seed, or of the first."""
        main = self.main(self.seeds[0] if seed is None else seed)
        return list_encoders(self.settings, self.cells, main, self.named_encoders)

    def baseline(self, encoder: Encoder, steps: str, seed: int) -> Cell:
        """Return a baseline on an encoder, supervised by "all" steps or by the "last" alone."""
        changes = {"job": "baseline", "baseline.steps": steps, "prompts.template": "Question: {question}", "seed": seed}
        name = f"{encoder.name}, {'with' if steps == 'all' else 'without'} steps"
        return Cell(name, vary(self.settings, {**encoder.changes, **changes}), prepare=encoder.prepare)

    def baselines(self, seed: int, steps: Sequence[str] = ("last", "all")) -> list[Cell]:
        """Return the baselines on all encoders."""
        return [self.baseline(encoder, supervised, seed) for encoder in self.encoders(seed) for supervised in steps]


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The making of one or more tables from finished runs."""

    cells: Callable[[Plan, int], Iterable[Cell] | Mapping[Any, Cell]]  # the runs that a seed needs, by row or not
    make: Callable[[Plan], list[Table]]  # from finished runs
    published: Callable[[], list[Table]] | None = None  # the published figures alone; None for tables of runs

    def list_cells(self, plan: Plan) -> list[Cell]:
        """Return the runs of all seeds."""
        of_seeds = [self.cells(plan, seed) for seed in plan.seeds]
        return [cell for cells in of_seeds for cell in (cells.values() if isinstance(cells, Mapping) else cells)]

    def tabulate(self, plan: Plan | None) -> list[Table]:
        """Return the tables; without a plan, with published figures alone."""
        if plan is not None:
            return self.make(plan)
        return [] if self.published is None else self.published()
