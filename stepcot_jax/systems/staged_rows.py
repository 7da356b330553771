"""Rows of fine-tuning with a curriculum: the stage of each row is drawn, then its picture, prompt and target.

Pictures of the records are read ahead. Stages are drawn by `Phase.collect`, when the schedule's state is known: what
is read ahead does not depend on it, and neither a resumed run nor another number of processes draws other stages.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int

from stepcot_jax.data.grounded.stage_views import (
    DIALECTS_WITH_HARD,
    STAGES,
    Stage,
    StageView,
    StageViews,
    domain_of,
    draw_views,
)
from stepcot_jax.data.grounded.vqa_dataset import VqaDataset
from stepcot_jax.host.errors import BadInput
from stepcot_jax.policies.encoded_records import EncodedRecord, RecordEncoder, lay_out_pack, stack_rows, write_texts
from stepcot_jax.policies.policy_files import AnyTokenizer
from stepcot_jax.settings.policy_sections import CurriculumSettings
from stepcot_jax.settings.run_settings import Settings
from stepcot_jax.systems.curriculum import CurriculumState, draw_stages
from stepcot_jax.systems.sft import Batch, See
from stepcot_jax.systems.staged_sft import CURRICULUM, NO_DOMAIN, Curriculum
from stepcot_jax.training.state import TrainState
from stepcot_jax.training.system import COLLECTED_NUMBERS

_HARD_WEIGHTS = (1.0, 0.0)  # MedCLM: the answer alone
_Shown = tuple[int, bool]  # place of a record, and whether it is shown as a hard one: what its tokens depend on


@dataclasses.dataclass
class StagedRows:
    """Rows of a fine-tuning batch; `read` is for reading ahead, the call is the phase's `collect`.

    Attributes:
      places: of the record of each number that is drawn.
      encoded: tokens of each view, by its record's place and whether it is hard.
      part_weights: of answer and reasoning, at the stages easy and medium.
      rows: of a global batch that this process loads.
      see: applied to their pictures, once boxes are drawn.
    """

    dataset: VqaDataset
    places: Sequence[int]
    views: StageViews
    encoded: Mapping[_Shown, EncodedRecord]
    part_weights: tuple[float, float]
    curriculum: Curriculum
    rows: slice
    see: See

    def __post_init__(self) -> None:
        self.length = max(each.length for each in self.encoded.values())
        self._number_of = {domain: number for number, domain in enumerate(self.curriculum.domains)}
        self._known: tuple[int, CurriculumState] | None = None

    def read(self, update: int, numbers: Int[np.ndarray, " row"]) -> Batch:
        """Return the places of the records of all rows, and the images of this process's rows."""
        places = [self.places[number] for number in numbers]
        images = self.dataset.load_images([self.dataset.image_of[place] for place in places[self.rows]])
        return {"update": update, "places": places, "images": images}

    def __call__(self, state: TrainState, batch: Batch) -> Batch:
        """Return this process's rows as `StagedSftUpdate` takes them, and numbers for the log."""
        update, places = batch["update"], batch["places"]
        schedule = self._schedule(state, update)
        domains = [domain_of(self.dataset.records[place]) for place in places]
        curriculum = self.curriculum
        stages = draw_stages(
            schedule,
            curriculum.settings,
            num_epochs=curriculum.num_epochs,
            seed=curriculum.seed,
            update=update,
            domains=domains,
        )
        views = [
            self.views.view(place, stage, seed=curriculum.seed, update=update, row=row)
            for row, (place, stage) in enumerate(zip(places, stages, strict=True))
        ]
        shares = {f"{CURRICULUM}/{stage}": _share(views, stage) for stage in STAGES}
        return {
            **self._lay_out(views[self.rows], places[self.rows], batch["images"]),
            COLLECTED_NUMBERS: {**shares, **curriculum.describe(schedule)},
        }

    def _schedule(self, state: TrainState, update: int) -> CurriculumState:
        """Return the schedule's state; read from the devices once an epoch, since that waits for the last update."""
        epoch = update // self.curriculum.updates_per_epoch
        if self._known is None or self._known[0] != epoch:
            self._known = epoch, self.curriculum.restore(state.optimizers[CURRICULUM])
        return self._known[1]

    def _lay_out(self, views: Sequence[StageView], places: Sequence[int], images: np.ndarray) -> Batch:
        shown = images.copy()
        for row, (view, place) in enumerate(zip(views, places, strict=True)):
            if view.place != place:
                shown[row] = self.dataset.load_images([int(self.dataset.image_of[view.place])])[0]
        rows = [lay_out_pack([self.encoded[_key(view)]], self.length) for view in views]
        weights = [_HARD_WEIGHTS if view.stage == "hard" else self.part_weights for view in views]
        domains = [self._number_of.get(domain_of(view.record), NO_DOMAIN) for view in views]
        return {
            "images": self.see(draw_views(shown, views)),
            **stack_rows(rows),
            "part_weights": np.array(weights, np.float32),
            "domains": np.array(domains, np.int32),
            "stages": np.array([STAGES.index(view.stage) for view in views], np.int32),
        }


