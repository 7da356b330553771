"""The folder of an audit: records of all variants with pictures, prompts, a model's replies, and its figures."""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from stepcot_jax.data.images.drawn_boxes import write_png
from stepcot_jax.data.questions.record_files import FILE_NAME, read_vqa_records, write_vqa_records
from stepcot_jax.data.questions.reply_files import read_replies
from stepcot_jax.data.questions.variants import (
    CONDITION,
    COUNTERFACTUAL,
    LOOKS,
    OWN,
    THINKS,
    VARIANT,
    WITHOUT_CLAIMED,
    WITHOUT_OTHER,
    Pixels,
    group_subjects,
    vary_picture,
)
from stepcot_jax.evaluation.audits import (
    CASES,
    Row,
    Scored,
    audit_abnormal,
    audit_claims,
    audit_pictures,
    audit_thinking,
    made_of,
)
from stepcot_jax.evaluation.replies import ReplyScore, ScoringSettings
from stepcot_jax.evaluation.unread import WARNING, UnreadParts, count_unread, describe_unread
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import write_whole
from stepcot_jax.pages.sheets import Column, Table, columns
from stepcot_jax.pages.sheets import Row as SheetRow
from stepcot_jax.pages.shell import Section, tabulate
from stepcot_jax.reading.scored_file import score_file
from stepcot_jax.reasoning.thinking import subject_of
from stepcot_jax.record import KINDS, Record

THINKING, REPLIES, THINKING_REPLIES = "thinking.jsonl", "replies.jsonl", "thinking_replies.jsonl"

ABNORMAL = 'only "is anything abnormal"'
_PICTURES = "pictures"
_TAKEN_FROM = "audit_replies"  # in the provenance of a thinking: digest of the replies that it is taken from
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
        "Phantoms whose finding was claimed rightly: the same chest drawn without it, where the answer should change, "
        "or without another finding, where it should not. True findings claimed: share of all that were asked for.",
        'Only "is anything abnormal": who says yes of every finding of an abnormal chest, on the same questions. What '
        "does not exceed it without the claimed finding does not look for the finding.",
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


def _read_variants(path: Path, names: Sequence[str], known: Mapping[str, Record] | None = None) -> dict[str, Record]:
    """Read the records of some variants by id; each is made of a question with an own picture there or in `known`."""
    records = {record.id: record for record in read_vqa_records(path).records}
    questions = known or {name: record for name, record in records.items() if record.provenance.get(VARIANT) == OWN}
    for name, record in records.items():
        of = questions.get(made_of(record))
        is_known = of is not None and (record.kind, record.options) == (of.kind, of.options)
        if record.provenance.get(VARIANT) not in names or not is_known:
            raise BadInput(f"{path}, record {name[:80]!r}: not as an audit wrote it; write the audit again")
    return records


def read_own(folder: Path) -> tuple[dict[str, Record], dict[str, Record]]:
    """Return the records of all pictures of an audit by id, and those of own pictures."""
    records = _read_variants(folder / FILE_NAME, (*LOOKS, *COUNTERFACTUAL))
    return records, {name: record for name, record in records.items() if record.provenance[VARIANT] == OWN}


def score_audit(
    folder: Path, replies: Path, thinking: Path | None, scoring: ScoringSettings
) -> tuple[list[Table], dict[str, UnreadParts]]:
    """Return the tables of an audit from a model's replies, and what is unread."""
    records, questions = read_own(folder)
    scored = _score(records, replies, scoring)
    own = {record.id: score for record, score in scored if record.id in questions}
    unread: dict[str, UnreadParts] = {replies.stem: count_unread(score for _, score in scored)}
    looks = _group(scored, LOOKS)
    tables = [_tabulate("looks", {name: audit_pictures(own, pairs) for name, pairs in looks.items()})]
    if thinking is not None:
        varied = _read_variants(folder / THINKING, THINKS, questions)
        taken_from = _digest({name: score.text or "" for name, score in own.items()})
        if any(record.provenance.get(_TAKEN_FROM) != taken_from for record in varied.values()):
            raise BadInput(
                f"{folder / THINKING}: its thinkings are of other replies than {replies}; expected those of the same "
                "replies (`audit score` without --thinking-replies writes them)"
            )
        thought = _score(varied, thinking, scoring)
        unread[thinking.stem] = count_unread(score for _, score in thought)
        are_of_kinds = len({record.kind for record in varied.values()}) > 1
        thinks = _group(thought, THINKS, lambda record: record.kind if are_of_kinds else "")
        rows = {name: audit_thinking(own, pairs, questions) for name, pairs in thinks.items()}
        tables.append(_tabulate("thinks", rows, next(iter(varied.values())).provenance.get(CONDITION, "")[:200]))
    drawn = _group(scored, COUNTERFACTUAL)
    notes = [line for line in describe_unread(unread) if line.startswith(WARNING)]
    if rows := _list_counterfactuals(own, drawn):
        tables.append(_tabulate("counterfactual", rows))
    elif drawn:
        notes.insert(0, "Counterfactual: no figure, since no finding of a phantom was claimed rightly.")
    tables[0] = dataclasses.replace(tables[0], notes=(*tables[0].notes, *notes))
    return tables, unread


