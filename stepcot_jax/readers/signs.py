"""Whether a model and readers differ on the same cases: an exact test that goes by patient."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Int32, Int64

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.readers.key import Key


def compare_signs(
    key: Key,
    people: Mapping[str, Int32[np.ndarray, "case step"]],
    models: Mapping[str, Int32[np.ndarray, "case step"]],
) -> tuple[list[int], dict[str, list[float]]]:
    """Patients with a known answer by step, and by model the p of each step's gain over all readers together.

    Args:
      key: of the sample.
      people: answers of each reader, in the key's order.
      models: answers of each model.
    """
    truth = np.array([case.labels for case in key.cases], np.int32)
    patients = np.array([case.patient_id for case in key.cases], np.str_)
    # As in the bootstrap, a case without a patient stands for itself.
    own = np.where(patients == "", np.char.add("\n", np.arange(len(patients)).astype(np.str_)), patients)
    names, member = np.unique(own, return_inverse=True)
    known = truth != NOT_ANNOTATED
    of_readers = np.sum([(answers == truth) & known for answers in people.values()], axis=0)
    p_values = {}
    for model, answers in models.items():
        # In readers, so that all are whole numbers: +2 where the model is right and one of three readers is.
        more = len(people) * ((answers == truth) & known) - of_readers
        summed = np.zeros((len(names), truth.shape[1]), np.int64)
        np.add.at(summed, member, more)
        p_values[model] = [flip_signs(column) for column in summed.T]
    return [len(np.unique(own[column])) for column in known.T], p_values


def flip_signs(differences: Int64[np.ndarray, "patient"]) -> float:
    """Two-sided p of a sum of differences when each patient's might as well have had the other sign, exactly.

    With one reader and one case a patient it is the exact McNemar test; unlike that it goes by patient and takes
    several readers together (Fisher's randomisation test of pairs).

    >>> flip_signs(np.array([1, 1, 1, 0, 0]))
    0.25
    """
    sizes = np.abs(differences[differences != 0])
    chances = np.ones(1)  # of the sums from -sizes.sum() on, all of which are that plus an even number
    for size in sizes.tolist():
        chances = np.pad(chances / 2, (0, size)) + np.pad(chances / 2, (size, 0))
    sums = 2 * np.arange(len(chances)) - sizes.sum()
    return min(1.0, float(chances[np.abs(sums) >= abs(differences.sum())].sum()))
