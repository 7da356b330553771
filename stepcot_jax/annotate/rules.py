"""The rules annotator: a report's seven answers by tables of words, the same at every run and without any network.

`diagnosis` says which finding the diagnosis is, `lesions` where the words about it are looked for, `descriptions` and
`terms` hold the words. Every answer cites the sentence it rests on; an answer that the report does not name (a nodule's
pattern is nodular, an effusion is in the pleura) cites the sentence of the diagnosis.
"""

from stepcot_jax.annotate import descriptions, terms
from stepcot_jax.annotate.annotation import Annotation, Report
from stepcot_jax.annotate.assertions import Status
from stepcot_jax.annotate.diagnosis import find_diagnosis, is_incidental, rank_first
from stepcot_jax.annotate.lesions import Answer, Lesion
from stepcot_jax.annotate.report_reading import Mention, Reading, read_report
from stepcot_jax.chain import DEFAULT_CHAIN, DIAGNOSIS_OPTIONS, NOT_ANNOTATED, NOT_APPLICABLE, Chain, fold
from stepcot_jax.host.errors import BadInput

SECONDARY = {
    terms.SHIFT: "Mediastinal shift",
    terms.PNEUMOTHORAX: "Pneumothorax",
    terms.EFFUSION: "Pleural effusion",
    terms.VOLUME_LOSS: "Volume loss",
    terms.RAISED_DIAPHRAGM: "Volume loss",
    terms.NODES: "Lymphadenopathy",
    terms.CARDIOMEGALY: "Cardiomegaly",
}
"""Findings that answer step 6 beside another diagnosis; of several the first in this order."""


_EXPLAINABLE = (terms.OPACITY, terms.LUCENCY)
"""Lesions that another finding may explain: "opacity, which may represent atelectasis"."""


def annotate_report(report: Report, *, chain: Chain = DEFAULT_CHAIN) -> Annotation:
    """The chain of a report.

    Args:
      report: what to read.
      chain: the steps; their answers, in whatever order, must be those of `DEFAULT_CHAIN`.

    Raises:
      CannotAnnotate: the report is empty, contradicts itself, or its findings are outside the taxonomy.
      BadInput: the chain has other answers.
    """
    reading = read_report(report.text)
    return _annotation(_answers(reading, find_diagnosis(reading)), chain)


def describe_report(report: Report, *, chain: Chain = DEFAULT_CHAIN) -> Annotation:
    """As `annotate_report`, but of the first lesion of lung or pleura, be it a diagnosis of the chain or not.

    Beside an enlarged heart it describes the opacity; a lesion outside the taxonomy has no annotated diagnosis.

    Raises:
      CannotAnnotate: as `annotate_report`, if there is no such lesion.
    """
    reading = read_report(report.text)
    return _annotation(_answers(reading, _find_lesion(reading) or find_diagnosis(reading)), chain)


def _find_lesion(reading: Reading) -> Mention | None:
    """The lesion that ranks first; a certain granuloma or scar before a diagnosis that is only possible."""
    mentions = [mention for mention in reading.mentions if mention.finding != terms.CARDIOMEGALY]
    named = rank_first(mention for mention in mentions if mention.sort == "diagnosis")
    other = rank_first(mention for mention in mentions if mention.sort == "lesion" and not is_incidental(mention))
    if named is None or other is None:
        return named or other
    return other if other.present and not named.present and other.finding not in _EXPLAINABLE else named


def _answers(reading: Reading, chief: Mention | None) -> list[Answer | None]:
    if chief is None:
        return _normal_answers(reading)
    lesion = Lesion(reading, chief)
    named = chief.finding in DIAGNOSIS_OPTIONS
    return [
        _detection(reading, chief, lesion),
        lesion.distribution(),
        lesion.pattern(),
        lesion.location(),
        lesion.morphology(),
        _secondary(reading, chief),
        Answer(chief.finding, chief.sentence.text) if named else None,
    ]


def _normal_answers(reading: Reading) -> list[Answer | None]:
    of_lungs = [
        item.sentence.text for item in reading.mentions if item.status == Status.ABSENT and item.sort == "lesion"
    ]
    clear = [sentence.text for sentence in reading.sentences if "lung" in sentence.line.lower()]
    concluding = [sentence.text for sentence in reading.sentences if sentence.role == "impression"]
    last = (concluding or [reading.sentences[-1].text])[0]
    first = (clear or of_lungs or [last])[0]
    none = Answer(NOT_APPLICABLE, first)
    return [Answer(descriptions.NO_ABNORMALITY, first), *[none] * 5, Answer(terms.NORMAL, last)]


def _detection(reading: Reading, chief: Mention, lesion: Lesion) -> Answer:
    described = lesion.density()
    if described:
        return described
    present = [item for item in reading.mentions if item.present or item is chief]
    lucent = [item for item in present if item.finding in (terms.PNEUMOTHORAX, terms.LUCENCY, terms.EMPHYSEMA)]
    dense = [item for item in present if item.sort != "other" and item not in lucent]
    if lucent and dense:
        return Answer(descriptions.MIXED, _quote(lucent[0], dense[0]))
    return Answer(descriptions.DECREASED if lucent else descriptions.INCREASED, chief.sentence.text)


def _secondary(reading: Reading, chief: Mention) -> Answer:
    beside = {
        item.finding: item for item in reversed(reading.mentions) if item.present and item.finding != chief.finding
    }
    for finding, answer in SECONDARY.items():
        if finding in beside:
            return Answer(answer, beside[finding].sentence.text)
    denied = [item for item in reading.mentions if item.finding in SECONDARY and item.status == Status.ABSENT]
    return Answer(NOT_APPLICABLE, (denied or [chief])[0].sentence.text)


def _quote(*mentions: Mention) -> str:
    return " ".join(dict.fromkeys(mention.sentence.text for mention in mentions))


def _annotation(answers: list[Answer | None], chain: Chain) -> Annotation:
    if chain.num_steps != len(answers):
        raise BadInput(f"rules: found a chain of {chain.num_steps} steps, accepted are the {len(answers)} default ones")
    labels, reasoning = [], []
    for step, expected, answer in zip(chain.steps, DEFAULT_CHAIN.steps, answers, strict=True):
        options = {fold(option): label for label, option in enumerate(step.options)}
        missing = [option for option in expected.options if fold(option) not in options]
        if missing:
            found = ", ".join(step.options)
            raise BadInput(f"rules: step {step.name!r}: found no answer {missing[0]!r} among {found}, accepted are all")
        labels.append(options[fold(answer.text)] if answer else NOT_ANNOTATED)
        reasoning.append(answer.sentence if answer else "")
    return Annotation(tuple(labels), tuple(reasoning))
