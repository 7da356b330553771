"""The joint model against sums over all chains, and against worlds whose posterior is known."""

import dataclasses
import itertools

import numpy as np
import pytest
from refusals import refuse_edited
from scipy.special import log_softmax, softmax

from stepcot_jax.chain import NOT_ANNOTATED, Chain, Step
from stepcot_jax.evaluation.joint import (
    JointModel,
    PooledReader,
    add_joined,
    as_evidence,
    count_given,
    infer,
    learn_tree,
    name_joined,
    read_joint,
    weigh_given,
    write_joints,
)
from stepcot_jax.evaluation.joint_fit import (
    WrittenBack,
    draw_given,
    fit_conflict,
    fit_joint,
    fit_pool,
    read_written_back,
)
from stepcot_jax.evaluation.predictions import Predictions, SplitPredictions

SIZES = (3, 2, 4, 3)
CHAIN = Chain(tuple(Step(f"S{step}", "?", tuple("ABCD"[:size])) for step, size in enumerate(SIZES)))
CHAINS = list(itertools.product(*map(range, SIZES)))
RNG = np.random.default_rng(1)


def draw_labels(num_cases=200):
    """Step 1 follows the last one, step 2 follows steps 0 and the last one, both with errors."""
    labels = np.stack([RNG.integers(size, size=num_cases) for size in SIZES], axis=1)
    labels[:, 1] = np.where(RNG.random(num_cases) < 0.8, labels[:, 3] % 2, labels[:, 1])
    labels[:, 2] = np.where(RNG.random(num_cases) < 0.7, (labels[:, 0] + labels[:, 3]) % 4, labels[:, 2])
    return labels


@pytest.fixture(autouse=True)
def draws_of_each_test():
    """The same ones whichever tests ran before."""
    RNG.bit_generator.state = np.random.PCG64(2).state


LABELS = draw_labels()
TREE = learn_tree(LABELS, SIZES)
MODEL = JointModel(TREE, (0.7, 1.0, 1.3, 0.5), (0.6, 0.2, 1.0, 0.3))
LOGITS = RNG.normal(size=(6, 4, 4)) * 2


def probability(tree, chain):
    shares = [
        tree.tables[step][chain[-1], 0 if parent is None else chain[parent], chain[step]]
        for step, parent in enumerate(tree.parents)
    ]
    return tree.last[chain[-1]] * np.prod(shares)


def sum_chains(tree, factors):
    """P(step, last step) of each step, by a sum over all chains, and the total; factors: for each step [answer]."""
    weights = np.array(
        [
            probability(tree, chain) * np.prod([factor[answer] for factor, answer in zip(factors, chain, strict=True)])
            for chain in CHAINS
        ]
    )
    pairs = [np.zeros((size, SIZES[-1])) for size in SIZES]
    for chain, weight in zip(CHAINS, weights / weights.sum(), strict=True):
        for step, answer in enumerate(chain):
            pairs[step][answer, chain[-1]] += weight
    return pairs, weights.sum()


def some_given():
    told = np.full((6, 4), NOT_ANNOTATED)
    told[1, 0], told[2, :3], told[3, 3] = 2, (1, 0, 3), 1
    given = as_evidence(told, SIZES)
    given[4, 1, :2], given[5, 2] = (0.8, 0.2), (0.1, 0.6, 0.1, 0.2)
    return given


def test_messages_give_the_sums_over_all_chains():
    assert sum(probability(TREE, chain) for chain in CHAINS) == pytest.approx(1)
    evidence = [RNG.normal(size=(5, size)) * 3 for size in SIZES]
    evidence[0][2] = (-np.inf, 0, -np.inf)  # a certain answer
    pairs, totals = infer(TREE, evidence)
    for case in range(5):
        expected, total = sum_chains(TREE, [np.exp(logs[case]) for logs in evidence])
        assert totals[case] == pytest.approx(np.log(total))
        for found, own in zip(pairs, expected, strict=True):
            np.testing.assert_allclose(found[case], own, atol=1e-12)
    for found, own in zip(TREE.marginals, sum_chains(TREE, [np.ones(size) for size in SIZES])[0], strict=True):
        np.testing.assert_allclose(found, own.sum(axis=1))


