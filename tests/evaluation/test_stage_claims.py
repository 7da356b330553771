"""Stages of a reply that agree with each other, and those that do not."""

import numpy as np
import pytest
from reasoning_records import make_record

from stepcot_jax.evaluation.stage_claims import stage_consistency
from stepcot_jax.reasoning.replies import Reply


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ({"localisation": "In the right lower zone.", "conclusion": "A mass of the right lung."}, 1.0),
        ({"localisation": "In the right lower zone.", "conclusion": "A mass of the left lung."}, 0.0),
        ({"localisation": "In the right lower zone.", "visual": "The left upper zone is dense."}, 0.0),
        ({"localisation": "In the right lower zone.", "visual": "The right upper zone is dense."}, 0.5),
        ({"localisation": "In both lower zones.", "visual": "The right base is dense."}, 1.0),
        ({"knowledge": "A mass is large.", "conclusion": "This is no mass but pneumonia."}, 0.0),
        ({"knowledge": "A mass is large.", "conclusion": "A mass."}, 1.0),
        ({"localisation": "In the right lung.", "conclusion": "A mass."}, np.nan),
        ({}, np.nan),
    ],
)
def test_stages_agree_with_each_other(stages, expected):
    np.testing.assert_equal(stage_consistency(make_record(), Reply("lvkc", stages=stages)), expected)
