import numpy as np

from stepcot_jax.chain import Chain, Step
from stepcot_jax.run.start import match_params

THERE = Chain((Step("Size", "?", ("Small", "Large")), Step("Side", "?", ("Left", "Right", "N/A"))))
HERE = Chain((Step("side", "?", ("Right", "Both", "left")), Step("Count", "?", ("One", "Two"))))


def tree(chain, *, seed, width=2, image_width=3):
    rng = np.random.default_rng(seed)
    normal = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    answers = chain.answers_per_step
    classifiers = {f"_{n}": {"kernel": normal(width, size), "bias": normal(size)} for n, size in enumerate(answers)}
    return {
        "teacher": {
            "heads": {"fusion_0": {"linear": {"kernel": normal(len(answers), 2 * width, width)}}},
            "image_projections": {"linear": {"bias": normal(len(answers), width)}},
            "memory_start": normal(width),
            **{f"classifier{name}": own for name, own in classifiers.items()},
        },
        "student": {
            "image_projection": {"linear": {"kernel": normal(image_width, width)}},
            **{f"head{name}": {key: leaf + 1 for key, leaf in own.items()} for name, own in classifiers.items()},
        },
    }


def test_steps_and_answers_follow_their_names():
    found, like = tree(THERE, seed=1), tree(HERE, seed=2)
    matched = match_params(found, like, stored_chain=THERE, chain=HERE)
    teacher, student = matched.params["teacher"], matched.params["student"]
    np.testing.assert_array_equal(teacher["memory_start"], found["teacher"]["memory_start"])
    for part in (("heads", "fusion_0", "linear", "kernel"), ("image_projections", "linear", "bias")):
        new, old, start = teacher, found["teacher"], like["teacher"]
        for key in part:
            new, old, start = new[key], old[key], start[key]
        np.testing.assert_array_equal(new[0], old[1])  # "Side" was the second step
        np.testing.assert_array_equal(new[1], start[1])
    for network, name in (("teacher", "classifier"), ("student", "head")):
        new, old, start = (params[network] for params in (matched.params, found, like))
        for leaf in ("kernel", "bias"):
            np.testing.assert_array_equal(new[f"{name}_0"][leaf][..., 0], old[f"{name}_1"][leaf][..., 1])  # Right
            np.testing.assert_array_equal(new[f"{name}_0"][leaf][..., 1], start[f"{name}_0"][leaf][..., 1])  # Both
            np.testing.assert_array_equal(new[f"{name}_0"][leaf][..., 2], old[f"{name}_1"][leaf][..., 0])  # Left
            np.testing.assert_array_equal(new[f"{name}_1"][leaf], start[f"{name}_1"][leaf])
    np.testing.assert_array_equal(
        student["image_projection"]["linear"]["kernel"], found["student"]["image_projection"]["linear"]["kernel"]
    )
    assert matched.answers == {"side": ("Right", "left")}
    assert matched.fresh == ("answers of 'side': Both", "step 'Count'")
    assert matched.misfits == ()
    # One step of the stacked parameters, two answers of each network's classifier, and what all steps share.
    assert matched.num_taken == (4 * 2 + 2) + 2 * 2 * (2 + 1) + 2 + 3 * 2
    assert matched.num_all == 2 * (4 * 2 + 2) + 2 * (3 + 2) * (2 + 1) + 2 + 3 * 2


def test_other_shapes_are_named_and_stay_fresh():
    found, like = tree(THERE, seed=1), tree(THERE, seed=2, image_width=5)
    found["teacher"]["image_projections"]["linear"]["bias"] = np.zeros((2, 9), np.float32)
    del found["teacher"]["memory_start"]
    matched = match_params(found, like, stored_chain=THERE, chain=THERE)
    names = ("teacher/image_projections/linear/bias", "teacher/memory_start", "student/image_projection/linear/kernel")
    assert tuple(misfit.partition(":")[0] for misfit in matched.misfits) == names
    kernel = matched.params["student"]["image_projection"]["linear"]["kernel"]
    np.testing.assert_array_equal(kernel, like["student"]["image_projection"]["linear"]["kernel"])


def test_heads_that_are_one_matrix_are_taken_for_the_same_steps_and_answers_alone():
    turned = Chain(THERE.steps[::-1])  # as many answers in all
    trees = {seed: tree(chain, seed=seed) for seed, chain in enumerate((THERE, THERE, turned))}
    for seed, params in trees.items():
        params["plain"] = {"answers": {"kernel": np.full((3, 5), seed, np.float32)}}
    for seed, chain, kept, fresh in ((1, THERE, 0, ()), (2, turned, 2, ("network plain",))):
        matched = match_params(trees[0], trees[seed], stored_chain=THERE, chain=chain)
        np.testing.assert_array_equal(matched.params["plain"]["answers"]["kernel"], kept)
        assert (matched.fresh, matched.misfits) == (fresh, ())
