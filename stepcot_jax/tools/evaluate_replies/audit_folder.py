"""The folder of an audit: records of all variants with pictures, prompts for a model, and figures of its replies."""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stepcot_jax.data.images.drawn_boxes import write_png
from stepcot_jax.data.questions.record_files import FILE_NAME, read_vqa_records, write_vqa_records
from stepcot_jax.data.questions.reply_files import ReplyFile, read_replies
from stepcot_jax.data.questions.variants import (
    COUNTERFACTUAL,
    LAST,
    LOOKS,
    OWN,
    STEP,
    THINKS,
    VARIANT,
    Pixels,
    group_subjects,
    vary_picture,
    vary_thinking,
)
from stepcot_jax.evaluation.audits import Audit, Scored, audit_pictures, audit_thinking, made_of
from stepcot_jax.evaluation.replies import ReplyScore, ScoringSettings, score_all
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import write_whole
from stepcot_jax.reasoning.thinking import ANSWERED_FIRST, Thinking, ask_after, in_words, subject_of
from stepcot_jax.record import Record
from stepcot_jax.run.audit_page import PICTURES, AuditResults, Example, Shown, choose_examples, write_audit
from stepcot_jax.run.scored_replies import to_text
from stepcot_jax.tools.evaluate_replies.robustness import write_prompts

PROMPTS, THINKING, THINKING_PROMPTS = "prompts.jsonl", "thinking.jsonl", "thinking_prompts.jsonl"
REPLIES, THINKING_REPLIES = "replies.jsonl", "thinking_replies.jsonl"
CONDITION = "audit_condition"
AS_TEXT, AS_PREFIX = "the thinking as text in the question", "the reply continues the thinking as its prefix"

NAMES = {
    OWN: "own picture",
    "donor": "a donor's picture",
    "noise": "noise",
    "grey": "grey",
    "without_claimed": "without the claimed finding",
    "healthy": "without any finding",
    "without_other": "without another finding",
    "thinking_own": "own thinking",
    "thinking_cut": "own, first half",
    "thinking_donor": "a donor's thinking",
    "thinking_turned": "own, one claim turned",
}
MOST_EXAMPLES = 6
_UNREAD_NOTE = "Questions whose answer to the own picture cannot be read take no part in shares of change."
_NOTES = {
    "looks": (
        "A donor is another patient whose true answer to the same question is another; noise and grey have the "
        "picture's mean.",
        f"{_UNREAD_NOTE} Boxes that move: IoU with those of the own picture below 0.5. A: as in tables of replies.",
    ),
    "thinks": (
        "Sentences with the answer or an option were removed; the donor was asked the same and concluded another.",
        "Donor agrees anyway: share of the patients asked the same who concluded the same as this one.",
    ),
    "counterfactual": (
        "Phantoms whose finding was claimed rightly: the same chest drawn without it (of a diagnosis, without any "
        "finding), where the answer should change, or without another one, where it should not. Aim: 60 %, at most 10 %.",
    ),
}


def save_picture(out: Path, pixels: Pixels) -> str:
    """Write a picture as PNG named by its content; return its path in the folder."""
    content = write_png(pixels)
    name = f"{PICTURES}/{hashlib.sha256(content).hexdigest()[:24]}.png"
    if not (out / name).exists():
        (out / PICTURES).mkdir(exist_ok=True)
        write_whole(out / name, content)
    return name


def draw_places(number: int, most: int) -> list[int]:
    """Return all of the first `number` whole numbers in order, or `most` of them, drawn at random."""
    return sorted(np.random.default_rng(0).permutation(number)[:most].tolist())


