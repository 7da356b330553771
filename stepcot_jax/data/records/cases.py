"""A radiograph with its chain, and where in it a finding is: what every source gives and everything else takes."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Box:
    """Where a finding is in its picture.

    Attributes:
      label: the finding.
      x: left edge in pixels of the picture as its file has it.
      y: upper edge in pixels.
      width: in pixels, > 0.
      height: in pixels, > 0.
      sentence: what the report says of it; "" where the source has no sentence.
    """

    label: str
    x: float
    y: float
    width: float
    height: float
    sentence: str = ""


@dataclasses.dataclass(frozen=True)
class Case:
    """One radiograph with its chain.

    Attributes:
      patient_id: patient, as in the file; splits are disjoint by it.
      image_path: image, relative to the data root, with "/" between its parts.
      origin: collection the image comes from; "" where the file has none.
      report: radiologist's report; "" where the file has none.
      labels: label of each step, `chain.NOT_ANNOTATED` where nobody answered.
      reasoning: reason given for each step's answer; "" where the file has none.
      boxes: where findings are; none where the source has no boxes.
      sex: "F", "M" or "O"; "" where unknown.
      age: in years; None where unknown.
      view: projection, such as "PA" or "AP"; "" where unknown.
      provenance: how the answers came about, as names and values; empty for answers that the source came with.
    """

    patient_id: str
    image_path: str
    origin: str
    report: str
    labels: tuple[int, ...]
    reasoning: tuple[str, ...]
    boxes: tuple[Box, ...] = ()
    sex: str = ""
    age: float | None = None
    view: str = ""
    provenance: tuple[tuple[str, str], ...] = ()
