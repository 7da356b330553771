"""Inputs of a run: cases with prompt vectors and features or a trained encoder; or questions as tokens with pictures.

What only questions need is imported where it is used: a run of chains needs no tokenizer.
"""

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from stepcot_jax.chain import Chain
from stepcot_jax.data.batches import Batches, evaluation_batches, iterate, training_batches
from stepcot_jax.data.dataset import Dataset, HeldOut
from stepcot_jax.data.reading_ahead import ReadAhead
from stepcot_jax.encoders.resnet import make_resnet
from stepcot_jax.evaluation.predictions import Predictions, collect
from stepcot_jax.host.extras import MapBlocks
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.run.fields import naming
from stepcot_jax.run.loading import load_dataset, load_vqa_dataset
from stepcot_jax.run.networks import trained_preprocessing
from stepcot_jax.run.settings import Settings, load_settings
from stepcot_jax.run.stored import TEST_RECORDS, check_encoder, seal, write_patients
from stepcot_jax.training.checkpoints import saved_steps
from stepcot_jax.training.devices import Devices

if TYPE_CHECKING:
    from stepcot_jax.data.questions.check_examples import CheckExample
    from stepcot_jax.data.questions.vqa_dataset import VqaDataset
    from stepcot_jax.features.patch_input import PatchInput
    from stepcot_jax.policies.policy_files import AnyTokenizer
    from stepcot_jax.policies.records import TokenizedRecords
    from stepcot_jax.policies.tokenizers import Vocabulary
    from stepcot_jax.run.qwen_source import QwenSource
    from stepcot_jax.run.stored import StoredPolicy
    from stepcot_jax.systems.sft import See
    from stepcot_jax.training.system import Batch

Prepare = Callable[[dict[str, Any]], dict[str, Any]]
Chosen = TypeVar("Chosen")


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Data and encoders of a run."""

    dataset: Dataset  # with features if a frozen encoder computed them
    text_features: jax.Array | None  # float32 [step, width]
    image_encoder: nn.Module | None  # trained with the networks; None if the batches have features
    prepare: Prepare  # a batch of the pipeline -> the input of an update, still on the host
    encoder_digest: str = ""  # of the frozen encoder's weights

    def hold_out(self) -> "tuple[Inputs, HeldOut[Inputs]]":
        """Return the inputs without the test split's labels and pictures, and held-out ones with them."""
        view, _ = self.dataset.hold_out()
        return dataclasses.replace(self, dataset=view), HeldOut(self)

    def choose_then_open(self, choose: Callable[["Inputs"], Chosen]) -> "tuple[Chosen, Inputs]":
        """Return what a function makes of the inputs without the test split, all that it sees, and the whole ones."""
        view, held_out = self.hold_out()
        return choose(view), held_out.open_test()

    @property
    def text(self) -> dict[str, jax.Array]:
        """The prompts' vectors [step, width], as an entry of a batch; empty without text."""
        return {} if self.text_features is None else {"text_features": self.text_features}

    @functools.cached_property
    def example(self) -> dict[str, np.ndarray]:
        """One row of a prepared batch, for its shapes; computed on first use, as only training has targets."""
        with jax.ensure_compile_time_eval():
            return jax.device_get(self._make_example())

    def _make_example(self) -> dict[str, jax.Array]:
        dataset = self.dataset
        batch = {"labels": dataset.labels[:1]}
        if dataset.features is not None:
            features = jnp.zeros((1, dataset.features.shape[1]))
            return {"image_features": features, **{name: jnp.asarray(rows) for name, rows in batch.items()}}
        images = np.zeros((1, *[dataset.preprocessing.size] * 2, 3), np.float32)
        return jax.device_put(self.prepare({"images": images, **batch}))