def make_views(settings: Settings, dataset: VqaDataset) -> StageViews:
    """Return the views of the training split."""
    dialect = settings.vqa.dialect
    if may_be_hard(settings.curriculum) and dialect not in DIALECTS_WITH_HARD:
        raise BadInput(
            f"config.curriculum.schedule: {settings.curriculum.schedule!r} has a hard stage, for which "
            f"config.vqa.dialect={dialect!r} has no reply of the answer alone; expected one of "
            f"{', '.join(DIALECTS_WITH_HARD)}, or a schedule without a hard stage (shares, most_hard)"
        )
    return StageViews(
        dataset.records, dataset.splits["train"], dialect=dialect, with_thinking=settings.vqa.with_thinking
    )


def may_be_hard(settings: CurriculumSettings) -> bool:
    """Return whether a schedule can show the hard stage."""
    return settings.most_hard > 0 if settings.schedule == "adaptive" else settings.shares[2] > 0


def stage_texts(settings: Settings, dataset: VqaDataset) -> list[str]:
    """Return prompts and replies of all views of the training split, to count a vocabulary."""
    views = make_views(settings, dataset)
    return [
        text
        for view in _all_views(views, dataset, settings)
        for text in write_texts(view.record, settings.vqa.dialect, with_thinking=view.with_thinking)
    ]


def make_staged_rows(
    settings: Settings,
    dataset: VqaDataset,
    tokenizer: AnyTokenizer,
    *,
    encoded: Mapping[int, EncodedRecord],
    places: Sequence[int],
    rows: slice,
    see: See,
) -> StagedRows:
    """Return the rows of a run's fine-tuning.

    Args:
      encoded: tokens of the training split by place, as the stages easy and medium show them.
    """
    views = make_views(settings, dataset)
    encoder = RecordEncoder(tokenizer, settings.vqa.dialect, with_thinking=False)
    shown = {
        _key(view): encoder.encode(view.record) if view.stage == "hard" else encoded[view.place]
        for view in _all_views(views, dataset, settings)
    }
    domains = {domain_of(dataset.records[int(place)]) for place in dataset.splits["train"]}
    curriculum = Curriculum(
        settings.curriculum,
        num_epochs=settings.sft.epochs,
        updates_per_epoch=max(len(places) // settings.sft.batch_size, 1),
        seed=settings.seed,
        domains=tuple(sorted(domains - {""})),
    )
    part_weights = (settings.sft.answer_weight, settings.sft.reasoning_weight)
    return StagedRows(dataset, places, views, shown, part_weights, curriculum, rows, see)


def _all_views(views: StageViews, dataset: VqaDataset, settings: Settings) -> list[StageView]:
    hard = may_be_hard(settings.curriculum)
    found = [view for place in dataset.splits["train"] for view in views.shown_of(int(place))]
    return [view for view in found if hard or view.stage != "hard"]


def _key(view: StageView) -> _Shown:
    return view.place, view.stage == "hard"


def _share(views: Sequence[StageView], stage: Stage) -> float:
    return sum(view.stage == stage for view in views) / len(views)
