"""The data of a policy's run: records as tokens, pictures as network inputs, and files that describe both."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from stepcot_jax.data.dataset import HeldOut
from stepcot_jax.data.questions.check_examples import CheckExample, draw_check_examples
from stepcot_jax.data.questions.making import write_texts
from stepcot_jax.data.questions.record_files import write_vqa_records
from stepcot_jax.data.questions.vqa_dataset import VqaDataset
from stepcot_jax.evaluation.replies import ReplyScore
from stepcot_jax.features.patch_input import PatchInput
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.policies.policy_files import (
    LENGTHS_FILE,
    VOCABULARY_FILE,
    AnyTokenizer,
    PolicyLengths,
    load_pretrained,
    read_lengths,
    write_lengths,
)
from stepcot_jax.policies.records import (
    EncodedRecord,
    RecordEncoder,
    check_texts,
    encode_checks,
    lay_out_prompts,
    longest_check,
)
from stepcot_jax.policies.tokenizers import Vocabulary
from stepcot_jax.reasoning.dialects import read_reply, write_question
from stepcot_jax.record import Record
from stepcot_jax.run.loading import load_vqa_dataset
from stepcot_jax.run.settings import Settings
from stepcot_jax.run.start import naming_start, refuse_seen_patients
from stepcot_jax.run.stored import StoredPolicy, check_encoder, seal, write_patients
from stepcot_jax.systems.curriculum import stage_texts
from stepcot_jax.systems.sft import See
from stepcot_jax.training.checkpoints import saved_steps
from stepcot_jax.training.system import Batch

if TYPE_CHECKING:
    from stepcot_jax.run.qwen_source import QwenSource


def count_cut(encoded: Mapping[int, EncodedRecord], reply_length: int) -> int:
    """Return the number of training replies that are longer than a sampled reply can be."""
    lengths = [len(record.target) for record in encoded.values()]
    number = sum(length > reply_length for length in lengths)
    if number == len(lengths):
        raise BadInput(
            f"config.policy.longest_reply: {reply_length} tokens cut every training reply, so that none can be well "
            f"formed; they have {min(lengths)} to {max(lengths)} (0: as many as the longest)"
        )
    return number


def check_round_trip(encoder: RecordEncoder, records: Sequence[Record], encoded: Mapping[int, EncodedRecord]) -> None:
    """Refuse a tokenizer that changes scored parts of a reply, such as one without capital letters or line breaks."""
    for index, tokens in encoded.items():
        reply, decoded = encoder.texts(records[index])[1], encoder.tokenizer.decode(tokens.target)
        if decoded == reply:
            continue
        readings = [read_reply(text, encoder.dialect, with_thinking=encoder.with_thinking) for text in (reply, decoded)]
        written, read_back = ((reading.answer, reading.references, reading.problems) for reading in readings)
        if written != read_back:
            raise BadInput(
                f"config.policy.tokenizer: decoding changes the reply of record {records[index].id[:80]!r} to "
                f"{decoded[-80:]!r}; expected the answer and boxes of {reply[-80:]!r}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizedRecords:
    """The records of a dataset as tokens."""

    tokenizer: AnyTokenizer
    prompts: Sequence[tuple[int, ...]]  # by record index
    encoded: Mapping[int, EncodedRecord]  # by index of training records; some show a wrong attempt and a check
    lengths: PolicyLengths
    longest_check: int  # tokens of the longest training reply with a self-check
    num_cut: int  # training replies that are longer than a sampled reply can be


def tokenize_records(
    settings: Settings,
    dataset: VqaDataset,
    tokenizer: AnyTokenizer | None,
    *,
    source: "QwenSource | None" = None,
    image_encoder: str = "",
) -> TokenizedRecords:
    """Return the prompts of all records and the replies of the training split as tokens."""
    tokenizer = make_tokenizer(settings, dataset, source) if tokenizer is None else tokenizer
    encoder = RecordEncoder(tokenizer, settings.vqa.dialect, with_thinking=settings.vqa.with_thinking)
    train = [int(index) for index in dataset.splits.train]
    with naming_start(settings):
        prompts = [encoder.encode_prompt(record) for record in dataset.records]
        encoded = {index: encoder.encode(dataset.records[index]) for index in train}
    if tokenizer.closed is None:  # a closed vocabulary decodes every text without loss
        check_round_trip(encoder, dataset.records, encoded)
    longest = of_checks = max(len(record.target) for record in encoded.values())
    reply_length = settings.policy.longest_reply or longest
    num_cut = count_cut(encoded, reply_length)
    if settings.self_check.enabled and (examples := draw_checks(settings, dataset)):
        with naming_start(settings):
            encoded |= encode_checks(examples, encoded, tokenizer)
            of_checks = longest_check(examples, tokenizer)
    lengths = PolicyLengths(
        prompt_length=max(map(len, prompts)),
        reply_length=reply_length,
        num_words=tokenizer.num_words,
        largest_coordinate=settings.image_encoder.image_size,
        image_encoder=image_encoder,
    )
    return TokenizedRecords(
        tokenizer=tokenizer, prompts=prompts, encoded=encoded, lengths=lengths, longest_check=of_checks, num_cut=num_cut
    )


def draw_checks(settings: Settings, dataset: VqaDataset) -> dict[int, CheckExample]:
    """Return the training records that fine-tuning shows with a wrong attempt and a check, by index."""
    return draw_check_examples(
        dataset.records,
        dataset.splits.train,
        share=settings.self_check.sft_share,
        seed=settings.seed,
        dialect=settings.vqa.dialect,
        hides_check=settings.self_check.context == "first",
    )


def make_tokenizer(settings: Settings, dataset: VqaDataset, source: "QwenSource | None" = None) -> AnyTokenizer:
    """Return the tokenizer of a Qwen2.5-VL, the pretrained one that the settings name, or a closed vocabulary."""
    if source is not None:
        return source.read_tokenizer(None if source.folder else count_vocabulary(settings, dataset, source.frame))
    if settings.policy.tokenizer:
        return load_pretrained(settings.policy.tokenizer)
    return count_vocabulary(settings, dataset)


def count_vocabulary(settings: Settings, dataset: VqaDataset, further: Sequence[str] = ()) -> Vocabulary:
    """Return the closed vocabulary of a dataset's prompts and training replies, and of further texts."""
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


@dataclasses.dataclass(frozen=True)
class Answered:
    """Questions with replies."""

    records: Sequence[Record]
    texts: Sequence[str]
    scores: Sequence[ReplyScore]


TEST_RECORDS = "records/test.jsonl"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyData:
    """Records and pictures of a run."""

    workdir: pathlib.Path
    dataset: VqaDataset  # without the test split's answers and pictures
    test: HeldOut[VqaDataset]
    tokens: TokenizedRecords
    source: "QwenSource | None"  # of a Qwen2.5-VL
    patches: PatchInput | None  # of a frozen encoder; None if the network reads pictures

    @property
    def see(self) -> See:
        """A function from pictures to the input that is put on the devices."""
        return self.patches or (lambda pictures: pictures)

    def make_prompts(self, indices: Sequence[int] | np.ndarray) -> Batch:
        """Return images, padded prompts and indices of some records."""
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
    start: StoredPolicy | None,
    patches: PatchInput | None,
    dataset: VqaDataset | None = None,
) -> PolicyData:
    """Return records and pictures, with the records encoded, and for a frozen encoder the pictures too."""
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
