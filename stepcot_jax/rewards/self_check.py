"""The self-check reward of MEDSAGE (Eq. 10 and 11)."""

ALPHA = 0.2
"""Weight of the self-check reward that the paper reports as best."""


def self_check_reward(first_is_right: bool, second_is_right: bool) -> float:
    """Return 1 if the first answer was wrong and the second, after the self-check, is right (r_sc, Eq. 10)."""
    return float(not first_is_right and second_is_right)


def self_check_advantage(first_is_right: bool, second_is_right: bool, *, alpha: float = ALPHA) -> float:
    """Return the advantage of the self-check's tokens, alpha times the reward (A_sc, Eq. 11).

    >>> self_check_advantage(False, True), self_check_advantage(True, True)
    (0.2, 0.0)
    """
    return alpha * self_check_reward(first_is_right, second_is_right)
