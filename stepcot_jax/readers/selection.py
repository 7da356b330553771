"""Which cases readers get and in which order: in proportion by diagnosis, one choice for a seed."""

import collections
import hashlib
from collections.abc import Hashable, Iterable, Mapping, Sequence

from stepcot_jax.host.errors import BadInput


def choose_stratified(names: Sequence[str], strata: Sequence[int], *, num_cases: int, seed: int) -> tuple[int, ...]:
    """Cases in proportion to their strata, by the method of largest remainders.

    Args:
      names: what tells each case from the others; the choice depends on them and not on their order.
      strata: of each case, such as its diagnosis.
      num_cases: how many are chosen.
      seed: any integer.

    Returns:
      Indices of the chosen cases, in an order that the seed and their names decide and that tells nothing of strata.

    Raises:
      BadInput: there are fewer cases than asked for, or none is asked for.

    >>> sorted(choose_stratified(["a", "b", "c", "d"], [0, 0, 0, 1], num_cases=3, seed=0))[-1]
    3
    """
    if not 1 <= num_cases <= len(names):
        raise BadInput(f"--num-cases: found {num_cases}, accepted are 1 to {len(names)}, the cases that there are")
    members: dict[int, list[int]] = collections.defaultdict(list)
    for index in shuffle(range(len(names)), names, seed=f"{seed}:cases"):
        members[strata[index]].append(index)
    quotas = share_out({stratum: len(indices) for stratum, indices in members.items()}, num_cases)
    chosen = [index for stratum, indices in members.items() for index in indices[: quotas[stratum]]]
    return tuple(shuffle(chosen, names, seed=f"{seed}:numbers"))


def share_out(sizes: Mapping[int, int], total: int) -> dict[int, int]:
    """Parts of `total` in proportion to sizes; what rounding leaves goes to the largest remainders.

    Of equal remainders the larger stratum's comes first, then the smaller label's.

    Args:
      sizes: of each stratum, at least 1.
      total: at most the sum of the sizes.

    >>> share_out({0: 6, 1: 3, 2: 1}, 5)
    {0: 3, 1: 2, 2: 0}
    """
    whole = sum(sizes.values())
    parts = {stratum: size * total // whole for stratum, size in sizes.items()}
    order = sorted(sizes, key=lambda stratum: (-(sizes[stratum] * total % whole), -sizes[stratum], stratum))
    for stratum in order[: total - sum(parts.values())]:
        parts[stratum] += 1
    return parts


def shuffle(indices: Iterable[int], names: Sequence[str], *, seed: Hashable) -> list[int]:
    """Indices in an order of the seed's: that of a hash of each name, which no library's generator has a part in."""

    def rank(index: int) -> bytes:
        return hashlib.sha256(f"{seed}:{names[index]}".encode("utf-8", "surrogatepass")).digest()

    return sorted(indices, key=rank)
