"""The task of reasoning records: a policy that is fine-tuned on them and optimised for rewards."""

import contextlib
import functools
import math
import operator
import pathlib
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from PIL import Image

from stepcot_jax.data.images.drawn_boxes import PREDICTED, TRUE, draw_named_boxes
from stepcot_jax.data.questions.vqa_dataset import VqaDataset
from stepcot_jax.data.reading_ahead import ReadAhead
from stepcot_jax.evaluation import replies
from stepcot_jax.evaluation.replies import Answered, ReplyScore, ScoringSettings
from stepcot_jax.evaluation.statistics import count_once
from stepcot_jax.evaluation.unread import WARNING, count_unread, describe_unread
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_file, write_whole
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.policies.policy import AnyPolicy
from stepcot_jax.policies.policy_files import read_lengths
from stepcot_jax.policies.sampling import Sampling, reply_in_batches
from stepcot_jax.reasoning.levels import LEVELS
from stepcot_jax.reasoning.plain_replies import PLAIN
from stepcot_jax.record import Record
from stepcot_jax.rewards.functions import RewardFunction, grounding
from stepcot_jax.rewards.presets import make_functions
from stepcot_jax.run.inputs import PolicyData, load_policy_data
from stepcot_jax.run.networks import choose_policy, find_qwen, load_patches, make_normalise
from stepcot_jax.run.settings import Settings
from stepcot_jax.run.start import given_start, naming_start, read_policy_start, smooth_start
from stepcot_jax.run.stored import StoredPolicy
from stepcot_jax.run.task import Outcome, Task
from stepcot_jax.systems import sft
from stepcot_jax.systems.curriculum import StagedRows, make_staged_rows
from stepcot_jax.systems.grpo import Rollouts
from stepcot_jax.systems.options import GrpoOptions, count_updates
from stepcot_jax.systems.policy_system import PolicySystem
from stepcot_jax.systems.sft import Normalise, PackedRows, draw_batches, pack_split
from stepcot_jax.training.devices import Devices
from stepcot_jax.training.processes import is_first
from stepcot_jax.training.state import TrainState
from stepcot_jax.training.system import Batch, Stream

EXAMPLES_FOLDER = "examples"

_NUM_EXAMPLES = 12
_TILE = 256  # pixels


def _spread(number: int, most: int) -> np.ndarray:
    """Return at most `most` of `number` positions, spread evenly."""
    return np.unique(np.linspace(0, number - 1, min(most, number)).astype(int))