def _list_counterfactuals(own: Mapping[str, ReplyScore], drawn: Mapping[str, Scored]) -> dict[str, Row]:
    """Return the rows of findings that were claimed rightly, then those of `ABNORMAL` on the same questions."""
    removed, keep_one = drawn.get(WITHOUT_CLAIMED, ()), {made_of(pair[0]) for pair in drawn.get(WITHOUT_OTHER, ())}
    normal = {made_of(record) for record, _ in removed} - keep_one
    parts = {
        f"{WITHOUT_CLAIMED}, {part}": [pair for pair in removed if (made_of(pair[0]) in normal) == is_normal]
        for part, is_normal in (("another one stays", False), ("the chest becomes normal", True))
    }
    groups = {**drawn, **{name: pairs for name, pairs in parts.items() if pairs}}
    order = sorted(groups, key=lambda name: [name.startswith(each) for each in COUNTERFACTUAL].index(True))
    rows = {name: row for name in order if (row := audit_claims(own, groups[name]))}
    rivals = [name for name in (WITHOUT_CLAIMED, WITHOUT_OTHER) if name in rows and removed]
    return rows | {f"{ABNORMAL}: {name}": audit_abnormal(own, drawn[name], normal) for name in rivals}


def _score(records: Mapping[str, Record], path: Path, scoring: ScoringSettings) -> Scored:
    ids = dict.fromkeys(records)
    file = read_replies(path, name=path.stem, chosen=ids, known=ids, missing=scoring.missing)
    scores = score_file(list(records.values()), file, scoring)
    return list(zip(records.values(), scores, strict=True))


def _group(scored: Scored, names: Sequence[str], part_of: Callable[[Record], str] = lambda _: "") -> dict[str, Scored]:
    """Return records with scores by variant, each followed by its parts, kinds of questions."""
    groups: dict[str, Scored] = {}
    for name in names:
        pairs = [pair for pair in scored if pair[0].provenance[VARIANT] == name]
        groups |= {name: pairs} if pairs else {}
        for part in sorted({part_of(record) for record, _ in pairs} - {""}, key=KINDS.index):
            groups[f"{name}, {part}"] = [pair for pair in pairs if part_of(pair[0]) == part]
    return groups


def _tabulate(name: str, rows: Mapping[str, Row], condition: str = "") -> Table:
    widest = sorted(rows.values(), key=len, reverse=True)  # its order is that of all
    names = [key for key in dict.fromkeys(key for row in widest for key in row) if key != CASES]
    heads = (*columns("text", "variant"), Column(CASES, "number"), *columns("percent", *names))
    lines: list[SheetRow] = [{"variant": variant, **row} for variant, row in rows.items()]
    return Table.of(f"audit_{name}", _TITLES[name].format(condition), heads, lines, _NOTES[name])


def find_thinking(folder: Path) -> Path | None:
    """Return the replies of a run after other thinkings; None for a run without any."""
    return folder / THINKING_REPLIES if (folder / THINKING_REPLIES).exists() else None


def list_audit_sections(folder: Path, scoring: ScoringSettings) -> list[Section]:
    """Return the sections of an audit whose folder has replies; none without one."""
    if not (folder / REPLIES).exists():
        return []
    tables, _ = score_audit(folder, folder / REPLIES, find_thinking(folder), scoring)
    return list(map(tabulate, tables))
