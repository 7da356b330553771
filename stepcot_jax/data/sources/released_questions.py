"""Released questions as records: the three kinds of GEMeX's files, and MEDSAGE's conversations.

GEMeX-RMCoT, Section 3: no release states the size of the picture that its boxes refer to, so the caller must.
MEDSAGE, Section 3.1 (training tuple) and public code: trajectories through the stages L, V, K, C, and bare answers.
"""

import re
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from stepcot_jax import chain
from stepcot_jax.box import Box, Corners
from stepcot_jax.chain import fold
from stepcot_jax.data.questions.record_files import read_lines
from stepcot_jax.data.records import data_json
from stepcot_jax.data.records.data_json import ImageLocator, normalise_image_path
from stepcot_jax.data.records.json_arrays import find_no_json, read_raw_records
from stepcot_jax.data.records.records import OnBadRecord
from stepcot_jax.data.sources.delimited import read_table
from stepcot_jax.data.sources.intake import Sorting, read_image_size
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import one_line
from stepcot_jax.host.untrusted import open_untrusted
from stepcot_jax.reasoning.answers import read_answer
from stepcot_jax.reasoning.dialects import read_reply
from stepcot_jax.reasoning.replies import Reply
from stepcot_jax.record import KINDS, STAGE_NAMES, Kind, Record, SetAside, Stages

# Files: undecoded records, one at a time; bad ones stop or are set aside.

TABLE_SUFFIXES = (".jsonl", ".json", ".csv")
T = TypeVar("T")


class NotARecord(BadInput):
    """A valid record that is not a question with an answer about one image."""


def iterate_records(
    paths: Iterable[Path],
    read: Callable[..., Record],
    *,
    root: Path,
    box_size: tuple[int, int] | None,
    on_bad_record: OnBadRecord,
    require_images: bool,
    set_aside: list[SetAside] | None,
) -> Iterator[Record]:
    """Yield the records of files; bad ones stop or are set aside, those that `read` excludes are set aside."""
    locator = ImageLocator(root, require_images=require_images)
    for path in paths:
        sorting = Sorting(path, on_bad_record=on_bad_record, set_aside=set_aside)
        for location, fields in read_objects(path):
            try:
                if isinstance(fields, BadInput):
                    raise fields
                record = read(fields, path=path, location=location, locator=locator, box_size=box_size)
            except NotARecord as error:
                sorting.leave_out(f"{location}, {error}")
                continue
            except BadInput as error:
                sorting.refuse(f"{location}, {error}")
                continue
            sorting.count()
            yield record
        sorting.finish()


def read_objects(path: Path) -> Iterator[tuple[str, dict[str, Any] | BadInput]]:
    """Yield the location and the content of each record, one at a time, or why it cannot be decoded."""
    if path.suffix.lower() == ".csv":
        header, rows = read_table(path, known_columns=())
        for row in rows:
            if len(row.cells) == len(header):
                yield f"row {row.number}", dict(zip(header, row.cells, strict=True))
            else:
                yield f"row {row.number}", BadInput(f"has {len(row.cells)} cells; expected {len(header)}")
    elif _is_array(path):
        for number, raw in enumerate(read_raw_records(path)):
            yield f"record {number}", _decode(raw)
    else:
        for number, line in read_lines(path, expected="expected one JSON object per line"):
            yield f"line {number}", _decode(line)


def _is_array(path: Path) -> bool:
    try:
        with open_untrusted(path, accepted="a JSON file") as file:
            return file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"["
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from None


def _decode(raw: bytes) -> dict[str, Any] | BadInput:
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        found = find_no_json(raw)
        return BadInput(f"{': '.join(found) if found else one_line(error)}; expected a JSON object")