def write_questions(
    out: Path,
    records: Sequence[Record],
    load: Callable[[Record], Pixels],
    *,
    most: int,
    dialect: str,
    with_thinking: bool,
) -> list[Record]:
    """Write the records of all variants of pictures, their pictures and prompts; return the records."""
    groups, written = group_subjects(records), list[Record]()
    for place in draw_places(len(records), most):
        among = groups[subject_of(records[place])]
        for variant, pixels in vary_picture(records[place], among=among, load=load):
            written.append(msgspec.structs.replace(variant, image=save_picture(out, pixels)))
    for stale in (THINKING, THINKING_PROMPTS):  # of an earlier audit
        (out / stale).unlink(missing_ok=True)
    write_vqa_records(out / FILE_NAME, written)
    write_prompts(out / PROMPTS, written, root=out, dialect=dialect, with_thinking=with_thinking)
    return written


def write_replies(path: Path, records: Sequence[Record], texts: Sequence[str]) -> None:
    """Write a model's replies as JSON lines."""
    lines = [msgspec.json.encode({"id": record.id, "reply": text}) for record, text in zip(records, texts, strict=True)]
    write_whole(path, b"".join(line + b"\n" for line in lines))


@dataclasses.dataclass(frozen=True)
class AuditFolder:
    """The records of an audit's folder."""

    path: Path
    records: Sequence[Record]  # of all variants of pictures

    @property
    def own(self) -> list[Record]:
        """The questions about the own picture."""
        return [record for record in self.records if record.provenance[VARIANT] == OWN]

    def read_replies(self, path: Path, *, thinking: Sequence[Record] = (), missing: str = "stop") -> ReplyFile:
        """Read replies to the records, or to those with another thinking."""
        ids = {record.id: None for record in thinking or self.records}
        return read_replies(path, name=path.stem, chosen=ids, known=ids, missing=missing)  # type: ignore[arg-type]


def read_folder(path: Path) -> AuditFolder:
    """Read a folder that `write_questions` wrote."""
    return AuditFolder(path, _read_variants(path / FILE_NAME, (*LOOKS, *COUNTERFACTUAL)))


def _read_variants(path: Path, names: Sequence[str]) -> Sequence[Record]:
    records = read_vqa_records(path).records
    for number, record in enumerate(records, start=1):
        if record.provenance.get(VARIANT) not in names:
            shown = str(record.provenance.get(VARIANT))[:40]
            raise BadInput(f"{path}, record {number}, provenance.{VARIANT}: {shown!r} is not one of {', '.join(names)}")
    known = {record.id for record in records if record.provenance[VARIANT] == OWN}
    if OWN in names and (lost := [record.id for record in records if made_of(record) not in known]):
        raise BadInput(f"{path}: {lost[0][:80]!r} is a variant of no question in this file; expected its own picture's")
    return records


def write_thinking(
    out: Path,
    replies: ReplyFile,
    *,
    dialect: str,
    condition: str = AS_TEXT,
    accepts: Callable[[str], bool] | None = None,
) -> list[tuple[Record, Thinking]]:
    """Write records with another thinking, made of a model's replies, and their prompts; return both.

    `accepts` says whether a thinking, as the start of a reply, can be continued; others are left out.
    """
    if dialect in ANSWERED_FIRST:
        raise BadInput(
            f"--dialect: replies of {dialect!r} begin with their answer, so that no answer follows a thinking"
        )
    varied = vary_thinking(read_folder(out).own, replies.replies, dialect=dialect)
    made = [
        (msgspec.structs.replace(record, provenance={**record.provenance, CONDITION: condition}), thinking)
        for record, thinking in varied
        if accepts(thinking.write())
    ]
    if not made:
        raise BadInput(f"{replies.path}: no reply has a thinking apart from its answer in the dialect {dialect!r}")
    write_vqa_records(out / THINKING, [record for record, _ in made])
    prompts = {record.id: ask_after(thinking, record, dialect) for record, thinking in made}
    records = [record for record, _ in made]
    write_prompts(out / THINKING_PROMPTS, records, root=out, dialect=dialect, prompts=prompts)
    return made


