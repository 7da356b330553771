"""AdamW behind a global-norm clip, and the plateau schedule that acts between epochs (paper: Appendix D.6)."""

import dataclasses
from typing import Any

import optax


def make_optimizer(
    *, learning_rate: float, weight_decay: float = 0.01, epsilon: float = 1e-8, clip_norm: float = 1.0
) -> optax.GradientTransformation:
    """Clip the global gradient norm, then AdamW with decoupled decay on every parameter, biases and norms included.

    The learning rate is part of the optimizer's state, so that `scale_learning_rate` can change it between epochs
    without a new compilation and a checkpoint carries it.

    Args:
      learning_rate: of AdamW at the start.
      weight_decay: 0.01 is PyTorch's default, which the authors' code uses.
      epsilon: added to the root of the second moment.
      clip_norm: largest global norm of a gradient.
    """
    constants = ("b1", "b2", "eps", "eps_root", "weight_decay")
    adamw = optax.inject_hyperparams(optax.adamw, static_args=constants)(
        learning_rate=learning_rate, weight_decay=weight_decay, eps=epsilon
    )
    return optax.chain(optax.clip_by_global_norm(clip_norm), adamw)


def scale_learning_rate(state: optax.OptState, factor: float) -> optax.OptState:
    """The optimizer state with its learning rate times `factor`."""
    clip_state, adamw_state = state
    hyperparams = dict(adamw_state.hyperparams)
    hyperparams["learning_rate"] = hyperparams["learning_rate"] * factor
    return clip_state, adamw_state._replace(hyperparams=hyperparams)


@dataclasses.dataclass(frozen=True)
class Plateau:
    """Halving the rate and stopping when validation no longer gets better (teacher-only mode).

    Attributes:
      patience: epochs without a better score after which the rate is multiplied by `factor`.
      factor: what the rate is multiplied by.
      stop_after: epochs without a better score after which training stops.
      best: best score so far.
      waited: epochs since `best`.
    """

    patience: int = 2
    factor: float = 0.5
    stop_after: int = 3
    best: float = float("-inf")
    waited: int = 0

    def after_epoch(self, score: float) -> "Plateau":
        """The schedule's state after an epoch with this validation score; higher is better."""
        if score > self.best:
            return dataclasses.replace(self, best=score, waited=0)
        return dataclasses.replace(self, waited=self.waited + 1)

    @property
    def rate_factor(self) -> float:
        """What to multiply the rate by now."""
        return self.factor if self.waited and self.waited % self.patience == 0 else 1.0

    @property
    def stops(self) -> bool:
        """Whether training ends here."""
        return self.waited >= self.stop_after

    def to_dict(self) -> dict[str, Any]:
        """What a checkpoint has to keep."""
        return {"best": self.best, "waited": self.waited}
