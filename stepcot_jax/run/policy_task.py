"""The task of reasoning records: a policy that is fine-tuned on them and optimised for rewards."""

import contextlib
import functools
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from stepcot_jax.data.grounded.check_examples import CheckExample, draw_check_examples
from stepcot_jax.data.grounded.record_files import write_vqa_records
from stepcot_jax.data.grounded.vqa_dataset import VqaDataset, load_vqa_dataset
from stepcot_jax.data.reading_ahead import ReadAhead
from stepcot_jax.evaluation.reply_scores import ReplyScore, ScoringSettings, as_columns, score_text
from stepcot_jax.evaluation.resamples import count_once
from stepcot_jax.evaluation.vqa_metrics import prepare_figures
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.models.prefix_vlm import PrefixVlm
from stepcot_jax.policies.batched_replies import reply_in_batches
from stepcot_jax.policies.check_tokens import check_texts, encode_checks, longest_check
from stepcot_jax.policies.encoded_records import RecordEncoder, lay_out_prompts
from stepcot_jax.policies.policy_files import (
    VOCABULARY_FILE,
    AnyTokenizer,
    PolicyLengths,
    load_pretrained,
    read_lengths,
    write_lengths,
)
from stepcot_jax.policies.policy_network import make_policy, normalise
from stepcot_jax.policies.rollouts import Sampling
from stepcot_jax.policies.tokenizers import Vocabulary
from stepcot_jax.run.policy_checks import check_epochs, check_round_trip, count_cut
from stepcot_jax.run.policy_results import Answered, write_examples, write_policy_results
from stepcot_jax.run.policy_start import naming_start, read_policy_start
from stepcot_jax.run.task import Outcome, Task
from stepcot_jax.settings.run_settings import Settings
from stepcot_jax.systems import grpo, sft
from stepcot_jax.systems.grpo_rollouts import Rollouts, make_reward_settings
from stepcot_jax.systems.judged_rewards import JudgedRewards, make_judge
from stepcot_jax.systems.policy_system import PolicySystem
from stepcot_jax.systems.self_check import SelfCheck
from stepcot_jax.systems.sft import Normalise, PackedRows, draw_batches, pack_split
from stepcot_jax.systems.staged_rows import StagedRows, make_staged_rows, stage_texts
from stepcot_jax.training.parallel import Devices
from stepcot_jax.training.processes import is_first
from stepcot_jax.training.state import TrainState
from stepcot_jax.training.system import Batch, Stream

TEST_RECORDS = "records/test.jsonl"