def test_tables_are_smoothed_counts_and_missing_answers_enter_none():
    labels = np.array([[0, 0, 0, 0], [0, 1, 0, 0], [2, 1, 3, 1], [NOT_ANNOTATED, 1, 2, 1], [1, 0, 1, NOT_ANNOTATED]])
    tree = learn_tree(labels, SIZES)
    np.testing.assert_allclose(tree.last, np.array([3, 3, 1]) / 7)
    root = tree.order[0]
    shares = np.bincount(labels[labels[:, root] >= 0, root], minlength=SIZES[root]) + 1
    shares = shares / shares.sum()
    with_first = labels[(labels[:, 3] == 0) & (labels[:, root] >= 0), root]
    expected = (np.bincount(with_first, minlength=SIZES[root]) + 2 * shares) / (len(with_first) + 2)
    np.testing.assert_allclose(tree.tables[root][0, 0], expected)
    for step, parent in enumerate(tree.parents):
        np.testing.assert_allclose(tree.tables[step].sum(axis=-1), 1)
        assert (tree.tables[step] > 0).all()
        if parent is not None:  # no case has this pair of answers: the row without the parent
            unseen = ~((labels[:, 3] == 2) & (labels[:, parent] >= 0)).any()
            assert unseen
            np.testing.assert_allclose(tree.tables[step][2], np.tile(tree.tables[step][2, :1], (SIZES[parent], 1)))


def test_the_tree_joins_the_steps_that_depend_on_each_other():
    labels = draw_labels(3000)
    assert (0, 2) in {tuple(sorted((step, parent))) for step, parent in enumerate(learn_tree(labels, SIZES).parents) if
                      parent is not None}  # fmt: skip
    alone = learn_tree(labels[:, 3:], SIZES[3:])
    assert (alone.parents, alone.order) == ((), ())
    pairs, _ = infer(alone, [np.log([[0.2, 0.5, 0.3]])])
    np.testing.assert_allclose(pairs[0][0].sum(axis=1), softmax(np.log([0.2, 0.5, 0.3]) + np.log(alone.last)))


def test_a_reading_under_given_answers_is_the_sum_over_all_chains():
    given, reader = some_given(), MODEL.join(LOGITS)
    read, pairs = reader(given[None])[0], reader.look_ahead(given)
    share = np.minimum(count_given(given, SIZES), 1)
    assert share[[0, 1, 2, 3]].tolist() == [0, 1, 1, 1]
    assert 0 < share[5] < share[4] < 1
    for case in range(4):
        own = [log_softmax(LOGITS[case, step, :size] / MODEL.temperatures[step]) for step, size in enumerate(SIZES)]
        pictures = [
            np.exp(weight * (logs - np.log(shares)))
            for logs, shares, weight in zip(own, TREE.marginals, MODEL.weights, strict=True)
        ]
        told = [np.where(given[case, step].any(), given[case, step, :size], 1) for step, size in enumerate(SIZES)]
        both = [picture * likelihood for picture, likelihood in zip(pictures, told, strict=True)]
        for step, expected in enumerate(sum_chains(TREE, both)[0]):
            if case:
                np.testing.assert_allclose(pairs[step][case], expected, atol=1e-9)
            found = read[case, step, : SIZES[step]]
            others = [*both[:step], pictures[step], *both[step + 1 :]]
            if np.delete(given[case], step, axis=0).any():
                np.testing.assert_allclose(found, sum_chains(TREE, others)[0][step].sum(axis=1), atol=1e-9)
            else:  # nothing is given to the other steps: the network's own
                np.testing.assert_allclose(found, np.exp(own[step]), atol=1e-9)
            assert not read[case, step, SIZES[step] :].any()


