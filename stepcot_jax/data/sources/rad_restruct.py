"""Rad-ReStruct (Pellegrini et al., MICCAI 2023): structured reports of IU X-Ray as answers to a tree of questions.

A data root is the folder `data/radrestruct` of the authors' repository, with the pictures in `images/`.
"""

import itertools
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from stepcot_jax.chain import NOT_ANNOTATED, Chain, Step
from stepcot_jax.data.sources import iu_xray
from stepcot_jax.data.sources.intake import ImageFinder, list_named
from stepcot_jax.data.sources.listed import How, Listed, Source, refused
from stepcot_jax.data.splits.splits import SPLIT_NAMES
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_json
from stepcot_jax.record import Record, SetAside, Split

TEMPLATE, INSTANCES = "template_final_clean.json", "max_instances.json"
IMAGES = "id_to_img_mapping_frontal_reports.json"
REPORTS = "iu_xray"  # subfolder with the collection's report files, for their texts
MAX_REPORTS = 100_000  # most reports of a split; the released splits have 2,877, 360 and 360
_MAX_BYTES = 2**22  # of a file; the largest released one has 161 kB
_MOST_INSTANCES = 20  # occurrences of a finding that are asked for; 5 in the release
_MOST_OPTIONS = 200  # of a question; 71 in the release
_MOST_STEPS = 20_000  # of the tree; 1,702 in the release
_EVERY = 10  # without a test part, one in ten training reports is for validation
_REPORT_ID = re.compile(r"[0-9]{1,9}")
_EXPECTED = "expected the folder data/radrestruct of Rad-ReStruct"
_LOG = logging.getLogger(__name__)

YES, NO = 0, 1
_YES_NO = ("yes", "no")
_INFOS = "infos"  # an area without elements: its questions follow the area itself
_ASKED = {
    "body_region": "In which part of the body?",
    "localization": "In which area?",
    "attributes": "What are the attributes?",
    "degree": "What is the degree?",
}


class _Info(msgspec.Struct, frozen=True):
    """A question about a finding, as the template and the reports write it."""

    answer_type: Literal["single_choice", "multi_choice", "fixed_choice"]
    options: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=_MOST_OPTIONS)]
    path: str = ""

    def __post_init__(self) -> None:
        if len(set(self.options)) < len(self.options):
            raise ValueError(f"options {self.options[:3]} repeat one")


class _Element(msgspec.Struct, frozen=True):
    infos: dict[str, _Info]


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    """A question of a report; its history repeats earlier entries and is not read."""

    question: str
    answers: tuple[str, ...]
    history: msgspec.Raw
    info: _Info


class Question(NamedTuple):
    """A question of the form: its steps, and what the files call it."""

    steps: range
    path: str  # as in the reports' files
    options: tuple[str, ...]


class Form(NamedTuple):
    """The tree of questions, and its questions in the order in which reports are asked."""

    chain: Chain
    questions: tuple[Question, ...]


