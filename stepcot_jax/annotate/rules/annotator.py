"""Answer the seven steps from a report by rules, deterministically and offline.

`terms` names findings, `diagnosis` picks one, `lesions` collects the words about it, `descriptions` maps them to
answers. Every answer cites its sentence; an implied answer (a nodule's pattern is nodular, an effusion is in the
pleura) cites the sentence of the diagnosis. A step that the report does not answer stays open (`NOT_ANNOTATED`, no
reasoning): the density where only the heart is enlarged, the pattern of an atelectasis that is no line.

A finding that the report calls possible ("may represent", "cannot be excluded") is answered, and marked uncertain: the
diagnosis, what is said of a lesion that no asserted shadow supports, and N/A beside a possible secondary effect. Likely
findings ("probable", "suggests") count as asserted.
"""

from stepcot_jax.annotate.annotation import Annotation, Report
from stepcot_jax.annotate.rules import descriptions, terms
from stepcot_jax.annotate.rules.assertions import Status
from stepcot_jax.annotate.rules.diagnosis import find_asserted, find_diagnosis, is_incidental, rank_first
from stepcot_jax.annotate.rules.lesions import Answer, Lesion, doubted
from stepcot_jax.annotate.rules.mentions import Mention, Reading, read_report
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
"""Findings that answer step 6 beside another diagnosis, in order of precedence."""

_LUCENT = frozenset({terms.PNEUMOTHORAX, terms.LUCENCY, terms.EMPHYSEMA})
_DENSE = frozenset({*DIAGNOSIS_OPTIONS, *terms.LESIONS, terms.EDEMA}) - {
    *_LUCENT,
    *(terms.NORMAL, terms.CARDIOMEGALY, terms.CALCIFIED_NODE),
}
"""Findings denser than lung. A large heart says nothing of the lungs, nor does a calcified node."""

_EXPLAINABLE = (terms.OPACITY, terms.LUCENCY)
"""Lesions that another finding may explain: "opacity, which may represent atelectasis"."""


def annotate_report(report: Report | str, *, chain: Chain = DEFAULT_CHAIN) -> Annotation:
    """Annotate a report.

    Args:
      report: the report, or its text.
      chain: the steps; options must be those of `DEFAULT_CHAIN`, in any order.

    Raises:
      CannotAnnotate: the report is empty, contradicts itself, or its findings are outside the taxonomy.
      BadInput: the chain has other options.
    """
    reading = read_report(report if isinstance(report, str) else report.text)
    return _annotation(_answers(reading, find_diagnosis(reading)), chain)


def describe_report(report: Report) -> Annotation:
    """Annotate the first-ranking lesion of lung or pleura, whether or not it is a diagnosis of the chain.

    Next to an enlarged heart this describes the opacity. A lesion outside the taxonomy leaves the diagnosis not
    annotated.
    """
    reading = read_report(report.text)
    return _annotation(_answers(reading, _find_lesion(reading) or find_diagnosis(reading)), DEFAULT_CHAIN)


def _find_lesion(reading: Reading) -> Mention | None:
    """Return the first-ranking lesion; a certain granuloma or scar precedes a merely possible diagnosis."""
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
    about = [lesion.distribution(), lesion.pattern(), lesion.location(), lesion.morphology()]
    return [
        _detection(reading, chief, lesion),
        *(answer if lesion.is_asserted or answer is None else doubted(answer) for answer in about),
        _secondary(reading, chief),
        Answer(chief.finding, chief.sentence.text, uncertain=not chief.present) if named else None,
    ]


def _normal_answers(reading: Reading) -> list[Answer | None]:
    denied = (item for item in reading.mentions if item.status == Status.ABSENT and item.sort == "lesion")
    clear = (sentence for sentence in reading.sentences if "lung" in sentence.line.lower())
    concluding = (sentence for sentence in reading.sentences if sentence.role == "impression")
    last = next(concluding, reading.sentences[-1]).text
    first = [*(sentence.text for sentence in clear), *(item.sentence.text for item in denied), last][0]
    none = Answer(NOT_APPLICABLE, first)
    return [Answer(descriptions.NO_ABNORMALITY, first), *[none] * 5, Answer(terms.NORMAL, last)]


def _detection(reading: Reading, chief: Mention, lesion: Lesion) -> Answer | None:
    """Return the answer of step 1; None if nothing is said to be denser or more lucent, as with a large heart alone."""
    described = lesion.density()
    if described:
        return described
    lucent = chief if chief.finding in _LUCENT else find_asserted(reading, _LUCENT)
    dense = chief if chief.finding in _DENSE else find_asserted(reading, _DENSE)
    group = _LUCENT if chief is lucent else _DENSE
    doubtful = not chief.present and chief in (lucent, dense) and find_asserted(reading, group) is None
    if lucent and dense:
        sentences = " ".join(dict.fromkeys(item.sentence.text for item in (lucent, dense)))
        return Answer(descriptions.MIXED, sentences, doubtful)
    if lucent:
        return Answer(descriptions.DECREASED, lucent.sentence.text, doubtful)
    return Answer(descriptions.INCREASED, dense.sentence.text, doubtful) if dense else None


def _secondary(reading: Reading, chief: Mention) -> Answer:
    beside = {
        item.finding: item for item in reversed(reading.mentions) if item.present and item.finding != chief.finding
    }
    for finding, answer in SECONDARY.items():
        if finding in beside:
            return Answer(answer, beside[finding].sentence.text)
    named = [item for item in reading.mentions if item.finding in SECONDARY and item.finding != chief.finding]
    if possible := [item for item in named if item.status == Status.POSSIBLE]:
        return Answer(NOT_APPLICABLE, possible[0].sentence.text, uncertain=True)
    denied = [item for item in reading.mentions if item.finding in SECONDARY and item.status == Status.ABSENT]
    return Answer(NOT_APPLICABLE, (denied or [chief])[0].sentence.text)


def _annotation(answers: list[Answer | None], chain: Chain) -> Annotation:
    if chain.num_steps != len(answers):
        raise BadInput(f"--annotator=rules answers the {len(answers)} default steps; the chain has {chain.num_steps}")
    labels, reasoning, uncertain = [], [], []
    for step, expected, answer in zip(chain.steps, DEFAULT_CHAIN.steps, answers, strict=True):
        options = {fold(option): label for label, option in enumerate(step.options)}
        missing = [option for option in expected.options if fold(option) not in options]
        if missing:
            raise BadInput(
                f"--annotator=rules: step {step.name!r} has no option {missing[0]!r}; use the default options"
            )
        labels.append(options[fold(answer.text)] if answer else NOT_ANNOTATED)
        reasoning.append(answer.sentence if answer else "")
        uncertain.append(answer is not None and answer.uncertain)
    return Annotation(tuple(labels), tuple(reasoning), uncertain=tuple(uncertain) if any(uncertain) else ())