@pytest.mark.parametrize("step", range(3))
def test_looking_ahead_names_the_reading_that_follows_an_answer(step):
    reader, given = MODEL.join(LOGITS), some_given()
    given[:, step] = 0
    pair, now = reader.look_ahead(given)[step], reader(given[None])[0, :, step, : SIZES[step]]
    np.testing.assert_allclose(pair.sum(axis=2), now, atol=1e-9)
    for answer in range(SIZES[step]):
        told = given.copy()
        told[:, step] = np.eye(4)[answer]
        last = reader(told[None])[0, :, -1, : SIZES[-1]]
        asked = ~given[:, -1].any(axis=1)  # a given last step is read without its answer
        np.testing.assert_allclose(
            (pair[:, answer] / pair[:, answer].sum(axis=1, keepdims=True))[asked], last[asked], atol=1e-9
        )


def test_an_answer_that_says_nearly_nothing_changes_nearly_nothing():
    reader, labels = MODEL.join(LOGITS), np.tile([[1, NOT_ANNOTATED, 2, NOT_ANNOTATED]], (6, 1))
    nothing = np.zeros((1, 6, 4, 4))
    for above in (1e-2, 1e-3, 1e-4):
        given = as_evidence(labels, SIZES, reliability=1 / 3 + above)
        given[:, 2] = as_evidence(labels, SIZES, reliability=1 / 4 + above)[:, 2]
        moved = np.abs(reader(given[None]) - reader(nothing)).sum(axis=-1).max() / 2
        assert 0 < moved < above


def test_evidence_of_labels_is_their_reliability():
    given = as_evidence(np.array([[1, NOT_ANNOTATED, 3, 0]]), SIZES, reliability=0.7)
    np.testing.assert_allclose(given[0, 0], [0.15, 0.7, 0.15, 0])
    assert not given[0, 1].any()
    np.testing.assert_allclose(given[0, 2], [0.1, 0.1, 0.1, 0.7])
    drawn = draw_given(LABELS, seed=0)
    counts = (drawn != NOT_ANNOTATED).sum(axis=1)
    assert set(counts.tolist()) == {1, 2, 3}
    assert ((drawn == LABELS) | (drawn == NOT_ANNOTATED)).all()


def draw_world(num_cases, *, noise, copies):
    """Labels, and calibrated readings of a picture that all steps see with the same error."""
    labels = draw_labels(num_cases)
    seen = np.where(RNG.random(num_cases) < noise, RNG.integers(3, size=num_cases), labels[:, 3])
    logits = np.zeros((num_cases, 4, 4))
    of_picture = np.log(np.eye(3) * (1 - noise) + noise / 3)[seen]
    logits[:, 3, :3] = of_picture
    if copies:  # step 1 says again what the last step says of the same picture
        table = np.stack([np.bincount(labels[labels[:, 3] == last, 1], minlength=2) for last in range(3)]) + 1
        logits[:, 1, :2] = np.log(softmax(of_picture, axis=1) @ (table / table.sum(axis=1, keepdims=True)))
    logits[:, 0, :3], logits[:, 2] = np.log(TREE_OF_WORLD.marginals[0]), np.log(TREE_OF_WORLD.marginals[2])
    return labels, logits


TREE_OF_WORLD = learn_tree(draw_labels(20_000), SIZES)


def accuracy(reader, labels, given_step):
    told = np.where(np.arange(4) == given_step, labels, NOT_ANNOTATED)
    read = reader(as_evidence(told, SIZES)[None])[0, :, -1]
    return (read.argmax(axis=1) == labels[:, -1]).mean()