class PolicyTask(Task):
    """The task of the jobs "sft" and "grpo".

    Args:
      settings: of the run.
      workdir: of the run.
      devices: where batches and parameters go.
      terminal: shows progress.

    Raises:
      BadInput: a batch size does not suit the devices, no phase has an epoch, no reply fits in
        `policy.longest_reply`, or records, images or the tokenizer cannot be used.
    """

    def __init__(self, settings: Settings, *, workdir: pathlib.Path, devices: Devices, terminal: Terminal) -> None:
        self.settings, self.workdir, self.devices, self.terminal = settings, workdir, devices, terminal
        check_epochs(settings)
        for section in ("sft", "grpo")[: 1 if settings.job == "sft" else 2]:
            size = getattr(settings, section).batch_size
            devices.check_batch_size(size, setting=f"config.{section}.batch_size")  # before minutes of loading
        self.batch_size = settings.sft.batch_size
        self.start = read_policy_start(settings) if settings.policy.start else None
        self.dataset: VqaDataset = load_vqa_dataset(settings, progress=lambda items: terminal.watch(items, "images"))
        self.tokenizer = make_tokenizer(settings, self.dataset) if self.start is None else self.start.tokenizer
        vqa = settings.vqa
        self.encoder = RecordEncoder(self.tokenizer, vqa.dialect, with_thinking=vqa.with_thinking)
        train = [int(place) for place in self.dataset.splits["train"]]
        with naming_start(settings):
            self.prompts = [self.encoder.encode_prompt(record) for record in self.dataset.records]
            self.encoded = {place: self.encoder.encode(self.dataset.records[place]) for place in train}
        if settings.policy.tokenizer:  # a closed vocabulary gives every text back
            check_round_trip(self.encoder, self.dataset.records, self.encoded)
        longest = max(len(each.target) for each in self.encoded.values())
        self.longest_check, reply_length = longest, settings.policy.longest_reply or longest
        self.num_cut = count_cut(self.encoded, reply_length)
        if settings.self_check.enabled and (examples := draw_checks(settings, self.dataset)):
            with naming_start(settings):
                self.encoded |= encode_checks(examples, self.encoded, self.tokenizer)
                self.longest_check = longest_check(examples, self.tokenizer)
        self.lengths = PolicyLengths(
            prompt_length=max(map(len, self.prompts)),
            reply_length=reply_length,
            num_words=self.tokenizer.num_words,
            largest_coordinate=settings.image_encoder.image_size,
        )
        self.packs, self.row_length = pack_split(self.dataset, self.encoded, pack_length=settings.sft.pack_length)
        self.staged: StagedRows | None = None
        if settings.curriculum.schedule != "none":
            places, rows = [place for (place,) in self.packs], self._own_rows(settings.sft.batch_size)
            with naming_start(settings):
                self.staged = make_staged_rows(
                    settings, self.dataset, self.tokenizer, encoded=self.encoded, places=places, rows=rows
                )
        self.scoring = ScoringSettings(dialect=vqa.dialect, with_thinking=vqa.with_thinking)
        self.system = self._make_system()

    def _make_system(self) -> PolicySystem:
        settings, devices = self.settings, self.devices
        policy = make_policy(settings, num_words=self.tokenizer.num_words)
        prepare = functools.partial(normalise, settings=settings)
        rollouts, judge = None, None
        if settings.job == "grpo":
            if settings.rewards.open_answer == "judge":
                judge = JudgedRewards(
                    make_judge(settings.rewards, self.workdir), ill_formed=settings.rewards.ill_formed
                )
            rollouts = Rollouts(
                policy=policy,
                normalise=prepare,
                tokenizer=self.tokenizer,
                dialect=settings.vqa.dialect,
                with_thinking=settings.vqa.with_thinking,
                records=self.dataset.records,
                devices=devices,
                settings=settings.grpo,
                rewards=make_reward_settings(settings.rewards),
                longest=self.lengths.reply_length,
                self_check=self._make_self_check(policy, prepare) if settings.self_check.enabled else None,
                judge=judge,
            )
        return PolicySystem(
            settings,
            policy,
            prepare,
            Sampling(longest=self.lengths.reply_length, stop=self.tokenizer.stop, greedy=True),
            sft_updates=max(len(self.packs) // settings.sft.batch_size, 1),
            grpo_updates=settings.grpo.updates_per_epoch
            or max(len(self.dataset.splits["train"]) // settings.grpo.batch_size, 1),
            rollouts=rollouts,
            staged=self.staged,
            start=None if self.start is None else self.start.params,
        )

    def _make_self_check(self, policy: PrefixVlm, prepare: Normalise) -> SelfCheck:
        return SelfCheck(
            policy=policy,
            normalise=prepare,
            tokenizer=self.tokenizer,
            devices=self.devices,
            settings=self.settings.self_check,
            group_size=self.settings.grpo.group_size,
            temperature=self.settings.grpo.temperature,
            longest=self.lengths.reply_length,
            longest_check=self.longest_check,
        )

    @property
    def digest(self) -> str:
        """Of records, images and splits."""
        return self.dataset.digest

    @property
    def example(self) -> Batch:
        """A prompt."""
        return self.make_prompts(self.dataset.splits["train"][:1])

    @property
    def batch_shapes(self) -> Batch:
        """Not used: every phase has a stream of its own."""
        raise NotImplementedError("each phase of a policy has a stream of its own")

    def make_prompts(self, places: Sequence[int] | np.ndarray) -> Batch:
        """Return images and padded prompts of some records, and their places."""
        laid_out = lay_out_prompts(
            [self.prompts[place] for place in places], self.lengths.prompt_length, pad=self.tokenizer.pad
        )
        images = self.dataset.load_images(self.dataset.image_of[np.asarray(places, int)])
        return {"images": images, **laid_out, "place": np.asarray(places, np.int32)}

    @contextlib.contextmanager
    def stream(self) -> Iterator[Stream]:
        """Open the batches of both phases."""
        settings = self.settings
        train = self.dataset.splits["train"]
        pack = PackedRows(
            self.dataset,
            self.encoded,
            self.packs,
            self.row_length,
            (settings.sft.answer_weight, settings.sft.reasoning_weight),
            self._own_rows(settings.sft.batch_size),
        )
        own = self._own_rows(settings.grpo.batch_size)
        rows = pack if self.staged is None else self.staged.read

        def prompt(update: int, numbers: np.ndarray) -> Batch:
            del update
            return self.make_prompts(train[numbers[own]])

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
            batch = self.make_prompts([places[row] for row in rows][own])
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

    def _load_image(self, record: Any) -> np.ndarray:
        place = self._place_of[record.id]
        return self.dataset.load_images([int(self.dataset.image_of[place])])[0]

    @functools.cached_property
    def _place_of(self) -> dict[str, int]:
        return {record.id: place for place, record in enumerate(self.dataset.records)}

    def describe_data(self) -> str:
        """Return the number of questions and images, the lengths of prompts and replies, and how many are cut."""
        lengths, cut = self.lengths, ""
        if self.num_cut:
            cut = f" (config.policy.longest_reply cuts {self.num_cut} of {len(self.encoded)} training replies)"
        return (
            f"questions: {len(self.dataset.records)} about {self.dataset.num_images} images; tokens: prompts up to "
            f"{lengths.prompt_length}, replies up to {lengths.reply_length}{cut}, vocabulary {lengths.num_words}"
        )

    def check_same_splits(self) -> None:
        """Refuse records with a vocabulary of another size, which no checkpoint fits; the digest covers the rest."""
        if read_lengths(self.workdir) != self.lengths:
            raise self._other_data()

    def check_same_data(self, digest: str) -> None:
        """Refuse other records, images or splits."""
        if digest != self.digest:
            raise self._other_data()

    def _other_data(self) -> BadInput:
        return BadInput(
            f"{self.workdir}: records, images or splits differ from those the run started with; use the same data or a "
            "new workdir"
        )

    def write_facts(self) -> None:
        """Write lengths, vocabulary and the test records."""
        write_lengths(self.workdir, self.lengths)
        if isinstance(self.tokenizer, Vocabulary):
            self.tokenizer.write(self.workdir / VOCABULARY_FILE)
        path = self.workdir / TEST_RECORDS
        path.parent.mkdir(exist_ok=True)
        write_vqa_records(path, [self.dataset.records[place] for place in self.dataset.splits["test"]])

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
        )
        outcome.log(
            {f"{phase}/{name}": figure for phase, row in report["test"].items() for name, figure in row.items()}
        )
        return report


def draw_checks(settings: Settings, dataset: VqaDataset) -> dict[int, CheckExample]:
    """Return the training records that fine-tuning shows with a wrong attempt and a check, by place."""
    return draw_check_examples(
        dataset.records,
        dataset.splits["train"],
        share=settings.self_check.sft_share,
        seed=settings.seed,
        dialect=settings.vqa.dialect,
        hides_check=settings.self_check.context == "first",
    )


def make_tokenizer(settings: Settings, dataset: VqaDataset) -> AnyTokenizer:
    """Return the pretrained tokenizer that the settings name, or a closed vocabulary.

    The vocabulary is counted on the prompts of all splits and the replies of the training split: no word of a held-out
    answer enters it, and no question is unreadable.
    """
    if settings.policy.tokenizer:
        return load_pretrained(settings.policy.tokenizer)
    from stepcot_jax.policies.encoded_records import write_texts

    vqa, texts = settings.vqa, list[str]()
    for record in dataset.records:
        prompt, reply = write_texts(record, vqa.dialect, with_thinking=vqa.with_thinking)
        texts += [prompt, reply] if record.split == "train" else [prompt]
    if settings.curriculum.schedule != "none":
        texts += stage_texts(settings, dataset)
    if settings.self_check.enabled:
        texts += check_texts(draw_checks(settings, dataset))
    return Vocabulary.count(texts, largest=settings.image_encoder.image_size, num_merges=settings.policy.num_merges)