class _Growing:
    """Collects steps and questions in the order of the template."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.questions: list[Question] = []

    def _add(self, step: Step) -> None:
        if len(self.steps) == _MOST_STEPS:
            raise BadInput(f"more than {_MOST_STEPS:,} steps, from {step.name[:80]!r} on")
        self.steps.append(step)

    def ask(self, name: str, question: str, path: str, *, asked_if: int | None, part: str) -> int:
        """Add a question of yes or no; return its position."""
        opens = None if asked_if is None else (asked_if, YES)
        self._add(Step(name, question, _YES_NO, opens, part=part))
        self.questions.append(Question(range(len(self.steps) - 1, len(self.steps)), path, _YES_NO))
        return len(self.steps) - 1

    def describe(self, name: str, question: str, info: _Info, path: str, *, asked_if: int) -> None:
        """Add a question about a finding: one step, or one for each option where several may be right."""
        start, opens, part = len(self.steps), (asked_if, YES), "level 3"
        if info.answer_type == "single_choice":
            self._add(Step(name, question, info.options, opens, part=part))
        else:  # the answer to a question with a fixed choice is its only option
            for option in info.options:
                self._add(Step(f"{name}: {option}", question, _YES_NO, opens, choice=option, part=part))
        self.questions.append(Question(range(start, len(self.steps)), path, info.options))


def read_form(root: Path) -> Form:
    """Return the tree of questions that the template of a data root makes.

    Topics of an area are always asked ("level 1"). A topic's yes opens its elements ("level 2"); an element's yes opens
    the questions about it ("level 3") and the question whether there is another one, up to the largest number in the
    data. An area that is a topic by itself belongs to level 2, with the body regions, as in the published evaluation.
    """
    accepted = f"{_EXPECTED} ({TEMPLATE})"
    areas = read_json(root / TEMPLATE, list[dict[str, Any]], accepted=accepted, max_bytes=_MAX_BYTES)
    instances = read_json(root / INSTANCES, dict[str, int], accepted=_EXPECTED, max_bytes=_MAX_BYTES)
    for name, number in instances.items():
        if not 1 <= number <= _MOST_INSTANCES:
            raise BadInput(f"{root / INSTANCES}: {name[:80]!r}: {number} is not 1 to {_MOST_INSTANCES}")
    grown = _Growing()
    try:
        for area, topics in _list_areas(areas):
            for topic, content in topics.items():
                if topic != "area":
                    _grow_topic(grown, area, topic, content, instances)
        return Form(Chain(tuple(grown.steps)), tuple(grown.questions))
    except (msgspec.ValidationError, BadInput) as error:
        raise BadInput(f"{root / TEMPLATE}: {error}; {accepted}") from None


def _list_areas(areas: Sequence[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for area in areas:
        nested = msgspec.convert(area.get("sub_areas", {}), dict[str, dict[str, Any]])
        yield from nested.items() if nested else [(msgspec.convert(area.get("area"), str), area)]


def _grow_topic(grown: _Growing, area: str, topic: str, content: Any, instances: Mapping[str, int]) -> None:
    path = f"{area}_{topic}"
    if topic == _INFOS:
        infos = {name: info for name, info in msgspec.convert(content, dict[str, Any]).items() if name != "instances"}
        element = msgspec.convert({"infos": infos}, _Element)
        _grow_element(grown, (area, topic, area), element, instances.get(f"{area}/{topic}", 1), topic_step=None)
        return
    asked = {"objects": "Are there any foreign objects?", "body_regions": f"Is there anything abnormal in the {area}?"}
    question = asked.get(topic, f"Are there any {topic} in the {area}?")
    step = grown.ask(f"{area}/{topic}", question, path, asked_if=None, part="level 1")
    for name, element in msgspec.convert(content, dict[str, _Element]).items():
        _grow_element(grown, (area, topic, name), element, instances.get(f"{area}/{name}", 1), topic_step=step)


def _grow_element(
    grown: _Growing, names: tuple[str, str, str], element: _Element, most: int, *, topic_step: int | None
) -> None:
    area, topic, name = names
    kind = "body_regions" if topic == _INFOS else topic
    what = name if topic == "objects" else f"{name} in the {area}" if kind in ("signs", "diseases") else ""
    path = f"{area}_{topic}" if name == area else f"{area}_{topic}_{name}"
    parent = topic_step
    for number in range(1, most + 1):
        more = "" if number == 1 else f" (number {number})"
        question = f"Is there {what}{more}?" if what else f"Is there anything abnormal in the {name}{more}?"
        label = "/".join([area, topic, *([name] if topic != _INFOS else []), str(number)])
        parent = grown.ask(label, question, path, asked_if=parent, part=f"level 2/{kind}")
        for field, info in element.infos.items():
            asked = f"{question} {_ASKED.get(field, field)}"
            grown.describe(f"{label}/{field}", asked, info, f"{path}_{field}", asked_if=parent)


def read_answers(content: Sequence[_Entry], form: Form) -> tuple[int, ...]:
    """Return the label of each step from a report's questions, which must be those that its answers open, in order."""
    labels, entries = [NOT_ANNOTATED] * form.chain.num_steps, iter(enumerate(content))
    for question in form.questions:
        opened = form.chain.steps[question.steps[0]].asked_if
        if opened is not None and labels[opened[0]] != opened[1]:
            continue
        number, entry = next(entries, (len(content), None))
        if entry is None:
            raise BadInput(f"question {number}: missing; expected {question.path!r}")
        if (entry.info.path, entry.info.options) != (question.path, question.options):
            raise BadInput(f"question {number}: is {entry.info.path[:80]!r}; expected {question.path!r} of {TEMPLATE}")
        chosen = set(entry.answers)
        if not chosen <= set(question.options) or not chosen:
            found = sorted(answer[:40] for answer in chosen)
            raise BadInput(f"question {number}, {question.path!r}: answers {found} are not among its options")
        if form.chain.steps[question.steps[0]].choice:
            for position, option in zip(question.steps, question.options, strict=True):
                labels[position] = YES if option in chosen else NO
        elif len(chosen) > 1:
            raise BadInput(f"question {number}, {question.path!r}: {len(chosen)} answers; expected one")
        else:
            labels[question.steps[0]] = question.options.index(entry.answers[0])
    if (rest := next(entries, None)) is not None:
        raise BadInput(f"question {rest[0]}: {rest[1].info.path[:80]!r} is asked, but no answer before it opens it")
    return tuple(labels)