@pytest.mark.parametrize("copies", [False, True])
def test_weights_count_a_picture_once(copies):
    """What two steps say of one picture is one piece of evidence: their weights share it."""
    labels, logits = draw_world(1500, noise=0.5, copies=copies)
    found = fit_joint(TREE_OF_WORLD, logits, labels, temperatures=(1.0,) * 4)
    assert found.weights[3] == pytest.approx(1.0, abs=0.35 if not copies else 0.6)
    fresh, of_fresh = draw_world(6000, noise=0.5, copies=copies)
    joined, blind = found.join(of_fresh), dataclasses.replace(found, weights=(0.0,) * 4).join(of_fresh)
    twice = dataclasses.replace(found, weights=(2.0,) * 4).join(of_fresh)
    for step in (1, 2):
        assert accuracy(joined, fresh, step) > accuracy(blind, fresh, step) + 0.05
        assert accuracy(joined, fresh, step) > accuracy(twice, fresh, step) - 0.01


def test_too_few_or_no_labels_leave_common_weights():
    labels = np.full((5, 4), NOT_ANNOTATED)
    assert fit_joint(TREE, LOGITS[:5], labels, temperatures=(1.0,) * 4).weights == (0.1,) * 4
    few = fit_joint(TREE, LOGITS[:2], LABELS[:2], temperatures=(1.0,) * 4)
    assert all(0 <= weight <= 2 for weight in few.weights)


@pytest.mark.parametrize("num_cases", [4, 400])
def test_fitted_weights_are_a_minimum_of_the_loss_with_its_ridge(num_cases):
    labels, logits = draw_world(num_cases, noise=0.5, copies=True)
    found = fit_joint(TREE_OF_WORLD, logits, labels, temperatures=(1.0,) * 4)
    told, truth = np.concatenate([draw_given(labels, seed=seed) for seed in (0, 1)]), np.tile(labels, (2, 1))

    def loss(weights, start=0.0, ridge=0.0):
        read = dataclasses.replace(found, weights=tuple(weights)).join(np.tile(logits, (2, 1, 1)))
        shares = np.take_along_axis(read(as_evidence(told, SIZES)[None])[0], truth[..., None], 2)[told < 0]
        return -np.log(shares).mean() + ridge * ((weights - start) ** 2).sum() / len(shares)

    start = min((np.full(4, weight) for weight in (0.1, 0.2, 0.35, 0.5, 0.7, 1.0)), key=loss)
    moved = [np.clip(found.weights + step * row, 0, 2) for row in np.eye(4) for step in (-0.1, 0.1)]
    assert loss(np.array(found.weights), start, 5.0) <= min(loss(weights, start, 5.0) for weights in moved)


def test_joint_readings_stand_beside_the_networks():
    facts = {"patient_id": np.array([""] * 6)}
    split = SplitPredictions(Predictions(np.arange(6), LABELS[:6], {"student": LOGITS.astype(np.float32)}), facts)
    found = add_joined(split, {"student": MODEL}).predictions.logits
    assert list(found) == ["student", name_joined("student")]
    np.testing.assert_allclose(
        np.exp(found["student, joined"]), MODEL.join(LOGITS)(np.zeros((1, 6, 4, 4)))[0], atol=1e-6
    )


NETWORK = RNG.normal(size=(4, 4, 4, 4))
EXPONENTS = ((0.4, 0.7, 0.2), (1.0, 0.0, 0.0), (0.0, 1.0, -0.3), (0.6, 0.5, 0.4))
POOLED = dataclasses.replace(MODEL, exponents=EXPONENTS)


def write_back(given):
    return LOGITS + np.einsum("vcsa,satb->vctb", given, NETWORK)


