"""The records of a run as tokens: tokenizer, prompts, training targets and their lengths."""

import dataclasses
from collections.abc import Mapping, Sequence

from stepcot_jax.data.questions.check_examples import CheckExample, draw_check_examples
from stepcot_jax.data.questions.vqa_dataset import VqaDataset
from stepcot_jax.policies.policy_files import AnyTokenizer, PolicyLengths, load_pretrained
from stepcot_jax.policies.qwen_inputs import FRAME
from stepcot_jax.policies.records import (
    EncodedRecord,
    RecordEncoder,
    check_texts,
    encode_checks,
    longest_check,
    write_texts,
)
from stepcot_jax.policies.tokenizers import Vocabulary
from stepcot_jax.reasoning.dialects import write_question
from stepcot_jax.run.policy_checks import check_round_trip, count_cut
from stepcot_jax.run.qwen_source import QwenSource
from stepcot_jax.run.settings import Settings
from stepcot_jax.run.start import naming_start
from stepcot_jax.systems.curriculum import stage_texts


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizedRecords:
    """The records of a dataset as tokens.

    Attributes:
      prompts: tokens of each record's prompt, by record index.
      encoded: tokens of each training record, by record index; with self-checks some show a wrong attempt and a check.
      longest_check: tokens of the longest training reply with a self-check.
      num_cut: training replies that are longer than a sampled reply can be.
    """

    tokenizer: AnyTokenizer
    prompts: Sequence[tuple[int, ...]]
    encoded: Mapping[int, EncodedRecord]
    lengths: PolicyLengths
    longest_check: int
    num_cut: int


def tokenize_records(
    settings: Settings,
    dataset: VqaDataset,
    tokenizer: AnyTokenizer | None,
    *,
    source: QwenSource | None = None,
    image_encoder: str = "",
) -> TokenizedRecords:
    """Return the prompts of all records and the replies of the training split as tokens.

    Args:
      tokenizer: of the run that this one starts from; None for the tokenizer of the settings.
    """
    tokenizer = make_tokenizer(settings, dataset, source) if tokenizer is None else tokenizer
    encoder = RecordEncoder(tokenizer, settings.vqa.dialect, with_thinking=settings.vqa.with_thinking)
    train = [int(index) for index in dataset.splits["train"]]
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
        tokenizer=tokenizer,
        prompts=prompts,
        encoded=encoded,
        lengths=lengths,
        longest_check=of_checks,
        num_cut=num_cut,
    )


def draw_checks(settings: Settings, dataset: VqaDataset) -> dict[int, CheckExample]:
    """Return the training records that fine-tuning shows with a wrong attempt and a check, by index."""
    return draw_check_examples(
        dataset.records,
        dataset.splits["train"],
        share=settings.self_check.sft_share,
        seed=settings.seed,
        dialect=settings.vqa.dialect,
        hides_check=settings.self_check.context == "first",
    )


def make_tokenizer(settings: Settings, dataset: VqaDataset, source: QwenSource | None = None) -> AnyTokenizer:
    """Return the tokenizer of a Qwen2.5-VL, the pretrained one that the settings name, or a closed vocabulary.

    The vocabulary is counted on the prompts of all splits and the replies of the training split: no word of a held-out
    answer enters it, and no question is unreadable.
    """
    if source is not None:
        return source.read_tokenizer(None if source.folder else count_vocabulary(settings, dataset, FRAME))
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