def load_inputs(
    settings: Settings, workdir: pathlib.Path, terminal: Terminal, *, map_blocks: MapBlocks | None = None
) -> Inputs:
    """Return the data, with the encoders loaded and the features of frozen ones computed."""
    image_encoder: nn.Module | None = None
    prepare, digest = select_entries, ""
    if settings.image_encoder.is_frozen:
        from stepcot_jax.run.frozen_features import load_features  # stores, which a trained encoder never needs

        dataset, digest, encoder = load_features(settings, workdir, terminal, map_blocks)
        prepare = select_entries if encoder is None else functools.partial(_encode, encoder)
    else:
        image_encoder = make_resnet(settings.image_encoder.name)
        dataset = load_dataset(settings, preprocessing=trained_preprocessing(settings), progress=terminal.watch)
    dataset = choose_supervision(settings, dataset)
    text = jax.device_put(encode_prompts(settings, terminal, dataset.chain)) if settings.reads_prompts else None
    return Inputs(dataset, text, image_encoder, prepare, digest)


def choose_supervision(settings: Settings, dataset: Dataset) -> Dataset:
    """Return the cases and labels of a run: of some origins, fewer training cases, labels withheld or shuffled."""
    from stepcot_jax.data.supervision import keep_training_cases, shuffle_chains, withhold  # most runs learn from all

    data = settings.data
    if data.origins:
        dataset = dataset.with_origins(data.origins)
    if data.num_train:
        dataset = keep_training_cases(dataset, data.num_train, seed=data.split_seed)
    if hides_steps(settings):
        dataset = dataset.with_last_step_alone()
    elif _supervises(settings, "shuffled"):
        dataset = shuffle_chains(dataset, seed=data.split_seed)
    if data.withhold_chains or data.withhold_answers:
        dataset = withhold(dataset, chains=data.withhold_chains, answers=data.withhold_answers, seed=data.split_seed)
    return dataset


def describe_supervision(settings: Settings) -> str:
    """Return which training labels are withheld or of other cases, in one line; "" for none."""
    what = {
        "last": "trained and scored on the last step alone",
        "shuffled": "trained with the earlier answers of other cases with the same last answer",
    }
    parts = [f"config.baseline.steps={steps!r}: {what[steps]}" for steps in what if _supervises(settings, steps)]
    shares = {name: getattr(settings.data, name) for name in ("withhold_chains", "withhold_answers")}
    return "; ".join(parts + [f"config.data.{name}={share:g}, in training" for name, share in shares.items() if share])


def _supervises(settings: Settings, steps: str) -> bool:
    return settings.job == "baseline" and settings.baseline.steps == steps


def hides_steps(settings: Settings) -> bool:
    """Return whether a run trains and scores the last step alone."""
    return _supervises(settings, "last")


def load_cases(config: str | pathlib.Path | Mapping[str, Any], **overrides: Any) -> Any:
    """Return the dataset of a config, without a workdir and without precomputed features.

    Args:
      config: name of a shipped config, path of a config file, or a nested mapping.
      **overrides: full names of settings without "config." -> values, such as `**{"data.root": "FOLDER"}`.

    Returns:
      A `Dataset`; for a config that trains a policy a `VqaDataset`.

    Raises:
      BadInput: a setting or the data cannot be used.
    """
    settings = load_settings(config, **overrides)
    if settings.trains_policy:
        return load_vqa_dataset(settings)
    return choose_supervision(settings, load_dataset(settings, preprocessing=trained_preprocessing(settings)))


