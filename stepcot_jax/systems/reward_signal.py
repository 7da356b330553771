"""Whether rewards told replies apart: updates without a signal are counted and named."""

import dataclasses
import math


@dataclasses.dataclass
class RewardSignal:
    """Counts updates by rewards and those without a signal, from the last start of the run.

    Attributes:
      units: what is rewarded, such as "the replies to a prompt".
      num_equal: of them those whose rewards were equal within every group.
      num_unscored: of them those without any reward.
      num_in_a_row: last updates that had no signal.
      mean: mean reward of the last update that had rewards.
    """

    units: str
    num_updates: int = 0
    num_equal: int = 0
    num_unscored: int = 0
    num_in_a_row: int = 0
    mean: float = float("nan")

    def add(self, *, mean: float, differs: bool) -> None:
        """Count an update."""
        is_scored = not math.isnan(mean)
        self.num_updates += 1
        self.num_unscored += not is_scored
        self.num_equal += is_scored and not differs
        self.num_in_a_row = 0 if is_scored and differs else self.num_in_a_row + 1
        self.mean = mean if is_scored else self.mean

    def warn(self, phase: str) -> str:
        """Return a line that says why a phase learnt nothing from rewards; "" if it could, or had no update."""
        if not self.num_updates or self.num_equal + self.num_unscored < self.num_updates:
            return ""
        advice = "nothing was learnt from them: check config.rewards, or fine-tune longer"
        if not self.num_equal:
            return f"phase {phase!r}: no reward in {self.num_updates} updates was defined (all are NaN); {advice}"
        unscored = f", {self.num_unscored} without any reward" if self.num_unscored else ""
        return (
            f"phase {phase!r}: the rewards of {self.units} were equal in all {self.num_updates} updates (mean "
            f"{self.mean:.3f}{unscored}); {advice}"
        )