def test_a_pooled_reading_is_the_product_of_both_to_their_exponents():
    told = np.array([[1, -1, 2, -1], [-1, 0, 1, -1], [2, 1, 3, -1]] * 2)
    given = as_evidence(told, SIZES)[None]
    found, joint = POOLED.join(LOGITS, write_back)(given)[0], MODEL.join(LOGITS)(given)[0]
    assert isinstance(POOLED.join(LOGITS), PooledReader)
    for step, (size, (of_network, of_joint, growth)) in enumerate(zip(SIZES, EXPONENTS, strict=True)):
        network = softmax(write_back(given)[0][:, step, :size] / MODEL.temperatures[step], axis=1)
        product = network**of_network * joint[:, step, :size] ** of_joint
        num_others = (told >= 0).sum(axis=1) - (told[:, step] >= 0)
        product **= num_others[:, None] ** growth
        np.testing.assert_allclose(found[:, step, :size], product / product.sum(axis=1, keepdims=True), rtol=1e-9)
        assert not found[:, step, size:].any()


def test_nothing_given_is_the_joint_models_reading_without_another_pass():
    nothing = np.zeros((2, 6, 4, 4))
    np.testing.assert_array_equal(POOLED.join(LOGITS)(nothing), MODEL.join(LOGITS)(nothing))
    with pytest.raises(TypeError, match="given answers need the network"):
        POOLED.join(LOGITS)(as_evidence(LABELS[:6], SIZES)[None])


def test_an_answer_that_says_nothing_changes_no_pooled_reading():
    told = np.where(np.arange(4) == 2, LABELS[:6], NOT_ANNOTATED)
    sure = as_evidence(told, SIZES)
    for given in (np.zeros_like(sure), sure):
        vague = given.copy()
        vague[:, 1, :2] = 0.5
        reader = POOLED.join(LOGITS, write_back)
        np.testing.assert_allclose(reader(vague[None]), reader(given[None]), atol=1e-12)


