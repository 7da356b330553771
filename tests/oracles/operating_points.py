"""Operating points from both splits in one call, for tests of what is written from them."""

from stepcot_jax.evaluation.operating_points import choose_thresholds, measure_thresholds
from stepcot_jax.evaluation.predictions import ValidationPredictions


def operating_points(val, test, chain, *, calibration, rule, num_resamples):
    val = ValidationPredictions(val.predictions, val.facts)
    options = {"calibration": calibration, "num_resamples": num_resamples}
    return measure_thresholds(choose_thresholds(val, chain, rule=rule, **options), test, chain, **options)
