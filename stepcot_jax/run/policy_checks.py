"""Checks before a policy's run trains: phases, longest reply, and a tokenizer that decodes replies without loss."""

from collections.abc import Mapping, Sequence

from stepcot_jax.host.errors import BadInput
from stepcot_jax.policies.records import EncodedRecord, RecordEncoder
from stepcot_jax.reasoning.dialects import read_reply
from stepcot_jax.record import Record
from stepcot_jax.run.settings import Settings


def check_epochs(settings: Settings) -> None:
    """Refuse a run without updates."""
    has_grpo = "grpo.epochs" in settings.trains.epochs
    if settings.sft.epochs or (has_grpo and settings.grpo.epochs):
        return
    other = " and config.grpo.epochs=0" if has_grpo else ""
    raise BadInput(f"config.sft.epochs: 0 with {settings.named_job}{other} leaves nothing to train")


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
        written, read_back = (
            read_reply(text, encoder.dialect, with_thinking=encoder.with_thinking) for text in (reply, decoded)
        )
        if (written.answer, written.references, written.problems) != (
            read_back.answer,
            read_back.references,
            read_back.problems,
        ):
            raise BadInput(
                f"config.policy.tokenizer: decoding changes the reply of record {records[index].id[:80]!r} to "
                f"{decoded[-80:]!r}; expected the answer and boxes of {reply[-80:]!r}"
            )