def score_folder(
    out: Path, replies: Path, thinking: Path | None, scoring: ScoringSettings, *, num_resamples: int, who: str = ""
) -> str:
    """Write the figures of a model's replies to the folder; return them as text."""
    folder, how = read_folder(out), {"num_resamples": num_resamples}
    file = folder.read_replies(replies, missing=scoring.missing)
    scores = score_all(folder.records, file.replies, scoring, finishes=file.finishes)
    scored = list(zip(folder.records, scores, strict=True))
    own = {record.id: score for record, score in scored if record.provenance[VARIANT] == OWN}
    audits = [
        audit_pictures("looks", "Looks: the same questions about other pictures", own, _group(scored, LOOKS), **how)
    ]
    right = [pair for pair in scored if own[made_of(pair[0])].a_score == 1]
    if counterfactual := _group(right, COUNTERFACTUAL):
        title = "Counterfactual: the same chest without a finding"
        audits.append(audit_pictures("counterfactual", title, own, counterfactual, **how))
    if thinking is not None:
        audits.insert(1, _score_thinking(folder, thinking, own, scoring, **how))
    audits = [msgspec.structs.replace(audit, notes=list(_NOTES[audit.name])) for audit in audits]
    about = f"{who or file.name}: {len(own)} questions of {len({record.patient for record in folder.own})} patients."
    examples = choose_examples(_list_examples(scored, own), most=MOST_EXAMPLES)
    return finish(out, AuditResults(about, audits, examples))


def finish(out: Path, results: AuditResults) -> str:
    """Write the results of an audit; return its tables as text."""
    tables = write_audit(out, results)
    names = ", ".join(table.name for table in tables)
    return "\n".join([results.about, "", *map(to_text, tables), f"in {out}: audit.json, index.html, {names}\n"])


def _score_thinking(
    folder: AuditFolder, path: Path, own: Mapping[str, ReplyScore], scoring: ScoringSettings, **how: Any
) -> Audit:
    records = _read_variants(folder.path / THINKING, THINKS)
    file = folder.read_replies(path, thinking=records, missing=scoring.missing)
    scores = score_all(records, file.replies, scoring, finishes=file.finishes)
    by_id = {record.id: record for record in folder.own}
    for record in records:
        for name in (made_of(record), record.provenance.get("audit_donor", made_of(record))):
            if name not in by_id:
                raise BadInput(f"{folder.path / THINKING}: {name[:80]!r} is no question of {FILE_NAME}")
    title = f"Thinks: answers after other thinkings ({records[0].provenance.get(CONDITION, AS_TEXT)})"
    return audit_thinking(title, own, _group(list(zip(records, scores, strict=True)), THINKS), by_id, **how)


def _group(scored: Scored, names: Sequence[str]) -> dict[str, Scored]:
    """Return records with scores by variant and, of a chain's questions, those of the last step by themselves."""
    groups: dict[str, list[tuple[Record, ReplyScore]]] = {}
    for name in names:
        for record, score in (pair for pair in scored if pair[0].provenance[VARIANT] == name):
            last, is_step = record.provenance.get(LAST, ""), STEP in record.provenance
            heading = NAMES[name] + (", all steps" if is_step and name in LOOKS else "")
            groups.setdefault(heading, []).append((record, score))
            if last and name in LOOKS:
                groups.setdefault(f"{NAMES[name]}, {last}", []).append((record, score))
    return groups


def _list_examples(scored: Scored, own: Mapping[str, ReplyScore]) -> list[Example]:
    examples: dict[str, Example] = {}
    for record, score in scored:
        first = own[made_of(record)]
        answer, before = (in_words(each.answer, record) for each in (score, first))
        change = "" if answer == before else "changed" if answer else "unread"
        name = NAMES[record.provenance[VARIANT]]
        shown = Shown(Path(record.image).name, name, ", ".join(sorted(answer)), change)
        if record.id not in examples and made_of(record) == record.id:
            truth = ", ".join(sorted(in_words(record.answer, record)))
            examples[record.id] = Example(record.question, truth, [])
        examples[made_of(record)].shown.append(shown)
    return list(examples.values())