def list_rad_restruct(root: Path, how: How) -> Source:
    """List each frontal image of a report, with the answers to the tree of questions.

    Splits are the published ones. Without the test part, published validation is the test split, and every tenth
    training report is for validation. With report files in `iu_xray/`, cases carry FINDINGS and IMPRESSION, and a rule
    excludes reports that are not among them.
    """
    form = read_form(root)
    return Source(root, TEMPLATE, _list_images(root, form, how), form.chain)


def _list_images(root: Path, form: Form, how: How) -> Iterator[Listed]:
    names_of = read_json(root / IMAGES, dict[str, tuple[str, ...]], accepted=_EXPECTED, max_bytes=_MAX_BYTES)
    finder = ImageFinder(root, folders=("images", "NLMCXR_png"), require_images=how.require_images)
    texts = _read_texts(root)
    for split, path in _list_reports(root):
        where, report = f"{path.parent.name}/{path.name}", path.stem
        patient = f"CXR{report}"
        try:
            answers = read_answers(_read_entries(path), form)
            names = names_of.get(report, ())
            if not names:
                raise BadInput(f"{IMAGES} names no image of report {report!r}")
        except BadInput as error:
            yield refused(where, f"{where}: {error}", patient=patient)
            continue
        if texts is not None and patient not in texts:
            rule = f"{where}: no text in the report files of {REPORTS}/"
            yield Listed(where, Record(image="", patient=patient), rule=rule)
            continue
        for name in names:
            record = Record(
                patient=patient,
                image=f"{name}.png",
                origin=iu_xray.ORIGIN,
                split=split,
                report="" if texts is None else texts[patient],
                answers=answers,
                reasoning=("",) * len(answers),
            )
            yield list_named(f"{where} {name}", record, finder.find, where=where)


def _read_entries(path: Path) -> tuple[_Entry, ...]:
    try:
        return read_json(path, tuple[_Entry, ...], accepted="expected a list of questions", max_bytes=_MAX_BYTES)
    except BadInput as error:
        raise BadInput(str(error).removeprefix(f"{path}: ")) from None


def _list_reports(root: Path) -> Iterator[tuple[Split, Path]]:
    """Yield the split and the file of each report, split by split and by number."""
    folders = {name: root / f"{name}_qa_pairs" for name in SPLIT_NAMES}
    known = {name: folder for name, folder in folders.items() if folder.is_dir()}
    if "train" not in known or len(known) < 2:
        raise BadInput(f"{root}: has {', '.join(sorted(known)) or 'no'} questions; expected train_qa_pairs and others")
    has_test = "test" in known
    if not has_test:
        _LOG.warning(
            "%s: no test_qa_pairs: the published validation reports are the test split, and every %dth training report "
            "is for validation",
            root,
            _EVERY,
        )
    for name, folder in known.items():
        paths = list(itertools.islice(folder.glob("*.json"), MAX_REPORTS + 1))
        if len(paths) > MAX_REPORTS:
            raise BadInput(f"{folder}: has more than {MAX_REPORTS} reports")
        if bad := next((path.name for path in paths if not _REPORT_ID.fullmatch(path.stem)), None):
            raise BadInput(f"{folder}: {bad[:80]!r} is not the number of a report")
        for number, path in enumerate(sorted(paths, key=lambda path: (int(path.stem), path.stem))):
            held_out = name == "train" and not has_test and number % _EVERY == _EVERY - 1
            split = "val" if held_out else "test" if name == "val" and not has_test else name
            yield split, path


def _read_texts(root: Path) -> dict[str, str] | None:
    """Return FINDINGS and IMPRESSION of each report; None without report files."""
    if not (root / REPORTS).is_dir():
        return None
    reports = iu_xray.read_reports(root / REPORTS)
    return {report.uid: report.text for report in reports if not isinstance(report, SetAside) and report.text}
