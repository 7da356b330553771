"""The folder of an audit: records of all variants with pictures, prompts, a model's replies, and its figures."""

import dataclasses
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from stepcot_jax.data.images.drawn_boxes import write_png
from stepcot_jax.data.images.preprocessing import decode_image
from stepcot_jax.data.questions.record_files import FILE_NAME, read_vqa_records, write_vqa_records
from stepcot_jax.data.questions.reply_files import read_replies
from stepcot_jax.data.questions.variants import (
    AGREE,
    CONDITION,
    COUNTERFACTUAL,
    LAST,
    LOOKS,
    OWN,
    THINKS,
    VARIANT,
    Pixels,
    group_subjects,
    vary_picture,
)
from stepcot_jax.evaluation.audits import CASES, Row, Scored, audit_pictures, audit_thinking, made_of
from stepcot_jax.evaluation.replies import ReplyScore, ScoringSettings, score_all
from stepcot_jax.evaluation.unread import WARNING, UnreadParts, count_unread, describe_unread
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import write_whole
from stepcot_jax.pages.pictures import write_picture
from stepcot_jax.pages.sheets import Column, Table, columns
from stepcot_jax.pages.sheets import Row as SheetRow
from stepcot_jax.pages.shell import SHARED, Section, render, tabulate
from stepcot_jax.reasoning.thinking import in_words, subject_of
from stepcot_jax.record import KINDS, Record

THINKING, REPLIES, THINKING_REPLIES = "thinking.jsonl", "replies.jsonl", "thinking_replies.jsonl"
CHAIN_SCORING = ScoringSettings("medclm", with_thinking=False)
"""How replies to questions about the steps of a chain are written: "Answer: B"."""

_PICTURES = "pictures"
_TAKEN_FROM = "audit_replies"  # in the provenance of a thinking: digest of the replies that it is taken from
_MOST_EXAMPLES = 6
_SHARE = re.compile(r"0(\.[0-9]{1,9})?|1(\.0{1,9})?")
_ROW = ".audit-row { grid-template-columns: repeat(auto-fill, minmax(min(100%, 9.5rem), 1fr)); }"
_TITLES = {
    "looks": "Looks: the same questions about other pictures",
    "thinks": "Thinks: answers after other thinkings ({})",
    "counterfactual": "Counterfactual: the same chest without a finding",
}
_NOTES = {
    "looks": (
        "A donor is another patient whose true answer to the same question is another; noise and grey have the "
        "picture's mean. Questions whose own answer cannot be read take no part in shares of change.",
        "Boxes that move: mean IoU with those of the own picture below 0.5. A: as in tables of replies.",
    ),
    "thinks": (
        "Sentences of a thinking that name the answer or an option were removed, and boxes whose label does; a donor "
        "was asked the same and concluded another.",
        "Donor agrees anyway: share of the patients asked the same who concluded the same as this one.",
    ),
    "counterfactual": (
        "Phantoms whose finding was claimed rightly: the same chest drawn without it (of a diagnosis: without any), "
        "where the answer should change, or without another finding, where it should not.",
    ),
}


def draw_places(number: int, most: int) -> list[int]:
    """Return all of the first `number` whole numbers in order, or `most` of them, drawn at random."""
    return sorted(np.random.default_rng(0).permutation(number)[:most].tolist())


def write_variants(
    out: Path, records: Sequence[Record], load: Callable[[Record], Pixels], *, most: int
) -> list[Record]:
    """Write the records of all variants of the pictures of at most `most` questions, and their pictures as PNG."""
    groups, written = group_subjects(records), list[Record]()
    (out / _PICTURES).mkdir(exist_ok=True)
    for place in draw_places(len(records), most):
        among = groups[subject_of(records[place])]
        for variant, pixels in vary_picture(records[place], among=among, load=load):
            content = write_png(pixels)
            image = f"{_PICTURES}/{hashlib.sha256(content).hexdigest()[:24]}.png"
            if not (out / image).exists():
                write_whole(out / image, content)
            written.append(msgspec.structs.replace(variant, image=image))
    for stale in (THINKING, REPLIES, THINKING_REPLIES):  # of an earlier audit
        (out / stale).unlink(missing_ok=True)
    write_vqa_records(out / FILE_NAME, written)
    return written


