"""What a structured report says: a measurement group for each step, after DICOM's template 1500 (PS3.16).

Codes are DICOM's own where these exist. Questions and answers are a chain's own words: their codes are of the private
scheme 99STEPCOT, digests of these words, so that one code never means two things. No SNOMED codes are guessed.
"""

import dataclasses
import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stepcot_jax.host.text import make_printable
from stepcot_jax.predict.answers import ChainReading
from stepcot_jax.predict.step_answers import StepAnswer

if TYPE_CHECKING:
    from highdicom.sr import (
        AlgorithmIdentification,
        CodedConcept,
        ContentItem,
        MeasurementReport,
        MeasurementsAndQualitativeEvaluations,
        ObservationContext,
    )
    from pydicom import Dataset

SCHEME = "99STEPCOT"
MAKER = "stepcot_jax"
NOT_A_DIAGNOSIS = (
    "Answers of a neural network, for research. Not a diagnosis and not from a medical device; no physician has "
    "verified them."
)

_LONGEST_MEANING, _LONGEST_CODE = 64, 16


@dataclasses.dataclass(frozen=True)
class ReportingNetwork:
    """The network that a report names as its observer.

    Attributes:
      name: "teacher" or "student", with "with counted pairs" if they were added to its logits.
      digest: SHA-256 of its weights, in hex.
    """

    name: str
    version: str
    digest: str

    @property
    def identity(self) -> tuple[str, ...]:
        """What a UID of this observer is derived from."""
        return self.name, self.version, self.digest

    @property
    def title(self) -> str:
        """Package and name."""
        return f"{MAKER} {self.name}"


def derive_uid(*parts: str) -> str:
    """Return a DICOM UID that is the same for the same texts."""
    from pydicom.uid import generate_uid

    return str(generate_uid(entropy_srcs=["\0".join((MAKER, *parts))]))


def make_content(reading: ChainReading, source: "Dataset", network: ReportingNetwork) -> "MeasurementReport":
    """Return the content tree of a reading."""
    from highdicom import sr
    from pydicom.sr.codedict import codes

    report = sr.MeasurementReport(
        observation_context=_observe(network),
        procedure_reported=codes.LN.XRUnspecifiedBodyRegion,
        imaging_measurements=[_make_group(each, source, network) for each in reading.steps],
        title=codes.DCM.ImagingMeasurementReport,
    )
    root = report[0].ContentSequence
    for item in _describe_reading(reading):  # in front of the measurements: viewers show the tree in its order
        root.insert(len(root) - 1, item)
    return report


def _observe(network: ReportingNetwork) -> "ObservationContext":
    from highdicom import sr
    from pydicom.sr.codedict import codes

    device = sr.DeviceObserverIdentifyingAttributes(
        uid=derive_uid("device", *network.identity),
        name=network.title,
        manufacturer_name=MAKER,
        model_name=f"{network.title} {network.version}",
        serial_number=network.digest,
    )
    return sr.ObservationContext(
        observer_device_context=sr.ObserverContext(
            observer_type=codes.DCM.Device, observer_identifying_attributes=device
        )
    )


def _describe_reading(reading: ChainReading) -> Iterator["ContentItem"]:
    """Yield what holds for all steps together."""
    from pydicom.sr.codedict import codes

    yield _text(codes.DCM.Comment, NOT_A_DIAGNOSIS)
    yield _text(codes.DCM.Summary, reading.paragraph)
    yield _text(_concept("network and its probabilities"), reading.describe_calibration())
    if any(each.answer_set for each in reading.steps):
        yield _text(_concept("answer sets"), f"such sets hold the true answer in {reading.coverage_of}")
    yield _text(_concept("training data and distance to them"), str(reading.check))
    if reading.check.outside is not None:
        verdict = codes.SCT.Yes if reading.check.outside else codes.SCT.No
        yield _code(_concept("outside of what it was trained on"), verdict)
    for warning in reading.warnings:
        yield _text(_concept("warning"), warning)
    for pair in reading.never_together:
        yield _text(_concept("answers never together in training"), pair)
    if reading.rule:
        yield _text(_concept("rule of the operating points"), f"{reading.rule}; figures of the test cases")


def _make_group(
    each: StepAnswer, source: "Dataset", network: ReportingNetwork
) -> "MeasurementsAndQualitativeEvaluations":
    """Return the answer to one step: the answer as a code, the network's probability of it, and what limits it."""
    from highdicom import sr
    from pydicom.sr.codedict import codes

    name = each.step.name
    coded = [(_concept(name), each.answer)]
    coded += [(_concept("in the answer set"), option) for option in each.answer_set or ()]
    coded += [(_concept("at or above its operating point"), option) for option in each.above]
    group = sr.MeasurementsAndQualitativeEvaluations(
        tracking_identifier=sr.TrackingIdentifier(
            uid=derive_uid("step", source.SOPInstanceUID, *network.identity, name), identifier=make_printable(name)
        ),
        algorithm_id=None if each.given else _identify(network),
        measurements=[
            sr.Measurement(
                name=_concept("network's probability of the given answer")
                if each.given
                else codes.DCM.CertaintyOfFinding,
                value=round(100 * each.probability, 2),
                unit=codes.UCUM.Percent,
            )
        ],
        qualitative_evaluations=[
            sr.QualitativeEvaluation(concept, _concept(f"{name}\n{option}", meaning=option))
            for concept, option in coded
        ],
        source_images=[sr.SourceImageForMeasurementGroup.from_source_image(source)],
    )
    group[0].ContentSequence.extend(_describe_step(each))
    return group


def _identify(network: ReportingNetwork) -> "AlgorithmIdentification":
    from highdicom import sr
    from pydicom.sr.codedict import codes

    return sr.AlgorithmIdentification(
        name=network.title,
        version=network.version,
        parameters=[f"SHA-256 of the weights: {network.digest}"],
        family=codes.DCM.ArtificialIntelligence,
        manufacturer=MAKER,
    )


def _describe_step(each: StepAnswer) -> Iterator["ContentItem"]:
    yield _text(_concept("question"), each.step.question)
    if _fit_meaning(each.answer) != each.answer:
        yield _text(_concept("answer in full"), each.answer)
    if each.given:
        yield _text(_concept("answer given by a person"), each.describe_certainty())
    if each.findings:
        called = ", ".join(str(finding) for finding in each.findings if finding.is_above)
        yield _text(_concept("figures of the operating points"), called or "no answer is above its operating point")


def _concept(text: str, *, meaning: str | None = None) -> "CodedConcept":
    """Return the private code of a text, which is its meaning unless another is given."""
    from highdicom.sr import CodedConcept

    value = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_LONGEST_CODE]
    return CodedConcept(
        value=value, scheme_designator=SCHEME, meaning=_fit_meaning(text if meaning is None else meaning)
    )


def _fit_meaning(text: str) -> str:
    """Return a text as the meaning of a code: at most 64 printable characters, no backslash (PS3.5, LO)."""
    shown = make_printable(text).replace("\\", "/")
    return shown if len(shown) <= _LONGEST_MEANING else f"{shown[: _LONGEST_MEANING - 3]}..."


def _text(name: Any, text: str) -> "ContentItem":
    from highdicom.sr import RelationshipTypeValues, TextContentItem

    return TextContentItem(name=name, value=make_printable(text), relationship_type=RelationshipTypeValues.CONTAINS)


def _code(name: Any, value: Any) -> "ContentItem":
    from highdicom.sr import CodeContentItem, RelationshipTypeValues

    return CodeContentItem(name=name, value=value, relationship_type=RelationshipTypeValues.CONTAINS)