def write_examples(
    workdir: pathlib.Path, answered: Answered, *, step: int, load_image: Callable[[Record], np.ndarray]
) -> None:
    """Write a dozen replies, spread over the questions, as JSON lines and as a picture with boxes."""
    folder = workdir / EXAMPLES_FOLDER
    folder.mkdir(exist_ok=True)
    chosen = _spread(len(answered.records), _NUM_EXAMPLES).tolist()
    lines, tiles = [], []
    for index in chosen:
        record, score = answered.records[index], answered.scores[index]
        line = {
            "id": record.id,
            "question": record.question,
            "choices": record.options,
            "answer": record.answer,
            "reply": answered.texts[index],
            "a_score": score.a_score,
        }
        lines.append(line if math.isnan(score.v_score) else line | {"v_score": score.v_score})
        pixels = load_image(record)
        for boxes, colour in ((record.references, TRUE), (score.boxes, PREDICTED)):
            tiles.append(Image.fromarray(draw_named_boxes(pixels, boxes, colour=colour, least_side=_TILE)))
    write_whole(folder / f"{step:06}.jsonl", b"".join(replies.encode(line) for line in lines))
    sheet = Image.new("RGB", (4 * tiles[0].width, -(-len(tiles) // 4) * tiles[0].height))
    for index, tile in enumerate(tiles):
        sheet.paste(tile, (index % 4 * tile.width, index // 4 * tile.height))
    sheet.save(folder / f"{step:06}.png")


# The system of a policy from its settings: fine-tuning, and GRPO or DPO with rewards, judge and self-check.


def make_policy_system(
    settings: Settings,
    *,
    data: PolicyData,
    num_rows: int,
    staged: StagedRows | None,
    start: StoredPolicy | None,
    devices: Devices,
    functions: Mapping[str, tuple[RewardFunction, float]],
) -> PolicySystem:
    """Return the system of a policy, with rollouts for the jobs "grpo" and "dpo"."""
    tokens, tokenizer = data.tokens, data.tokens.tokenizer
    longest = tokens.lengths.reply_length
    policy = choose_policy(settings, tokenizer, data.source, mesh=devices.named_mesh)
    normalise = make_normalise(settings)
    optimising = settings.optimising
    num_train = len(data.dataset.splits.train)
    return PolicySystem(
        policy,
        normalise,
        Sampling(longest=longest, stop=tokenizer.stop, more_stops=tokenizer.more_stops, greedy=True),
        fine_tuning=settings.sft,
        optimising=optimising,
        checking=settings.self_check,
        epsilon=settings.training.adam_epsilon,
        clip_norm=settings.training.clip_norm,
        sft_updates=count_updates(settings.sft, num_rows),
        grpo_updates=count_updates(optimising or settings.grpo, num_train),
        rollouts=_make_rollouts(settings, policy, normalise, data, devices, functions) if optimising else None,
        staged=staged,
        start=given_start(policy, start, data.source),
        begin=smooth_start(policy, tokenizer, largest=tokens.lengths.largest_coordinate),
    )


def _make_rollouts(
    settings: Settings,
    policy: AnyPolicy,
    normalise: Normalise,
    data: PolicyData,
    devices: Devices,
    functions: Mapping[str, tuple[RewardFunction, float]],
) -> Rollouts:
    tokenizer, longest = data.tokens.tokenizer, data.tokens.lengths.reply_length
    judge = self_check = None
    if settings.rewards.open_answer == "judge":
        from stepcot_jax.run.judged_rewards import JudgedRewards, make_judge  # a client of endpoints

        judge = JudgedRewards(make_judge(settings.rewards, data.workdir), ill_formed=settings.rewards.ill_formed)
    options, kind = settings.grpo, Rollouts
    if settings.optimising is settings.dpo:
        from stepcot_jax.systems.dpo import Pairs  # for this job alone

        kind = Pairs
        dpo = settings.dpo
        options = GrpoOptions(group_size=dpo.group_size, temperature=dpo.temperature)
    elif settings.self_check.enabled:
        from stepcot_jax.systems.self_check import SelfCheck  # for this option alone

        self_check = SelfCheck(
            policy=policy,
            normalise=normalise,
            tokenizer=tokenizer,
            devices=devices,
            settings=settings.self_check,
            group_size=settings.grpo.group_size,
            temperature=settings.grpo.temperature,
            longest=longest,
            longest_check=data.tokens.longest_check,
        )
    return kind(
        policy=policy,
        normalise=normalise,
        tokenizer=tokenizer,
        dialect=settings.vqa.dialect,
        with_thinking=settings.vqa.with_thinking,
        records=data.dataset.records,
        devices=devices,
        settings=options,
        rewards=settings.rewards,
        longest=longest,
        self_check=self_check,
        judge=judge,
        functions=functions,
    )


_MOST_EXAMPLE_BYTES = 2**26


def _check_phases(settings: Settings, devices: Devices) -> None:
    """Refuse phases without epochs, unknown rewards, and batches that the devices cannot divide."""
    if not any(operator.attrgetter(key)(settings) for key in settings.trains.epochs):
        others = "".join(f" and config.{key}=0" for key in settings.trains.epochs[1:])
        raise BadInput(f"config.sft.epochs: 0 with {settings.named_job}{others} leaves nothing to train")
    make_functions(settings.rewards)
    for section in (name.partition(".")[0] for name in settings.trains.epochs):
        size = getattr(settings, section).batch_size
        devices.check_batch_size(size, setting=f"config.{section}.batch_size")


def _refuse_grounding(
    settings: Settings,
    functions: Mapping[str, tuple[RewardFunction, float]],
    records: Iterable[Record] | None = None,
) -> None:
    """Refuse the reward of boxes in a dialect without boxes and, once they are loaded, of records without any."""
    is_used = grounding in {function for function, _ in functions.values()}
    if settings.optimising is None or not (is_used if functions else "grounding" in settings.rewards.weights):
        return
    if settings.vqa.dialect == PLAIN:
        what = "replies of config.vqa.dialect='plain' have no box"
    elif records is not None and not any(record.references for record in records):
        what = "no training record has a box"
    else:
        return
    raise BadInput(
        f"config.rewards.functions: grounding rewards boxes, but {what}; expected others alone, such as "
        "('answer=1', 'well_formed=0.1')"
    )


class PolicyTask(Task):
    """The task of the jobs "sft", "grpo" and "dpo"."""

    contents = "records, images or splits"

    def __init__(
        self,
        settings: Settings,
        *,
        workdir: pathlib.Path,
        devices: Devices,
        terminal: Terminal,
        dataset: VqaDataset | None = None,
        functions: Mapping[str, tuple[RewardFunction, float]] = types.MappingProxyType({}),
    ) -> None:
        self.settings, self.workdir, self.devices, self.terminal = settings, workdir, devices, terminal
        _check_phases(settings, devices)  # before minutes of loading
        _refuse_grounding(settings, functions)
        self.batch_size = settings.sft.batch_size
        source = find_qwen(settings) if settings.policy.weights else None
        patches = load_patches(settings)
        self.start = read_policy_start(settings, patches) if settings.policy.start else None
        self.data = load_policy_data(
            settings,
            workdir=workdir,
            terminal=terminal,
            source=source,
            start=self.start,
            patches=patches,
            dataset=dataset,
        )
        self.dataset, self.tokens, self.see = self.data.dataset, self.data.tokens, self.data.see
        _refuse_grounding(settings, functions, [self.dataset.records[index] for index in self.dataset.splits.train])
        self.tokenizer, self.lengths = self.tokens.tokenizer, self.tokens.lengths
        self.packs, self.row_length = pack_split(
            self.dataset, self.tokens.encoded, pack_length=settings.sft.pack_length
        )
        self.staged = None if settings.curriculum.schedule == "none" else self._stage_rows()
        self._numbers: dict[str, float] = {}
        self.scoring = ScoringSettings(dialect=settings.vqa.dialect, with_thinking=settings.vqa.with_thinking)
        self.system = make_policy_system(
            settings,
            data=self.data,
            num_rows=len(self.packs),
            staged=self.staged,
            start=self.start,
            devices=devices,
            functions=functions,
        )

    def _stage_rows(self) -> StagedRows:
        settings = self.settings
        with naming_start(settings):
            return make_staged_rows(
                settings.curriculum,
                settings.sft,
                self.dataset,
                self.tokenizer,
                dialect=settings.vqa.dialect,
                with_thinking=settings.vqa.with_thinking,
                seed=settings.seed,
                encoded=self.tokens.encoded,
                indices=[index for (index,) in self.packs],
                rows=self._local_rows(settings.sft.batch_size),
                see=self.see,
            )

    @property
    def digest(self) -> str:
        """The digest of records, images and splits."""
        return self.dataset.digest

    @property
    def example(self) -> Batch:
        """A batch of one prompt; JAX does not trace its frozen encoder, even within a traced function."""
        with jax.ensure_compile_time_eval():
            return self.data.make_prompts(self.dataset.splits.train[:1])

    @contextlib.contextmanager
    def stream(self) -> Iterator[Stream]:
        """Open the batches of both phases."""
        settings = self.settings
        train = np.asarray(self.dataset.splits.train, np.int32)
        pack = PackedRows(
            self.dataset,
            self.tokens.encoded,
            self.packs,
            self.row_length,
            (settings.sft.answer_weight, settings.sft.reasoning_weight),
            self._local_rows(settings.sft.batch_size),
            self.see,
        )
        optimising = settings.optimising or settings.grpo
        local_rows = self._local_rows(optimising.batch_size)
        rows = pack if self.staged is None else self.staged.read

        def prompt(update: int, numbers: np.ndarray) -> Batch:
            del update
            return self.data.make_prompts(train[numbers[local_rows]])

        with contextlib.ExitStack() as stack:
            if self.system.rollouts is not None and self.system.rollouts.judge is not None:
                stack.callback(self.system.rollouts.judge.close)
            streams = {}
            for name, number, size, make, length in (
                (sft.NAME, len(self.packs), settings.sft.batch_size, rows, self.system.sft_updates),
                (self.system.second, len(train), optimising.batch_size, prompt, self.system.grpo_updates),
            ):
                items = draw_batches(number, batch_size=size, seed=settings.seed, make=make)
                batches = ReadAhead(items, lambda batch: batch, num_threads=settings.data.batching_threads)
                streams[name] = Stream(stack.enter_context(contextlib.closing(batches)), length)
            self.system.streams = streams
            yield streams[sft.NAME]

    def _local_rows(self, batch_size: int) -> slice:
        number = batch_size // jax.process_count()
        return slice(jax.process_index() * number, (jax.process_index() + 1) * number)

    def prepare(self, batch: Batch) -> Batch:
        """Return a batch on the devices, without the indices of its records."""
        return self.devices.put_training_rows({name: rows for name, rows in batch.items() if name != "index"})

    def reply(self, params: Any, indices: Sequence[int] | np.ndarray, data: PolicyData | None = None) -> list[str]:
        """Return greedy replies to records, the same in every process."""
        data, number, num_devices = data or self.data, len(indices), self.devices.num_devices
        size = math.ceil(min(self.settings.evaluation.batch_size, number) / num_devices) * num_devices
        local_rows = self._local_rows(size)

        def ask(rows: Sequence[int]) -> np.ndarray:
            batch = data.make_prompts([indices[row] for row in rows][local_rows])
            del batch["index"]
            tokens: np.ndarray = jax.device_get(self.predict(params, self.devices.put_rows(batch))["tokens"])
            return tokens

        watch = functools.partial(self.terminal.watch, description="replies")
        return reply_in_batches(ask, number, batch_size=size, tokenizer=self.tokenizer, watch=watch)

    def answer(self, params: Any, indices: Sequence[int] | np.ndarray, data: PolicyData | None = None) -> Answered:
        """Return greedy replies to records with their scores."""
        data = data or self.data
        texts, records = self.reply(params, indices, data), [data.dataset.records[index] for index in indices]
        scores: list[ReplyScore] = [
            replies.score_text(text, record, self.scoring) for text, record in zip(texts, records, strict=True)
        ]
        return Answered(records, texts, scores)

    @functools.cached_property
    def validated(self) -> np.ndarray:
        """Indices of the questions asked after each epoch, spread evenly over the validation split."""
        indices = np.asarray(self.dataset.splits.val, np.int32)
        return indices[_spread(len(indices), self.settings.vqa.num_validated or len(indices))]

    def begin(self, state: TrainState) -> TrainState:
        """Return the state with the weights of `policy.start` or `policy.weights`, if there are any."""
        return self.system.fill(state)

    def validate(self, state: TrainState) -> dict[str, float]:
        """Return (A + V) / 2, A where no record has a box, on validation questions, and write some replies."""
        step = int(jax.device_get(state.step))
        phase = self.system.phase_of(step)
        answered = self.answer(state.params, self.validated)
        columns = replies.as_columns(answered.records, answered.scores)
        figures = replies.prepare_figures(columns)(count_once(len(columns.patients)))
        shown = {"a_score": ("a_score", "mean"), "v_score": ("v_score", "all")}
        scores = {name: float(figures[key][0]) for name, key in shown.items() if key in figures}
        unread = count_unread(answered.scores)
        self._numbers = {f"{phase}/unread_{what}": part.share for what, part in unread.items()}
        for line in describe_unread({f"{phase}, validation": unread}):
            if line.startswith(WARNING):
                self.terminal.say(line)
        if is_first():
            write_examples(self.workdir, answered, step=step, load_image=self._load_image)
        return self.system.evaluate({"phase": phase, **scores})

    def numbers(self, step: int) -> dict[str, float]:  # noqa: ARG002
        """Return the shares of unread answers and boxes that `validate` found."""
        return self._numbers

    def pictures(self, step: int) -> dict[str, bytes]:
        """Return the examples of replies that `validate` wrote, in the first process."""
        path = self.workdir / EXAMPLES_FOLDER / f"{step:06}.png"
        return {"examples": read_file(path, max_bytes=_MOST_EXAMPLE_BYTES)} if path.is_file() else {}

    def _load_image(self, record: Any) -> np.ndarray:
        index = self._index_of[record.id]
        return self.dataset.load_images([int(self.dataset.image_of[index])])[0]

    @functools.cached_property
    def _index_of(self) -> dict[str, int]:
        return {record.id: index for index, record in enumerate(self.dataset.records)}

    @property
    def next_commands(self) -> tuple[str, ...]:
        """Commands that read a finished run."""
        ask = 'answer IMAGE "QUESTION" --checkpoint={workdir}'
        return ("report {workdir}",) if self.settings.vqa.dialect == LEVELS else ("report {workdir}", ask)

    def describe_data(self) -> str:
        """Return the numbers of questions and images, the lengths of prompts and replies, and how many are cut."""
        cut, num_cut = "", self.tokens.num_cut
        if num_cut:
            cut = f" (config.policy.longest_reply cuts {num_cut} of {len(self.tokens.encoded)} training replies)"
        return (
            f"questions: {len(self.dataset.records)} about {self.dataset.num_images} images; tokens: prompts up to "
            f"{self.lengths.prompt_length}, replies up to {self.lengths.reply_length}{cut}, vocabulary "
            f"{self.lengths.num_words}"
        )

    def check_same_splits(self) -> None:
        """Refuse records whose lengths or vocabulary size differ from the checkpoint's; the digest covers the rest."""
        if read_lengths(self.workdir) != self.lengths:
            self.check_same_data("")

    def write_facts(self) -> None:
        """Write lengths, vocabulary, the test records and the patients of each split."""
        self.data.write()

    def finish(self, outcome: Outcome) -> dict[str, Any]:
        """Answer the test questions with the best weights of each phase; write replies and report."""
        from stepcot_jax.run.results import write_policy_results

        opened = self.data.open_test()
        answered = {
            name: self.answer(outcome.params_of(name), opened.dataset.splits.test, opened)
            for name in self.system.names
            if name in outcome.best
        }
        if not is_first():
            return {}
        report = write_policy_results(
            self.workdir,
            answered,
            train=[self.dataset.records[index] for index in self.dataset.splits.train],
            scoring=self.scoring,
            outcome=outcome,
            num_resamples=self.settings.evaluation.num_resamples,
            end_of_sft=self.system.end_of_sft if self.system.second in answered else 0,
        )
        outcome.log(
            {f"{phase}/{name}": figure for phase, row in report["test"].items() for name, figure in row.items()}
        )
        return report