def write_thinking(out: Path, varied: Sequence[Record], condition: str, own: Mapping[str, str]) -> list[Record]:
    """Write the records of questions after another thinking, if any; return them.

    `condition` says how the thinking is given; `own` are the replies to own pictures, by id, that it is taken from.
    """
    made = {CONDITION: condition, _TAKEN_FROM: _digest(own)}
    named = [msgspec.structs.replace(each, provenance={**each.provenance, **made}) for each in varied]
    if named:
        write_vqa_records(out / THINKING, named)
    return named


def _digest(texts: Mapping[str, str]) -> str:
    return hashlib.sha256(msgspec.json.encode(sorted(texts.items()))).hexdigest()[:24]


def write_replies(path: Path, records: Sequence[Record], texts: Sequence[str]) -> None:
    """Write a model's replies as JSON lines."""
    lines = [msgspec.json.encode({"id": record.id, "reply": text}) for record, text in zip(records, texts, strict=True)]
    write_whole(path, b"".join(line + b"\n" for line in lines))


def read_variants(path: Path, names: Sequence[str], known: Mapping[str, Record] | None = None) -> dict[str, Record]:
    """Read the records of some variants by id; each is made of a question with an own picture there or in `known`."""
    records = {record.id: record for record in read_vqa_records(path).records}
    questions = {name: record for name, record in records.items() if record.provenance.get(VARIANT) == OWN}
    questions |= known or {}
    for name, record in records.items():
        if record.provenance.get(VARIANT) not in names:
            shown, expected = str(record.provenance.get(VARIANT))[:40], ", ".join(names)
            raise BadInput(f"{path}, record {name[:80]!r}, provenance.{VARIANT}: {shown!r} is not one of {expected}")
        for other in (made_of(record), record.provenance.get("audit_donor", "") if names == THINKS else ""):
            if other and other not in questions:
                raise BadInput(f"{path}, record {name[:80]!r}, provenance: {other[:80]!r} is no question of the audit")
        question = questions[made_of(record)]
        if (record.kind, record.options) != (question.kind, question.options):
            raise BadInput(f"{path}, record {name[:80]!r}: another kind or other options than {question.id[:80]!r}")
        if not _SHARE.fullmatch(agree := record.provenance.get(AGREE, "0")):
            raise BadInput(f"{path}, record {name[:80]!r}, provenance.{AGREE}: {agree[:40]!r} is no share from 0 to 1")
    return records


def read_own(folder: Path) -> tuple[dict[str, Record], dict[str, Record]]:
    """Return the records of all pictures of an audit by id, and those of own pictures."""
    records = read_variants(folder / FILE_NAME, (*LOOKS, *COUNTERFACTUAL))
    return records, {name: record for name, record in records.items() if record.provenance[VARIANT] == OWN}


def score_audit(
    folder: Path, replies: Path, thinking: Path | None, scoring: ScoringSettings
) -> "tuple[list[Table], list[Example], dict[str, UnreadParts]]":
    """Return the tables of an audit from a model's replies, questions with the most pictures, and what is unread."""
    records, questions = read_own(folder)
    scored = _score(records, replies, scoring)
    own = {record.id: score for record, score in scored if record.id in questions}
    unread: dict[str, UnreadParts] = {replies.stem: count_unread(score for _, score in scored)}
    right = [(record, score) for record, score in scored if own[made_of(record)].a_score == 1]
    tables = [
        _tabulate(name, {variant: audit_pictures(own, pairs) for variant, pairs in groups.items()})
        for name, groups in (("looks", _group(scored, LOOKS)), ("counterfactual", _group(right, COUNTERFACTUAL)))
        if groups
    ]
    if thinking is not None:
        varied = read_variants(folder / THINKING, THINKS, questions)
        taken_from = _digest({name: score.text or "" for name, score in own.items()})
        if any(record.provenance.get(_TAKEN_FROM) != taken_from for record in varied.values()):
            raise BadInput(
                f"{folder / THINKING}: its thinkings are of other replies than {replies}; expected those of the same "
                "replies (`audit score` without --thinking-replies writes them)"
            )
        thought = _score(varied, thinking, scoring)
        unread[thinking.stem] = count_unread(score for _, score in thought)
        groups = _add_kinds(_group(thought, THINKS))
        rows = {variant: audit_thinking(own, pairs, questions) for variant, pairs in groups.items()}
        condition = next(iter(varied.values())).provenance.get(CONDITION, "")[:200]
        tables.insert(1, _tabulate("thinks", rows, condition))
    if _group(scored, COUNTERFACTUAL) and not _group(right, COUNTERFACTUAL):
        missed = "Counterfactual: no figure, since no finding of a phantom was claimed rightly."
        tables[0] = dataclasses.replace(tables[0], notes=(*tables[0].notes, missed))
    doubtful = [line for line in describe_unread(unread) if line.startswith(WARNING)]
    tables[0] = dataclasses.replace(tables[0], notes=(*tables[0].notes, *doubtful))
    return tables, _choose_examples(scored, own), unread