def _convert(fields: dict[str, Any], kind: type[T]) -> T:
    """Return a record's fields as a checked type; unknown fields are ignored."""
    try:
        return msgspec.convert(fields, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        field, message = data_json.split_message(error)
        raise BadInput(f"{field}: {message}" if field else message) from None


# Parts of a record that both releases have: question and choices, image, answer, boxes.

_FIRST_CHOICE = re.compile(r"\s*(\(?)A([:.)])")
_CHOICES_MARK = "<choices>:"
_IMAGE_MARK = "<image>"
_UNNAMED = "region"  # label of a box without a name in the release
_ANY_ANSWER: dict[Kind, str | tuple[str, ...]] = {"open": "-", "closed": "Yes", "single": "A", "multi": ("A",)}
_REPLY = "conversations[1].value"


class _Turn(msgspec.Struct, frozen=True, rename={"speaker": "from"}):
    speaker: str
    value: str


def strip_letters(choices: Sequence[str]) -> tuple[str, ...]:
    """Return choices without "A: ", "B: " and so on, which each must have."""
    bare = chain.strip_letters(choices)
    if choices and bare == tuple(choices):
        pairs = enumerate(zip(choices, string.ascii_uppercase, strict=False))
        bad = ((k, letter) for k, (choice, letter) in pairs if not choice.lstrip(" (").startswith(letter))
        index, letter = next(bad, (0, "A"))
        raise BadInput(f"choices[{index}]: {choices[index][:80]!r}; expected a text after {letter + ': '!r} (2 to 26)")
    return bare


def split_question(text: str) -> tuple[str, tuple[str, ...]]:
    r"""Return question and bare choices of a prompt; text after the choices' bracket is left out."""
    question, mark, rest = text.strip().removeprefix(_IMAGE_MARK).partition(_CHOICES_MARK)
    if not mark:
        return question.strip(), ()
    opening, closing = rest.find("["), rest.rfind("]")
    if opening < 0 or closing < opening or rest[:opening].strip():
        raise BadInput(f"choices: {rest[:80]!r} is not '[A: .., B: ..]'")
    inner, pieces = rest[opening + 1 : closing], []
    first = _FIRST_CHOICE.match(inner)
    before, behind = first.groups() if first else ("", ":")
    start = 0
    for letter in string.ascii_uppercase[1:]:
        position = inner.find(f", {before}{letter}{behind}", start)
        if position < 0:
            break
        pieces.append(inner[start:position])
        start = position + 2
    return question.strip(), strip_letters([*pieces, inner[start:]])


def _locate_image(locator: ImageLocator, image_path: str) -> tuple[str, str]:
    """Return an image's normal path below the root, and its real path; a leading slash is dropped."""
    path = image_path.strip().lstrip("/")
    try:
        real_path = locator.locate(path)
    except BadInput as error:
        raise BadInput(f"image_path: {error}") from None
    return normalise_image_path(path), real_path


def _make_record(written: str, *, kind: Kind, field: str = "answer", **fields: Any) -> Record:
    """Return a record with the answer read from its text, as `reasoning.replies.read_answer` reads it."""
    record = Record(kind=kind, answer=_ANY_ANSWER[kind], **fields)
    answer = written.strip() if kind == "open" else read_answer(written, record)
    if answer is None:
        raise BadInput(f"{field}: {written[:80]!r} is no readable answer of kind {kind!r}")
    return msgspec.structs.replace(record, answer=answer)


def _read_reply(text: str, dialect: str, *, field: str = _REPLY) -> Reply:
    reply = read_reply(text, dialect)
    if reply.problems:
        raise BadInput(f"{field}: {reply.problems[0]} (dialect {dialect!r})")
    return reply


def _label(names: Iterable[str], boxes: Iterable[Corners], *, field: str) -> tuple[Box, ...]:
    made = []
    for number, (name, box) in enumerate(zip(names, boxes, strict=True)):
        try:
            made.append(Box(name, box).check())
        except BadInput as error:
            raise BadInput(f"{field.format(number)}: {error}") from None
    return tuple(made)


# GEMeX: test records, training conversations and the thinking columns of GEMeX-RMCoT.

_MIMIC_PATIENT = re.compile(r"(?:^|/)(p[0-9]{8})(?=/)")


class _TestRecord(msgspec.Struct, frozen=True):
    question: str
    answer: str | list[str]
    visual_regions: list[str]
    visual_locations: list[Corners]
    image_path: str
    choices: list[str] | None = None
    type: str = ""
    reason: str = ""
    q_id: str | int = ""


class _TrainingRecord(msgspec.Struct, frozen=True):
    conversations: list[_Turn]
    q_type: str
    image: str
    type_prompt: str = ""
    row_id: str | int = ""


class _ThinkingRecord(msgspec.Struct, frozen=True):
    image_path: str
    question: str
    question_type: str
    thinkVG: str  # noqa: N815
    response: str


def is_gemex(keys: set[str]) -> bool:
    """Return whether a record with these fields is one of GEMeX."""
    return bool(keys & {"visual_locations", "thinkVG"}) or {"conversations", "q_type"} <= keys


def read_gemex(
    fields: dict[str, Any], *, path: Path, location: str, locator: ImageLocator, box_size: tuple[int, int]
) -> Record:
    """Return a record of a GEMeX file; the patient is that of a MIMIC-CXR path, else there is one per image."""
    if "conversations" in fields:
        made = _read_training(_convert(fields, _TrainingRecord))
    elif "thinkVG" in fields:
        made = _read_thinking(_convert(fields, _ThinkingRecord))
    else:
        made = _read_test(_convert(fields, _TestRecord), path=path)
    image_path, _ = _locate_image(locator, made.pop("image"))
    patient = _MIMIC_PATIENT.search(image_path)
    licence = "MIMIC-CXR-JPG: credentialed access (PhysioNet)"
    made["provenance"] |= {"file": path.name, "row": location, "licence": licence}
    return _make_record(
        id=f"{path.name}:{location.rpartition(' ')[2]}",
        image=image_path,
        image_size=box_size,
        patient=patient[1] if patient else image_path,
        origin="GEMeX",
        modality="xray",
        **made,
    )


def _read_test(record: _TestRecord, *, path: Path) -> dict[str, Any]:
    if len(record.visual_regions) != len(record.visual_locations):
        shown = f"{len(record.visual_locations)} boxes of {len(record.visual_regions)} regions"
        raise BadInput(f"visual_locations: {shown}; expected one box per region")
    return {
        "written": record.answer if isinstance(record.answer, str) else ", ".join(record.answer),
        "kind": _kind_of_test(record, path),
        "question": record.question.strip(),
        "options": strip_letters(record.choices or ()),
        "references": _label_regions(record.visual_regions, record.visual_locations),
        "thinking": record.reason.strip(),
        "topic": record.type,
        "split": "test",
        "image": record.image_path,
        "provenance": {"record": "GEMeX test record", "q_id": str(record.q_id)},
    }


def _read_training(record: _TrainingRecord) -> dict[str, Any]:
    speakers = [turn.speaker for turn in record.conversations]
    if speakers != ["human", "gpt"]:
        raise BadInput(f"conversations: turns of {speakers[:6]}; expected human, gpt")
    question, choices = split_question(record.conversations[0].value.strip().removesuffix(record.type_prompt.strip()))
    return _from_reply(_read_reply(record.conversations[1].value, "gemex_plain")) | {
        "kind": _kind_of_name(record.q_type, field="q_type"),
        "question": question,
        "options": choices,
        "image": record.image,
        "provenance": {"record": "GEMeX training record", "row_id": str(record.row_id)},
    }


def _read_thinking(record: _ThinkingRecord) -> dict[str, Any]:
    thinking = record.thinkVG.strip()
    if not thinking.startswith("<think>"):
        thinking = f"<think>{thinking}</think>"
    reply = _read_reply(f"{thinking}{record.response.strip()}", "gemex", field="thinkVG, response")
    question, choices = split_question(record.question)
    return _from_reply(reply) | {
        "kind": _kind_of_name(record.question_type, field="question_type"),
        "question": question,
        "options": choices,
        "image": record.image_path,
        "provenance": {"record": "GEMeX-RMCoT"},
    }


def _from_reply(reply: Reply) -> dict[str, Any]:
    regions = reply.references or ()
    names, boxes = [region.label or _UNNAMED for region in regions], [region.corners for region in regions]
    return {
        "written": reply.answer or "",
        "references": _label_regions(names, boxes),
        "thinking": reply.thinking,
        "split": "train",
    }


def _label_regions(names: Iterable[str], boxes: Iterable[Corners]) -> tuple[Box, ...]:
    return _label(map(str.strip, names), boxes, field="visual_locations[{}]")


def _kind_of_name(name: str, *, field: str) -> Kind:
    """Return the kind of "single_choice_questions", "single-choice" or "single"."""
    for kind in KINDS:
        if name.strip().lower().startswith(kind):
            return kind
    raise BadInput(f"{field}: {name[:80]!r} is not a question type; expected {', '.join(KINDS)}")


def _kind_of_test(record: _TestRecord, path: Path) -> Kind:
    """Return the one kind that the file's name has, else the kind that choices and answer show."""
    named = [kind for kind in KINDS if kind in path.stem.lower()]
    if len(named) == 1:
        return named[0]
    if record.choices:
        return "single" if isinstance(record.answer, str) else "multi"
    is_closed = isinstance(record.answer, str) and record.answer.strip(" .").lower() in ("yes", "no")
    return "closed" if is_closed else "open"


# MEDSAGE: a record is a conversation of one turn of a human and one of a model.

_TAGS = re.compile("<(LOC|VISUAL|VIS|KNOWLEDGE|KNO|CON|ANSWER)>")
_PRINTED, _RELEASED = ("VISUAL", "KNOWLEDGE", "ANSWER"), ("VIS", "KNO")
_LETTERS = re.compile(r"\(?[A-Z][.)]?(?:\s*,\s*\(?[A-Z][.)]?)*")


class _Conversation(msgspec.Struct, frozen=True):
    conversations: list[_Turn]
    images: list[str] | None = None
    id: str | int = ""


def is_medsage(keys: set[str]) -> bool:
    """Return whether a record with these fields is a conversation of MEDSAGE."""
    return "conversations" in keys and "q_type" not in keys


def read_medsage(
    fields: dict[str, Any], *, path: Path, location: str, locator: ImageLocator, box_size: tuple[int, int] | None
) -> Record:
    """Return a record of a MEDSAGE file; without `box_size` the size is that of the image's file."""
    conversation = _convert(fields, _Conversation)
    speakers = [turn.speaker for turn in conversation.conversations]
    if speakers != ["human", "gpt"]:
        raise NotARecord(f"conversations: turns of {speakers[:6]}; a record is one of human and one of gpt")
    images = conversation.images or []
    if len(images) != 1:
        raise NotARecord(f"images: {len(images)} images; a record is about one")
    prompt, response = (turn.value for turn in conversation.conversations)
    made, reply = _read_response(response)
    image_path, real_path = _locate_image(locator, images[0])
    if box_size is None and not Path(real_path).is_file():
        raise BadInput("images: the image's file is missing, so --box-size is required")
    size = box_size or read_image_size(Path(real_path))
    references: tuple[Box, ...] = ()
    if reply is not None:
        names = (region.label.strip() or _UNNAMED for region in reply.references or ())
        references = _label(names, map(tuple, reply.boxes(size).tolist()), field="<LOC>, box {}")
    question, choices = split_question(prompt)
    licence = "of the image collections that MEDSAGE draws from"
    return _make_record(
        id=f"{path.name}:{location.rpartition(' ')[2]}",
        kind=_find_kind(made["written"], choices, prompt=prompt),
        field=_REPLY,
        image=image_path,
        image_size=size,
        patient=image_path,
        origin="MEDSAGE",
        question=question,
        options=choices,
        references=references,
        provenance={"file": path.name, "row": location, "licence": licence} | made.pop("provenance"),
        **made,
    )


def _read_response(response: str) -> tuple[dict[str, Any], Reply | None]:
    tags = set(_TAGS.findall(response))
    if not tags:
        return {"written": response, "cue": "image", "provenance": {"record": "answer only"}}, None
    dialect = "lvkc" if tags & set(_PRINTED) else "lvkc_released"
    if len(tags) == 1:
        raise NotARecord(f"{_REPLY}: the single stage <{tags.pop()}>; a record has all and an answer")
    if dialect == "lvkc" and tags & set(_RELEASED):
        raise BadInput(f"{_REPLY}: tags of two dialects ({', '.join(sorted(tags))})")
    reply = _read_reply(response, dialect)
    made = {
        "written": reply.answer or "",
        "preamble": reply.preamble,
        "stages": _stages(reply),
        "cue": "box" if reply.references else "text",
        "provenance": {"record": f"trajectory, dialect {dialect}"},
    }
    return made, reply


def _stages(reply: Reply) -> Stages:
    """Return the four texts; the released dialect locates only by boxes, so its localisation states their number."""
    number = len(reply.references or ())
    located = f"{number} located region{'' if number == 1 else 's'}."
    texts = dict.fromkeys(STAGE_NAMES, "") | dict(reply.stages)
    texts["localisation"] = texts["localisation"] or located
    return Stages(**texts)


def _find_kind(written: str, choices: Sequence[str], *, prompt: str) -> Kind:
    """Return the kind of a question; with choices, a prompt that says so or several letters make it "multi"."""
    if choices and "multi-choice" in prompt:
        return "multi"
    if choices:
        return "multi" if "," in written and _LETTERS.fullmatch(written.strip()) else "single"
    if fold(written).rstrip(".") in ("yes", "no"):
        return "closed"
    if _LETTERS.fullmatch(written.strip()):
        raise NotARecord(f"{_REPLY}: the answer {written.strip()[:80]!r} without '<choices>: [A: ..]'")
    return "open"
