"""The task of reasoning records: a policy that is fine-tuned on them and optimised for rewards."""

import contextlib
import functools
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from stepcot_jax.data.reading_ahead import ReadAhead
from stepcot_jax.evaluation.replies import ReplyScore, ScoringSettings, as_columns, score_text
from stepcot_jax.evaluation.resamples import count_once
from stepcot_jax.evaluation.vqa_metrics import prepare_figures
from stepcot_jax.features.patch_input import load_patch_input
from stepcot_jax.host.files import read_file
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.policies.qwen_setup import find_qwen
from stepcot_jax.policies.sampling import reply_in_batches
from stepcot_jax.run.policy_checks import check_epochs
from stepcot_jax.run.policy_data import load_policy_data
from stepcot_jax.run.policy_making import make_policy_system
from stepcot_jax.run.policy_results import EXAMPLES_FOLDER, Answered, write_examples, write_policy_results
from stepcot_jax.run.start import naming_start, read_policy_start
from stepcot_jax.run.task import Outcome, Task
from stepcot_jax.settings.run_settings import Settings
from stepcot_jax.systems import grpo, sft
from stepcot_jax.systems.curriculum import StagedRows, make_staged_rows
from stepcot_jax.systems.sft import PackedRows, draw_batches, pack_split
from stepcot_jax.training.devices import Devices
from stepcot_jax.training.processes import is_first
from stepcot_jax.training.state import TrainState
from stepcot_jax.training.system import Batch, Stream

_MOST_EXAMPLE_BYTES = 2**26