def test_what_is_written_back_is_the_networks_belief_under_what_was_given():
    """Certain answers are written as they are; an uncertain one changes what the network says with those, by Bayes."""
    told, passes = np.where(np.arange(4) < 2, LABELS[:6], NOT_ANNOTATED), []
    given = as_evidence(told, SIZES)
    given[:, 0] = as_evidence(told, SIZES, reliability=0.6)[:, 0]

    def read(written):
        passes.append(written[0])
        return write_back(written)

    POOLED.join(LOGITS, read)(given[None])
    certain = np.where(np.arange(4)[:, None] == 1, given, 0)
    np.testing.assert_allclose(passes[0], certain)
    share = np.sqrt(weigh_given(given, SIZES)[:, :1])
    own = write_back(certain[None])[0][:, 0, :3] * (1 - share + share / MODEL.temperatures[0])
    product = softmax(own, axis=1) * given[:, 0, :3]
    np.testing.assert_allclose(passes[1][:, 0, :3], product / product.sum(axis=1, keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(passes[1][:, 1:], certain[:, 1:])
    # An answer that says next to nothing is next to what the network writes itself.
    given[:, 0] = as_evidence(told, SIZES, reliability=1 / 3 + 1e-3)[:, 0]
    POOLED.join(LOGITS, read)(given[None])
    expected = softmax(write_back(certain[None])[0][:, 0, :3], axis=1)
    np.testing.assert_allclose(passes[-1][:, 0, :3], expected, atol=0.01)


def test_a_steps_own_answer_changes_nothing_in_its_reading():
    told = np.where(np.arange(4) == 2, LABELS[:6], NOT_ANNOTATED)
    reader, nothing = POOLED.join(LOGITS, write_back), np.zeros((1, 6, 4, 4))
    np.testing.assert_allclose(reader(as_evidence(told, SIZES)[None])[0, :, 2], reader(nothing)[0, :, 2], atol=1e-12)


def test_a_pooled_reader_looks_ahead_from_its_own_reading():
    reader, given = POOLED.join(LOGITS, write_back), as_evidence(np.array([[1, -1, -1, -1]] * 6), SIZES)
    now, joint = reader(given[None])[0], MODEL.join(LOGITS).look_ahead(given)
    for step, pair in enumerate(reader.look_ahead(given)):
        np.testing.assert_allclose(pair.sum(axis=2), now[:, step, : SIZES[step]], atol=1e-9)
        if step in (1, 2):
            after = joint[step] / joint[step].sum(axis=2, keepdims=True)
            product = now[:, None, 3, :3] * after / joint[step].sum(axis=1, keepdims=True)
            np.testing.assert_allclose(pair / pair.sum(axis=2, keepdims=True), product / product.sum(2, keepdims=True))


@pytest.mark.parametrize("knows", [True, False])
def test_exponents_favour_the_network_where_it_knows_what_follows(knows):
    labels = draw_labels(800)
    logits = np.zeros((800, 4, 4))
    model = JointModel(TREE_OF_WORLD, (1.0,) * 4, (0.1,) * 4)
    seen = 3.0 * np.eye(4)[np.where(knows, labels, RNG.integers(2, size=labels.shape))]
    cases = read_written_back(lambda given: seen + np.zeros(given.shape), labels, SIZES)
    found = fit_pool(model, dataclasses.replace(cases, alone=logits))
    network = [pair[0] for pair in found.exponents]
    assert min(network) > 0.5 if knows else max(network) < 0.1
    few = WrittenBack(labels[:2], logits[:2], cases.told[:, :2], cases.written[:, :2])
    np.testing.assert_allclose(fit_pool(model, few).exponents, [(0, 1, 0)] * 4, atol=0.35)
    few = WrittenBack(labels[:0], logits[:0], np.zeros((2, 0, 4), int), np.zeros((2, 0, 4, 4)))
    assert fit_pool(model, few).exponents == ((0.0, 1.0, 0.0),) * 4
    assert fit_conflict(model, few).conflict_limit is None


def test_readings_grow_firmer_with_answers_where_the_network_does_not():
    """The network says the same however many answers it is given; it is right more often with more of them."""
    labels = draw_labels(3000)
    cases = read_written_back(lambda given: np.zeros(given.shape), labels, SIZES)
    num_told = (cases.told != NOT_ANNOTATED).sum(axis=2)[..., None]
    right = RNG.random((*cases.told.shape[:2], 4)) < np.array([0, 0.4, 0.6, 0.9])[num_told]
    sizes = np.array(SIZES)
    seen = np.where(right, labels, (labels + RNG.integers(1, sizes, right.shape)) % sizes)
    model = JointModel(TREE_OF_WORLD, (1.0,) * 4, (0.1,) * 4)
    found = fit_pool(model, dataclasses.replace(cases, written=1.5 * np.eye(4)[seen]))
    assert found.exponents[0][2] > 0.2  # the first step, of which the others say nothing


def test_conflict_is_how_much_less_probable_all_is_together():
    given = as_evidence(np.where(np.arange(4) < 2, LABELS[:6], NOT_ANNOTATED), SIZES, reliability=0.8)
    own = MODEL.calibrate(LOGITS)
    found = MODEL.measure_conflict(LOGITS, given)
    for case in range(6):
        factors = [
            np.exp(logs[case]) / marginal * (given[case, step, : len(marginal)] if given[case, step].any() else 1.0)
            for step, (logs, marginal) in enumerate(zip(own, TREE.marginals, strict=True))
        ]
        together = sum(
            probability(TREE, chain) * np.prod([factors[step][answer] for step, answer in enumerate(chain)])
            for chain in CHAINS
        )
        apart = np.prod([factor @ marginal for factor, marginal in zip(factors, TREE.marginals, strict=True)])
        assert found[case] == pytest.approx(np.log(apart / together))
    cases = read_written_back(lambda given: np.zeros(given.shape) + RNG.normal(size=given.shape[1:]), LABELS, SIZES)
    limit = fit_conflict(MODEL, cases).conflict_limit
    above = [MODEL.measure_conflict(cases.alone, as_evidence(told, SIZES)) > limit for told in cases.told]
    assert np.mean(above) == pytest.approx(0.025, abs=0.003)
    few = read_written_back(lambda given: np.zeros(given.shape), LABELS[:31], SIZES)
    assert fit_conflict(MODEL, few).conflict_limit is None
    more = read_written_back(lambda given: np.zeros(given.shape), LABELS[:33], SIZES)
    assert fit_conflict(MODEL, more).conflict_limit is not None


def test_two_temperatures_serve_readings_without_given_answers_alone():
    mixtures = ((0.5, 3.0, 0.3), (1.0, 1.0, 0.0), (2.0, 0.7, 0.6), (0.4, 2.5, 0.5))
    two = dataclasses.replace(POOLED, mixtures=mixtures)
    read = two.join(LOGITS, write_back)
    nothing, told = np.zeros((1, 6, 4, 4)), as_evidence(np.tile([[1, -1, -1, -1]], (6, 1)), SIZES)[None]
    for step, (size, (first, second, share)) in enumerate(zip(SIZES, mixtures, strict=True)):
        own = LOGITS[:, step, :size]
        expected = (1 - share) * softmax(own / first, axis=1) + share * softmax(own / second, axis=1)
        np.testing.assert_allclose(read(nothing)[0, :, step, :size], expected, atol=1e-9)
    joint, network = two.join(LOGITS, write_back).joined(told)[0, :, 3, :3], write_back(told)[0][:, 3, :3]
    of_network, of_joint, _ = two.exponents[3]
    pooled = softmax(of_network * log_softmax(network / two.temperatures[3], axis=1) + of_joint * np.log(joint), axis=1)
    np.testing.assert_allclose(read(told)[0, :, 3, :3], pooled, atol=1e-9)


def test_exponents_are_fitted_to_the_temperatures_of_written_back_logits():
    blind = dataclasses.replace(MODEL, weights=(0.0,) * 4)  # beside answers the joint model does not see the picture
    cases = read_written_back(lambda given: np.zeros(given.shape) + LABELS[:, :, None] * given, LABELS, SIZES)
    two = dataclasses.replace(blind, mixtures=((0.5, 3.0, 0.3),) * 4)
    assert fit_pool(two, cases).exponents == fit_pool(blind, cases).exponents


def test_a_model_on_disk_comes_back(tmp_path):
    path = tmp_path / "joint.json"
    assert read_joint(path, CHAIN, model="student") is None
    mixtures = ((0.5, 2.0, 0.25),) * 4
    other = dataclasses.replace(POOLED, weights=(0.0, 1.5, 0.25, 1.0), conflict_limit=-0.5, mixtures=mixtures)
    write_joints(path, {"teacher": MODEL, "student": other})
    found = read_joint(path, CHAIN, model="student")
    assert dataclasses.replace(found, tree=other.tree) == other
    assert found.tree.parents == TREE.parents
    assert dataclasses.replace(read_joint(path, CHAIN, model="teacher"), tree=TREE) == MODEL
    for own, stored in zip((TREE.last, *TREE.tables), (found.tree.last, *found.tree.tables), strict=True):
        np.testing.assert_array_equal(own, stored)


@pytest.mark.parametrize(
    "edit",
    [
        lambda model: model["tree"]["parents"].__setitem__(0, 9),
        lambda model: model["tree"]["tables"][0].pop(),
        *(lambda model, low=low: model["tree"]["tables"][1][0].__setitem__(0, [low, 1 - low]) for low in (0.0, 1e-31)),
        lambda model: model["weights"].__setitem__(0, -1),
        lambda model: model.update(mixtures=[[1, 1, 0]]),
        lambda model: model["temperatures"].__setitem__(0, 1e-308),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path, edit):
    path = tmp_path / "joint.json"
    write_joints(path, {"student": MODEL})
    refuse_edited("", path, lambda file: edit(file["models"]["student"]), read_joint, CHAIN, model="student")