def _score(records: Mapping[str, Record], path: Path, scoring: ScoringSettings) -> Scored:
    ids = dict.fromkeys(records)
    file = read_replies(path, name=path.stem, chosen=ids, known=ids, missing=scoring.missing)
    scores = score_all(list(records.values()), file.replies, scoring, finishes=file.finishes)
    return list(zip(records.values(), scores, strict=True))


def _group(scored: Scored, names: Sequence[str]) -> Mapping[str, Scored]:
    """Return records with scores by variant and, of a chain's questions, those of the last step by themselves."""
    groups: dict[str, list[tuple[Record, ReplyScore]]] = {}
    for name in names:
        for pair in (pair for pair in scored if pair[0].provenance[VARIANT] == name):
            groups.setdefault(name, []).append(pair)
            if name in LOOKS and (last := pair[0].provenance.get(LAST)):
                groups.setdefault(f"{name}, {last}", []).append(pair)
    return groups


def _add_kinds(groups: Mapping[str, Scored]) -> dict[str, Scored]:
    """Return groups, each followed by its parts by kind of question if there are several kinds."""
    added: dict[str, Scored] = {}
    several = len({record.kind for pairs in groups.values() for record, _ in pairs}) > 1
    for variant, pairs in groups.items():
        of_kinds = {kind: [pair for pair in pairs if pair[0].kind == kind] for kind in KINDS if several}
        added |= {variant: pairs} | {f"{variant}, {kind}": own for kind, own in of_kinds.items() if own}
    return added


def _tabulate(name: str, rows: Mapping[str, Row], condition: str = "") -> Table:
    widest = sorted(rows.values(), key=len, reverse=True)  # its order is that of all
    names = [key for key in dict.fromkeys(key for row in widest for key in row) if key != CASES]
    heads = (*columns("text", "variant"), Column(CASES, "number"), *columns("percent", *names))
    lines: list[SheetRow] = [{"variant": variant, **row} for variant, row in rows.items()]
    return Table.of(f"audit_{name}", _TITLES[name].format(condition), heads, lines, _NOTES[name])


Example = tuple[str, str, list[tuple[str, str, str, str]]]
"""A question, its true answer, and of each picture its path, the variant, the answer, and "changed", "unread" or ""."""


def _choose_examples(scored: Scored, own: Mapping[str, ReplyScore]) -> list[Example]:
    examples: dict[str, Example] = {}
    for record, score in scored:
        answer, before, truth = (
            ", ".join(sorted(in_words(said, record)))
            for said in (score.answer, own[made_of(record)].answer, record.answer)
        )
        change = "" if answer == before else "changed" if answer else "unread"
        _, _, shown = examples.setdefault(made_of(record), (record.question, truth, []))
        shown.append((record.image, record.provenance[VARIANT], answer or "unread", change))
    return sorted(examples.values(), key=_rank)[:_MOST_EXAMPLES]


def _rank(example: Example) -> tuple[bool, int]:
    """Return what examples are ordered by: right about the own picture, then many pictures."""
    _, truth, shown = example
    return shown[0][2] != truth, -len(shown)


def show_examples(folder: Path, examples: Sequence[Example]) -> Section:
    """Return rows of pictures with what changed as a section of a page."""
    embedded = [
        (question, truth, [(write_picture(decode_image(folder / image)), *rest) for image, *rest in shown])
        for question, truth, shown in examples
    ]
    lead = "Answers to the same question about each picture; those that differ from the first are marked."
    body = render(SHARED, "audit.html.j2", examples=embedded)
    return Section("audit_pictures", "Audit: what changed", lead, body, style=_ROW)


def list_audit_sections(folder: Path, scoring: ScoringSettings, *, with_pictures: bool) -> list[Section]:
    """Return the sections of an audit whose folder has replies; none without one."""
    if not (folder / REPLIES).exists():
        return []
    thinking = folder / THINKING_REPLIES
    tables, examples, _ = score_audit(folder, folder / REPLIES, thinking if thinking.exists() else None, scoring)
    return [*map(tabulate, tables), *([show_examples(folder, examples)] if with_pictures and examples else [])]
