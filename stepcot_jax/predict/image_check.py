"""Whether an image is of the kind that a network was trained on: by its gate, and by the DICOM header."""

import dataclasses
from typing import Any

from stepcot_jax.data.images.dicom_projection import Projection

NO_GATE = "no gate stored"
_LIMIT = "1 is the limit"


@dataclasses.dataclass(frozen=True)
class ImageCheck:
    """What is known of an image beside the images that a network was trained on.

    Attributes:
      trained_on: the training data in a few words; "" if unknown.
      gate_score: distance to the training images, above 1 outside of them (`evaluation.gate`); None if the run stored
        no gate.
      projection: by the DICOM header; "" if it does not say.
    """

    trained_on: str = ""
    gate_score: float | None = None
    projection: Projection = ""

    @property
    def outside(self) -> bool | None:
        """Whether the gate finds the image outside of what the network was trained on; None without a gate."""
        return None if self.gate_score is None else self.gate_score > 1

    @property
    def warnings(self) -> tuple[str, ...]:
        """What speaks against the answers, a sentence each; empty if nothing does."""
        found = []
        if self.outside:
            found.append(f"outside of what it was trained on: score {self.gate_score:.2f} ({_LIMIT})")
        if self.projection not in ("frontal", ""):
            found.append(f"the DICOM header names {_article(self.projection)} view; the network expects a frontal one")
        return tuple(found)

    def __str__(self) -> str:
        """The training data and the score, in one line."""
        score = NO_GATE if self.gate_score is None else f"score of this image {self.gate_score:.2f} ({_LIMIT})"
        return f"trained on: {self.trained_on or 'unknown'}; {score}"

    def as_dict(self) -> dict[str, Any]:
        """Return plain types, for JSON."""
        return {**dataclasses.asdict(self), "outside": self.outside, "warnings": list(self.warnings)}


def _article(word: str) -> str:
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"
