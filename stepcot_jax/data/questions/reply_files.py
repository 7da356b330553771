"""Files of replies: JSON lines with `id`, `reply` and optionally `finish_reason`, matched with the records."""

import collections
import dataclasses
import logging
import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from stepcot_jax.data.questions.record_files import read_lines
from stepcot_jax.data.records.data_json import split_message
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.untrusted import resolve
from stepcot_jax.reasoning.endings import Finish, read_finish
from stepcot_jax.reasoning.replies import Missing

_LOG = logging.getLogger(__name__)

_LONGEST_LINE = 2**25
_EXPECTED = 'expected one reply per line, as JSON: {"id": "..", "reply": ".."}'


_Side = Annotated[int, msgspec.Meta(ge=1, le=2**20)]


class ReplyLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of a file of replies. Further fields are ignored, so that a model's log can be used unchanged."""

    id: str | int  # of the record that it answers; a number is taken as text
    reply: str | None  # everything that the model wrote; "" for nothing; None where asking failed
    finish_reason: str | None = None  # why the model ended, as an endpoint says it: `reasoning.endings.read_finish`
    refusal: str | None = None  # text of a refusal, as OpenAI's endpoint returns it beside an empty reply
    error: str | None = None  # what failed; a line without a reply needs it, and counts as a missing reply
    image_size: tuple[_Side, _Side] | None = None  # of the picture that boxes in pixels refer to, if not the record's
    person: str | msgspec.UnsetType | None = msgspec.UNSET  # the answer that a person reads; None for no answer


_DECODER = msgspec.json.Decoder(ReplyLine)

# The only group matches half of a surrogate pair; complete pairs and other escapes are skipped with their backslash.
_ESCAPES = re.compile(
    rb"\\(?:u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2}|(u[dD][89a-fA-F][\da-fA-F]{2})|.)", re.DOTALL
)


@dataclasses.dataclass(frozen=True)
class ReplyFile:
    """The replies of one model."""

    name: str  # of the model, in tables
    path: Path
    replies: Mapping[str, str]  # texts by record id, of the chosen records only
    finishes: Mapping[str, Finish] = dataclasses.field(default_factory=dict)  # by record id, where the file says it
    image_sizes: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)  # the same
    people: Mapping[str, str | None] = dataclasses.field(default_factory=dict)  # what a person reads, the same
    failures: Mapping[str, int] = dataclasses.field(default_factory=dict)  # chosen records without a reply, by reason
    num_unused: int = 0  # replies to records of other splits
    num_set_aside: int = 0  # replies to bad lines of the records' file
    num_unknown: int = 0  # replies whose id is of no record that can be read


def read_replies(
    path: Path,
    *,
    name: str,
    chosen: Collection[str],
    known: Collection[str],
    missing: Missing = "wrong",
    set_aside: Collection[str] = (),
    most_unknown: int = 0,
) -> ReplyFile:
    """Read the replies of one model."""
    replies: dict[str, str] = {}
    finishes: dict[str, Finish] = {}
    image_sizes: dict[str, tuple[int, int]] = {}
    people: dict[str, str | None] = {}
    seen: dict[str, int] = {}
    failures = collections.Counter[str]()
    num_set_aside, num_unknown = 0, 0
    unknown = collections.Counter[str]()
    for number, content in read_lines(path, expected=_EXPECTED, most_bytes=_LONGEST_LINE):
        where = f"{path}, line {number}"
        line, finish = _read_line(content, where)
        answered = str(line.id)
        if line.finish_reason and not finish:
            unknown[line.finish_reason[:40]] += 1
        if answered in seen:
            raise BadInput(
                f"{where}, id: {answered[:80]!r} came in line {seen[answered]}; expected one reply per record"
            )
        if answered not in known and answered in set_aside:
            num_set_aside += 1
        elif answered not in known:
            num_unknown += 1
            if num_unknown > most_unknown:
                problem = f"{where}, id: {answered[:80]!r} is not the id of a record"
                bad = f" and of {most_unknown} bad lines without a readable id" if most_unknown else ""
                raise BadInput(f"{problem}; expected one of the records' ids{bad}")
        seen[answered] = number
        if answered in chosen and line.reply is None:
            failures[(line.error or "").partition(":")[0][:40]] += 1
        elif answered in chosen and line.reply is not None:
            replies[answered] = line.reply
            finishes |= {answered: finish} if finish else {}
            image_sizes |= {answered: line.image_size} if line.image_size else {}
            people |= {} if line.person is msgspec.UNSET else {answered: line.person}
    absent = [record_id for record_id in chosen if record_id not in replies]
    if absent and missing == "stop":
        raise BadInput(f"{path}: no reply to {len(absent)} of {len(chosen)} records, the first {absent[0][:80]!r}")
    if not replies:
        raise BadInput(f"{path}: no reply to any of the {len(chosen)} chosen records; {_EXPECTED}")
    if unknown:
        words = ", ".join(f"{word!r} ({count})" for word, count in unknown.most_common(3))
        _LOG.warning("%s: %d replies have a finish_reason that is not known: %s", path, unknown.total(), words)
    num_unused = len(seen) - len(replies) - failures.total() - num_set_aside - num_unknown
    return ReplyFile(
        name, path, replies, finishes, image_sizes, people, failures, num_unused, num_set_aside, num_unknown
    )


def _read_line(content: bytes, where: str) -> tuple[ReplyLine, Finish]:
    """Return a line, and how the model ended; "" if the line does not say it in known words."""
    try:
        line = _decode(content)
        if line.reply is None and not line.error:
            raise BadInput("reply: null without an error; expected a text")
        return line, "refusal" if line.refusal else read_finish(line.finish_reason or "")
    except BadInput as error:
        raise BadInput(f"{where}, {error}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        field, message = split_message(error, content)
        raise BadInput(f"{where}, {f'{field}: ' if field else ''}{message}; {_EXPECTED}") from None


def _decode(content: bytes) -> ReplyLine:
    """Decode a line; half of a surrogate pair, which a model may write and Python's json passes on, becomes U+FFFD."""
    try:
        return _DECODER.decode(content)
    except msgspec.DecodeError:
        mended = _ESCAPES.sub(lambda match: rb"\ufffd" if match[1] else match[0], content)
        if mended == content:
            raise
        return _DECODER.decode(mended)


def name_models(paths: Sequence[Path]) -> list[str]:
    """Return a name for each file: its stem, with its folder where stems repeat, else its path."""
    if len({resolve(path) for path in paths}) < len(paths):
        raise BadInput(f"REPLIES: a file comes twice in {' '.join(map(str, paths))}")
    for named in ([path.stem for path in paths], [f"{path.parent.name}/{path.stem}" for path in paths]):
        if len({as_text(name) for name in named}) == len(named):
            return [as_text(name) for name in named]
    return [as_text(path) for path in paths]


def as_text(path: Path | str) -> str:
    r"""Return a path, or a part of one, as text; bytes that are not UTF-8 as escapes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