def select_entries(batch: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of a batch of the pipeline that an update reads."""
    return {name: batch[name] for name in ("images", "image_features", "labels") if name in batch}


def _encode(encoder: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """Return a batch with features, encoded every time, as augmented images differ."""
    encoded = {"image_features": np.asarray(encoder.encode(batch["images"]))}
    return encoded | {name: rows for name, rows in select_entries(batch).items() if name != "images"}


def encode_prompts(settings: Settings, terminal: Terminal, chain: Chain) -> np.ndarray:
    """Return the vector of each step's prompt, float32 [step, width]."""
    if settings.prompts.encoder == "hashed":
        from stepcot_jax.encoders.prompts import hash_prompts, write_prompts

        return hash_prompts(write_prompts(chain, settings.prompts.template), settings.prompts.width)
    from stepcot_jax.run.frozen_features import read_prompts

    return read_prompts(settings, terminal, chain)


# The batches of cases.


def read_ahead(settings: Settings, dataset: Dataset, batches: Batches) -> ReadAhead:
    """Return batches that are read ahead: worker processes decode images, threads look up stored features."""
    num_workers = settings.data.num_workers if dataset.features is None else 0
    return iterate(batches, num_threads=settings.data.batching_threads, num_workers=num_workers)


class Feed:
    """The batches of a run, of which every process loads its own rows."""

    def __init__(self, settings: Settings, inputs: Inputs, devices: Devices) -> None:
        self.settings, self.inputs, self.devices = settings, inputs, devices

    @functools.cached_property
    def shared(self) -> dict[str, jax.Array]:
        """The prompts' vectors [step, width] on every device; empty without text."""
        return {name: self.devices.replicate(vectors) for name, vectors in self.inputs.text.items()}

    def training_batches(self) -> ReadAhead:
        """Return endless batches, to be closed; batch n is a function of the seed and n."""
        settings, dataset = self.settings, self.inputs.dataset
        batches = training_batches(
            dataset,
            batch_size=settings.training.batch_size,
            seed=settings.seed,
            sampling=settings.data.sampling,
            augment=settings.data.augment == "light",
            process_index=jax.process_index(),
            process_count=jax.process_count(),
        )
        return read_ahead(settings, dataset, batches)

    def answer(self, predict: Callable[[dict[str, Any]], Any], split: str) -> Predictions:
        """Return the predictions for a split, the same in every process; each process loads its rows.

        `predict` maps a batch on the devices to logits [case, step, answer] by network, of all processes' rows.
        """
        batches = evaluation_batches(
            self.inputs.dataset,
            split,
            batch_size=self.settings.evaluation.batch_size,
            process_index=jax.process_index(),
            process_count=jax.process_count(),
            multiple_of=self.devices.num_devices,
        )

        def answered(read: ReadAhead) -> Iterator[dict[str, Any]]:
            for batch in read:
                logits = predict(self.devices.put_rows(self.inputs.prepare(batch) | self.shared))
                facts = {name: batch[name] for name in ("labels", "present", "index")}
                yield {**self.devices.gather_rows(facts), "logits": logits}

        with contextlib.closing(read_ahead(self.settings, self.inputs.dataset, batches)) as read:
            return collect(lambda batch: batch["logits"], answered(read))

    def sample(self, split: str, num_cases: int) -> np.ndarray:
        """Return the positions of all cases of a split, or of `num_cases` spread evenly."""
        number = len(self.inputs.dataset.splits.by_name()[split])
        return np.unique(np.linspace(0, number - 1, min(num_cases, number)).round().astype(int))

    def sample_rows(self, split: str, num_cases: int) -> dict[str, Any]:
        """Return prepared rows of a split on the host: all, or `num_cases` spread evenly; alike in every process."""
        parts = list(self.sample_batches(split, num_cases))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def sample_batches(self, split: str, num_cases: int) -> Iterator[dict[str, Any]]:
        """Yield the rows of `sample_rows` in batches, so that the images of many cases need not fit in memory."""
        dataset, members = self.inputs.dataset, self.inputs.dataset.splits.by_name()[split]
        chosen = tuple(members[position] for position in self.sample(split, num_cases))
        batches = evaluation_batches(
            dataclasses.replace(dataset, splits=dataclasses.replace(dataset.splits, **{split: chosen})),
            split,
            batch_size=min(self.settings.evaluation.batch_size, len(chosen)),
        )
        with contextlib.closing(read_ahead(self.settings, dataset, batches)) as read:
            for batch in read:
                rows = jax.device_get(self.inputs.prepare(batch))
                yield {name: array[np.asarray(batch["present"], bool)] for name, array in rows.items()}


# Questions: records as tokens, pictures as network inputs, and files that describe both.


def tokenize_records(
    settings: Settings,
    dataset: "VqaDataset",
    tokenizer: "AnyTokenizer | None",
    *,
    source: "QwenSource | None" = None,
    image_encoder: str = "",
) -> "TokenizedRecords":
    """Return the prompts of all records and the replies of the training split as tokens."""
    from stepcot_jax.policies import records
    from stepcot_jax.policies.policy_files import PolicyLengths
    from stepcot_jax.run.start import naming_start

    tokenizer = make_tokenizer(settings, dataset, source) if tokenizer is None else tokenizer
    encoder = records.RecordEncoder(tokenizer, settings.vqa.dialect, with_thinking=settings.vqa.with_thinking)
    with naming_start(settings):
        prompts = [encoder.encode_prompt(record) for record in dataset.records]
        encoded = {index: encoder.encode(dataset.records[index]) for index in map(int, dataset.splits.train)}
    if tokenizer.closed is None:  # a closed vocabulary decodes every text without loss
        with naming("config.policy.tokenizer"):
            for index, tokens in encoded.items():
                encoder.check_round_trip(dataset.records[index], tokens)
    longest = of_checks = max(len(record.target) for record in encoded.values())
    reply_length = settings.policy.longest_reply or longest
    with naming("config.policy.longest_reply"):
        num_cut = records.count_cut(encoded, reply_length)
    if settings.self_check.enabled and (examples := draw_checks(settings, dataset)):
        with naming_start(settings):
            encoded |= records.encode_checks(examples, encoded, tokenizer)
            of_checks = records.longest_check(examples, tokenizer)
    lengths = PolicyLengths(
        prompt_length=max(map(len, prompts)),
        reply_length=reply_length,
        num_words=tokenizer.num_words,
        largest_coordinate=settings.image_encoder.image_size,
        image_encoder=image_encoder,
    )
    return records.TokenizedRecords(
        tokenizer=tokenizer, prompts=prompts, encoded=encoded, lengths=lengths, longest_check=of_checks, num_cut=num_cut
    )


def draw_checks(settings: Settings, dataset: "VqaDataset") -> "dict[int, CheckExample]":
    """Return the training records that fine-tuning shows with a wrong attempt and a check, by index."""
    from stepcot_jax.data.questions.check_examples import draw_check_examples

    return draw_check_examples(
        dataset.records,
        dataset.splits.train,
        share=settings.self_check.sft_share,
        seed=settings.seed,
        dialect=settings.vqa.dialect,
        hides_check=settings.self_check.context == "first",
    )


def make_tokenizer(settings: Settings, dataset: "VqaDataset", source: "QwenSource | None" = None) -> "AnyTokenizer":
    """Return the tokenizer of a Qwen2.5-VL, the pretrained one that the settings name, or a closed vocabulary."""
    from stepcot_jax.policies import policy_files

    if source is not None:
        return source.read_tokenizer(None if source.folder else count_vocabulary(settings, dataset, source.frame))
    if settings.policy.tokenizer:
        return policy_files.load_pretrained(settings.policy.tokenizer)
    return count_vocabulary(settings, dataset)


def count_vocabulary(settings: Settings, dataset: "VqaDataset", further: Sequence[str] = ()) -> "Vocabulary":
    """Return the closed vocabulary of a dataset's prompts and training replies, and of further texts."""
    from stepcot_jax.data.questions.making import write_texts
    from stepcot_jax.policies.records import check_texts
    from stepcot_jax.policies.tokenizers import Vocabulary
    from stepcot_jax.reasoning.dialects import write_question
    from stepcot_jax.systems.curriculum import stage_texts

    vqa, texts = settings.vqa, list(further)
    for record in dataset.records:
        if record.split == "train":
            texts += write_texts(record, vqa.dialect, with_thinking=vqa.with_thinking)
        else:
            texts.append(write_question(record, vqa.dialect, with_thinking=vqa.with_thinking))
    if settings.curriculum.schedule != "none":
        texts += stage_texts(settings.curriculum, dataset, dialect=vqa.dialect, with_thinking=vqa.with_thinking)
    if settings.self_check.enabled:
        texts += check_texts(draw_checks(settings, dataset))
    return Vocabulary.count(texts, largest=settings.image_encoder.image_size, num_merges=settings.policy.num_merges)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyData:
    """Records and pictures of a run."""

    workdir: pathlib.Path
    dataset: "VqaDataset"  # without the test split's answers and pictures
    test: "HeldOut[VqaDataset]"
    tokens: "TokenizedRecords"
    source: "QwenSource | None"  # of a Qwen2.5-VL
    patches: "PatchInput | None"  # of a frozen encoder; None if the network reads pictures

    @property
    def see(self) -> "See":
        """A function from pictures to the input that is put on the devices."""
        return self.patches or (lambda pictures: pictures)

    def make_prompts(self, indices: Sequence[int] | np.ndarray) -> "Batch":
        """Return images, padded prompts and indices of some records."""
        from stepcot_jax.policies.records import lay_out_prompts

        tokens = self.tokens
        prompts = [tokens.prompts[index] for index in indices]
        laid_out = lay_out_prompts(prompts, tokens.lengths.prompt_length, pad=tokens.tokenizer.pad)
        images = self.dataset.load_images(self.dataset.image_of[np.asarray(indices, int)])
        return {"images": self.see(images), **laid_out, "index": np.asarray(indices, np.int32)}

    def open_test(self) -> "PolicyData":
        """Return this data with the test split, for the final evaluation."""
        return dataclasses.replace(self, dataset=self.test.open_test())

    def write(self) -> None:
        """Write lengths, vocabulary, the test records and the patients of each split."""
        from stepcot_jax.data.questions.record_files import write_vqa_records
        from stepcot_jax.policies.policy_files import LENGTHS_FILE, VOCABULARY_FILE, write_lengths

        write_lengths(self.workdir, self.tokens.lengths)
        if (vocabulary := self.tokens.tokenizer.closed) is not None:
            vocabulary.write(self.workdir / VOCABULARY_FILE)
        seal(self.workdir, [LENGTHS_FILE, VOCABULARY_FILE])
        if self.source is not None:
            self.source.copy_files(self.workdir)
        path = self.workdir / TEST_RECORDS
        path.parent.mkdir(exist_ok=True)
        opened = self.test.open_test()  # copied, not read
        write_vqa_records(path, [opened.records[index] for index in opened.splits.test])
        write_patients(self.workdir, self.dataset)


def load_policy_data(
    settings: Settings,
    *,
    workdir: pathlib.Path,
    terminal: Terminal,
    source: "QwenSource | None",
    start: "StoredPolicy | None",
    patches: "PatchInput | None",
    dataset: "VqaDataset | None" = None,
) -> PolicyData:
    """Return records and pictures, with the records encoded, and for a frozen encoder the pictures too."""
    from stepcot_jax.policies.policy_files import read_lengths
    from stepcot_jax.run.start import refuse_seen_patients

    encoder = "" if patches is None else patches.digest
    if saved_steps(workdir / "checkpoints"):  # before pictures are encoded
        check_encoder(workdir, read_lengths(workdir), patches)
    loaded = dataset or load_vqa_dataset(settings, progress=lambda items: terminal.watch(items, "images"))
    refuse_seen_patients(settings, loaded)
    view, test = loaded.hold_out()
    tokenizer = None if start is None else start.tokenizer
    tokens = tokenize_records(settings, view, tokenizer, source=source, image_encoder=encoder)
    if patches is not None:
        from stepcot_jax.run.frozen_features import store_patches  # stores, which most policies never need

        terminal.say(f"image encoder: {patches.encoder.name}, {patches.shape[0]} patches, frozen")
        patches = store_patches(patches, loaded, settings, workdir, terminal)
    return PolicyData(workdir=workdir, dataset=view, test=test, tokens=tokens, source=source, patches=patches)