class PolicyTask(Task):
    """The task of the jobs "sft" and "grpo"."""

    def __init__(self, settings: Settings, *, workdir: pathlib.Path, devices: Devices, terminal: Terminal) -> None:
        self.settings, self.workdir, self.devices, self.terminal = settings, workdir, devices, terminal
        check_epochs(settings)
        for section in ("sft", "grpo")[: 1 if settings.job == "sft" else 2]:
            size = getattr(settings, section).batch_size
            devices.check_batch_size(size, setting=f"config.{section}.batch_size")  # before minutes of loading
        self.batch_size = settings.sft.batch_size
        self.source = find_qwen(settings) if settings.policy.weights else None
        patches = load_patch_input(settings)
        self.start = read_policy_start(settings, patches) if settings.policy.start else None
        self.data = load_policy_data(
            settings, workdir=workdir, terminal=terminal, source=self.source, start=self.start, patches=patches
        )
        self.dataset, self.tokens, self.see = self.data.dataset, self.data.tokens, self.data.see
        self.tokenizer, self.lengths = self.tokens.tokenizer, self.tokens.lengths
        self.packs, self.row_length = pack_split(
            self.dataset, self.tokens.encoded, pack_length=settings.sft.pack_length
        )
        self.staged: StagedRows | None = None
        if settings.curriculum.schedule != "none":
            places, rows = [place for (place,) in self.packs], self._own_rows(settings.sft.batch_size)
            with naming_start(settings):
                self.staged = make_staged_rows(
                    settings,
                    self.dataset,
                    self.tokenizer,
                    encoded=self.tokens.encoded,
                    places=places,
                    rows=rows,
                    see=self.see,
                )
        self.scoring = ScoringSettings(dialect=settings.vqa.dialect, with_thinking=settings.vqa.with_thinking)
        self.system = make_policy_system(
            settings,
            dataset=self.dataset,
            tokens=self.tokens,
            num_rows=len(self.packs),
            staged=self.staged,
            start=self.start,
            source=self.source,
            devices=devices,
            workdir=workdir,
        )

    @property
    def digest(self) -> str:
        """Of records, images and splits."""
        return self.dataset.digest

    @property
    def example(self) -> Batch:
        """A prompt; asked for within a function that JAX traces, which a frozen encoder must not become a part of."""
        with jax.ensure_compile_time_eval():
            return self.data.make_prompts(self.dataset.splits["train"][:1])

    @property
    def batch_shapes(self) -> Batch:
        """Not used: every phase has a stream of its own."""
        raise NotImplementedError("each phase of a policy has a stream of its own")

    @contextlib.contextmanager
    def stream(self) -> Iterator[Stream]:
        """Open the batches of both phases."""
        settings = self.settings
        train = self.dataset.splits["train"]
        pack = PackedRows(
            self.dataset,
            self.tokens.encoded,
            self.packs,
            self.row_length,
            (settings.sft.answer_weight, settings.sft.reasoning_weight),
            self._own_rows(settings.sft.batch_size),
            self.see,
        )
        own = self._own_rows(settings.grpo.batch_size)
        rows = pack if self.staged is None else self.staged.read

        def prompt(update: int, numbers: np.ndarray) -> Batch:
            del update
            return self.data.make_prompts(train[numbers[own]])

        with contextlib.ExitStack() as stack:
            if self.system.rollouts is not None and self.system.rollouts.judge is not None:
                stack.callback(self.system.rollouts.judge.close)
            streams = {}
            for name, number, size, make, length in (
                (sft.NAME, len(self.packs), settings.sft.batch_size, rows, self.system.sft_updates),
                (grpo.NAME, len(train), settings.grpo.batch_size, prompt, self.system.grpo_updates),
            ):
                items = draw_batches(number, batch_size=size, seed=settings.seed, make=make)
                batches = ReadAhead(items, lambda batch: batch, num_threads=settings.data.num_threads)
                streams[name] = Stream(stack.enter_context(contextlib.closing(batches)), length)
            self.system.streams = streams
            yield streams[sft.NAME]

    def _own_rows(self, batch_size: int) -> slice:
        number = batch_size // jax.process_count()
        return slice(jax.process_index() * number, (jax.process_index() + 1) * number)

    def prepare(self, batch: Batch) -> Batch:
        """Put a batch on the devices, without the places of its records."""
        return self.devices.put_training_rows({name: rows for name, rows in batch.items() if name != "place"})

    @functools.cached_property
    def _predict(self) -> Any:
        return jax.jit(self.system.predict, out_shardings=self.devices.whole)

    def reply(self, params: Any, places: Sequence[int] | np.ndarray) -> list[str]:
        """Return greedy replies to records, the same in every process."""
        number = len(places)
        size = min(self.settings.evaluation.batch_size, number)
        size = -(-size // self.devices.num_devices) * self.devices.num_devices
        own = self._own_rows(size)

        def ask(rows: Sequence[int]) -> np.ndarray:
            batch = self.data.make_prompts([places[row] for row in rows][own])
            del batch["place"]
            tokens: np.ndarray = jax.device_get(self._predict(params, self.devices.put_rows(batch))["tokens"])
            return tokens

        watch = functools.partial(self.terminal.watch, description="replies")
        return reply_in_batches(ask, number, batch_size=size, tokenizer=self.tokenizer, watch=watch)

    def answer(self, params: Any, places: Sequence[int] | np.ndarray) -> Answered:
        """Return greedy replies to records with their scores."""
        texts, records = self.reply(params, places), [self.dataset.records[place] for place in places]
        scores: list[ReplyScore] = [
            score_text(text, record, self.scoring) for text, record in zip(texts, records, strict=True)
        ]
        return Answered(records, texts, scores)

    @functools.cached_property
    def validated(self) -> np.ndarray:
        """Places of the questions that are asked after each epoch, spread evenly over the validation split."""
        places = self.dataset.splits["val"]
        wanted = self.settings.vqa.num_validated or len(places)
        chosen: np.ndarray = places[np.unique(np.linspace(0, len(places) - 1, min(wanted, len(places))).astype(int))]
        return chosen

    def begin(self, state: TrainState) -> TrainState:
        """Put in the weights of `policy.start` or `policy.weights`."""
        return self.system.fill(state)

    def validate(self, state: TrainState) -> dict[str, float]:
        """Return (A + V) / 2 on validation questions under the name of the phase, and write some replies."""
        step = int(jax.device_get(state.step))
        phase = self.system.phase_of(step)
        answered = self.answer(state.params, self.validated)
        columns = as_columns(answered.records, answered.scores)
        figures = prepare_figures(columns)(count_once(len(columns.patients)))
        a_score, v_score = (float(figures[key][0]) for key in (("a_score", "mean"), ("v_score", "all")))
        if is_first():
            write_examples(self.workdir, answered, step=step, load_image=self._load_image)
        return self.system.evaluate({"phase": phase, "a_score": a_score, "v_score": v_score})

    def pictures(self, step: int) -> dict[str, bytes]:
        """Return the examples of replies that `validate` wrote, in the first process."""
        path = self.workdir / EXAMPLES_FOLDER / f"{step:06}.png"
        return {"examples": read_file(path, max_bytes=_MOST_EXAMPLE_BYTES)} if path.is_file() else {}

    def _load_image(self, record: Any) -> np.ndarray:
        place = self._place_of[record.id]
        return self.dataset.load_images([int(self.dataset.image_of[place])])[0]

    @functools.cached_property
    def _place_of(self) -> dict[str, int]:
        return {record.id: place for place, record in enumerate(self.dataset.records)}

    @property
    def next_commands(self) -> tuple[str, ...]:
        """What reads a finished run."""
        return ("report {workdir}", 'answer IMAGE "QUESTION" --checkpoint={workdir}')

    def describe_data(self) -> str:
        """Return the number of questions and images, the lengths of prompts and replies, and how many are cut."""
        return self.data.describe()

    def check_same_splits(self) -> None:
        """Refuse records with a vocabulary of another size, which no checkpoint fits; the digest covers the rest."""
        self.data.check_same_lengths()

    def check_same_data(self, digest: str) -> None:
        """Refuse other records, images or splits."""
        self.data.check_same(digest)

    def write_facts(self) -> None:
        """Write lengths, vocabulary, the test records and the patients of each split."""
        self.data.write()

    def finish(self, outcome: Outcome) -> dict[str, Any]:
        """Answer the test questions with the best weights of each phase; write replies and report."""
        answered = {
            name: self.answer(outcome.params_of(name), self.dataset.splits["test"])
            for name in self.system.names
            if name in outcome.best
        }
        if not is_first():
            return {}
        report = write_policy_results(
            self.workdir,
            answered,
            train=[self.dataset.records[place] for place in self.dataset.splits["train"]],
            scoring=self.scoring,
            outcome=outcome,
            num_resamples=self.settings.evaluation.num_resamples,
            end_of_sft=self.system.end_of_sft if grpo.NAME in answered else 0,
        )
        outcome.log(
            {f"{phase}/{name}": figure for phase, row in report["test"].items() for name, figure in row.items()}
        )
        return report
