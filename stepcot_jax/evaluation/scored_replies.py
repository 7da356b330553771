"""Columns of one model's scored replies, which every figure is computed from."""

import dataclasses

import numpy as np
import numpy.typing as npt

from stepcot_jax.reasoning.record import KINDS

A_SCORE, V_SCORE, GROUNDING, FORMAT = "a_score", "v_score", "grounding", "format"
SHARES = (V_SCORE, GROUNDING, FORMAT)
"""Figures that are means over replies; they are given for each kind, all replies, findings and regions."""

FINDINGS, REGIONS, BOTH = "findings", "regions", "both"

HEADED_FIGURES: tuple[tuple[str, tuple[str, str]], ...] = (
    ("mean A", (A_SCORE, "mean")),
    ("V", (V_SCORE, "all")),
    ("V on findings", (V_SCORE, FINDINGS)),
    ("V on regions", (V_SCORE, REGIONS)),
    ("passed", (GROUNDING, "all")),
    ("well formed", (FORMAT, "all")),
    *((f"{kind} {letter}", (key, kind)) for kind in KINDS for letter, key in (("A", A_SCORE), ("V", V_SCORE))),
)
"""Heading in tables and key of each figure of `vqa_metrics`."""


@dataclasses.dataclass(frozen=True)
class ScoredReplies:
    """Columns [reply] of one model's scored replies. NaN in a column: the reply takes no part in its figures.

    Attributes:
      kinds: of the questions, of `record.KINDS`.
      patients: "" for a patient of its own.
      references: what the true boxes show: "findings", "regions", "both", or "" without boxes.
      a_score: of the answer, 0 to 1; 0 if it could not be read, NaN if a judge gave no usable score.
      v_score: mean IoU of the reply, 0 to 1.
      grounding: 1 if the boxes pass, else 0.
      format: 1 if the reply is well formed, else 0.
      judged_reply: the judge's score of the answer; NaN without one.
      judged_reference: its score of the true answer; NaN without one.
    """

    kinds: npt.NDArray[np.str_]
    patients: npt.NDArray[np.str_]
    references: npt.NDArray[np.str_]
    a_score: npt.NDArray[np.float64]
    v_score: npt.NDArray[np.float64]
    grounding: npt.NDArray[np.float64]
    format: npt.NDArray[np.float64]
    judged_reply: npt.NDArray[np.float64]
    judged_reference: npt.NDArray[np.float64]

    def __post_init__(self) -> None:
        columns = {field.name: getattr(self, field.name).shape for field in dataclasses.fields(self)}
        if set(columns.values()) != {(len(self.kinds),)} or not len(self.kinds):
            raise ValueError(f"columns must have one shape [reply], at least one reply; got {columns}")
        unknown = set(self.kinds.tolist()) - set(KINDS)
        if unknown:
            raise ValueError(f"kinds must be of {', '.join(KINDS)}; got {', '.join(sorted(unknown))}")

    def groups(self) -> dict[str, npt.NDArray[np.bool_]]:
        """Return the replies [reply] of each kind that occurs, of all, and of each kind of reference that occurs."""
        found: dict[str, npt.NDArray[np.bool_]] = {kind: self.kinds == kind for kind in KINDS}
        found["all"] = np.ones(len(self.kinds), bool)
        found |= {name: self.references == name for name in (FINDINGS, REGIONS)}
        return {name: members for name, members in found.items() if members.any()}


def find_scored_kinds(*models: ScoredReplies) -> tuple[str, ...]:
    """Return the kinds of which every model has a scored answer, in the order of `record.KINDS`."""
    return tuple(kind for kind in KINDS if all((~np.isnan(each.a_score[each.kinds == kind])).any() for each in models))
