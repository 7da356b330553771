"""A denial that ends early, reaches in doubt, or is a sign: never a certain Normal."""

import pytest
from annotate.rules.tables import read_table

from stepcot_jax.annotate.annotation import CannotAnnotate
from stepcot_jax.annotate.rules.annotator import annotate_report
from stepcot_jax.chain import DEFAULT_CHAIN

BULLETS = "\u2192 \u25a0 # \u00b7 ~ || _ \u25cb \u2023 \u00bb *** > = + - -> --- (b) 2- \\n <hr> </dd><dd>"


def diagnose(report):
    try:
        return DEFAULT_CHAIN.steps[-1].options[annotate_report(report).labels[-1]]
    except CannotAnnotate:
        return "aside"


@pytest.mark.parametrize("bullet", BULLETS.split(" "))
def test_a_denial_ends_at_the_next_item_of_a_list(bullet):
    assert diagnose(f"FINDINGS: No effusion {bullet} Nodule in left upper lobe") == "Nodule"


EXPECTED = """
Effusion: No right effusion; moderate left. | No right pleural effusion, but there is on the left.
Effusion: No pleural effusion on the left. Small on the right. | No right effusion. Left-sided is small.
Effusion: No effusion, except a small one on the left. | Effusion is absent on the right but present on the left.
Effusion: Pneumothorax: (-). Effusion: (+). | Pneumothorax -, effusion ++ | (+) effusion, (-) pneumothorax
Effusion: + effusion, - pneumothorax | Pneumothorax: N. Effusion: Y. | Pneumothorax = 0, effusion = 1
Effusion: \u2610 Pneumothorax \u2612 Effusion | Effusion \u2713 Pneumothorax \u2717 | (x) Effusion ( ) Pneumothorax
Effusion: Pneumothorax? No. Effusion? Yes. | Effusion: 1. Pneumothorax: 0. | Effusion - small left. Pneumothorax - none.
Effusion: No reduction in effusion. | Not without effusion. | Effusion is not unlikely.
Normal: Pneumonia was suspected but not found. | Pneumonia not proven. | Ruled-out: pneumonia. Lungs are clear.
Normal: Pneumonia rule-out. Lungs clear. | Nil effusion. Lungs clear. | Pneumonia: excluded. Lungs clear.
Normal: No effusion on the right or left. | No mass lesion. | No left effusion. The right lung is clear.
aside: Effusion not evaluable. | Pneumothorax: not assessed. | Evaluation for pneumothorax is limited. Lungs clear.
aside: No effusion, nodule in left upper lobe. | No effusion, left upper lobe nodule. | No effusion.nodule in left lung
aside: No right effusion, yet a left one is seen. | No effusion right, yes left. | No effusion except on the left.
aside: No right pleural effusion. There is one on the left. | No effusion, only on the left a small amount.
"""


@pytest.mark.parametrize(("expected", "report"), read_table(EXPECTED))
def test_what_a_report_states_denies_or_leaves_in_doubt(expected, report):
    assert diagnose(report) == expected
