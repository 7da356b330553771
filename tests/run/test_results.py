"""What is fitted to which split: temperatures to validation, rules to training, figures to test."""

import dataclasses
import json

import numpy as np
import pytest

from stepcot_jax.evaluation.calibration import fit_calibration
from stepcot_jax.evaluation.calibration_files import read_calibration
from stepcot_jax.evaluation.consistency import count_pairs, make_rules, share_inconsistent
from stepcot_jax.evaluation.consistency_files import read_pair_ratios, read_pairs
from stepcot_jax.evaluation.evaluator import evaluate
from stepcot_jax.evaluation.prediction_files import read_predictions
from stepcot_jax.host.errors import BadInput
from stepcot_jax.run.results import write_results
from stepcot_jax.run.run_checks import check_earlier_run, check_step_costs
from stepcot_jax.settings.run_settings import load_settings, write_settings
from stepcot_jax.training.checkpoints import Best


@pytest.fixture(scope="module")
def splits(trained):
    folder, chain = trained.workdir / "predictions", trained.run.task.dataset.chain
    return {name: read_predictions(folder / f"{name}.npz", chain) for name in ("val", "test")}


def test_the_calibration_is_fitted_to_the_validation_split(trained, splits):
    chain = trained.run.task.dataset.chain
    found = read_calibration(trained.workdir / "calibration.json", chain)
    assert found == fit_calibration(splits["val"].predictions, chain)
    on_test = fit_calibration(splits["test"].predictions, chain)
    for model in ("teacher", "student"):
        assert found.thresholds[model] != on_test.thresholds[model]
        assert found.temperatures[model] != on_test.temperatures[model]


def test_pairs_are_those_of_the_training_labels(trained):
    dataset = trained.run.task.dataset
    labels = np.array([dataset.cases[index].labels for index in dataset.splits.train])
    found = read_pairs(trained.workdir / "pairs.json", dataset.chain)
    for (earlier, later), counts in found.items():
        for first, second in np.ndindex(*counts.shape):
            both = (labels[:, earlier] == first) & (labels[:, later] == second)
            assert counts[first, second] == both.sum()
    assert {int(own.sum()) for own in found.values()} == {len(labels)}


def read_statistics(workdir):
    return json.loads((workdir / "statistics.json").read_text())


def test_the_report_is_of_the_test_split(trained, splits):
    metrics = evaluate(splits["test"].predictions, trained.run.task.dataset.chain)
    for model, own in metrics.items():
        assert trained.report["test"][model]["mean_accuracy"] == own.mean_accuracy
    assert read_statistics(trained.workdir)["num_cases"] == len(splits["test"].predictions.labels)


def test_rules_are_those_of_the_training_labels_and_coverage_by_answer_reaches_the_fit(
    trained, splits, tmp_path, capsys
):
    """Written again with training chains that all have a nodule in a clear chest; other splits stay as they are."""
    run = trained.run
    train = set(run.task.dataset.splits.train)
    cases = [
        dataclasses.replace(case, labels=(0, *case.labels[1:6], 1)) if index in train else case
        for index, case in enumerate(run.task.dataset.cases)
    ]
    write_results(
        tmp_path,
        dataclasses.replace(run.task.dataset, cases=cases),
        {name: split.predictions for name, split in splits.items()},
        best={"teacher": Best(0.5, 3)},
        wall_seconds=1.0,
        evaluation=dataclasses.replace(run.settings.evaluation, coverage_by="answer", num_resamples=0),
    )
    chain = run.task.dataset.chain
    counts = read_pairs(tmp_path / "pairs.json", chain)
    rules, of_test = (
        make_rules(chain, counts=counts),
        make_rules(chain, counts=count_pairs(splits["test"].predictions.labels, chain)),
    )
    statistics = read_statistics(tmp_path)
    for model, logits in splits["test"].predictions.logits.items():
        share = statistics["models"][model]["consistent_decoding"]["share_inconsistent"]
        answers = logits.argmax(axis=2)
        assert share == share_inconsistent(answers, rules) != share_inconsistent(answers, of_test)
    found = read_calibration(tmp_path / "calibration.json", chain)
    assert found == fit_calibration(splits["val"].predictions, chain, coverage_by="answer")
    assert found.coverage_by == "answer"
    told = f"does not settle Diagnosis as 'Normal': {len(train)} of {len(train)} training chains have another answer"
    assert told in capsys.readouterr().out


def test_cases_read_with_answers_given_are_spread_over_the_split(trained):
    feed, labels = trained.run.task.feed, trained.run.task.dataset.labels
    members = trained.run.task.dataset.splits.test
    every, some = feed.sample_rows("test", 10_000), feed.sample_rows("test", 5)
    np.testing.assert_array_equal(every["labels"], labels[list(members)])
    places = [round(place) for place in np.linspace(0, len(members) - 1, 5)]
    np.testing.assert_array_equal(some["labels"], labels[[members[place] for place in places]])


def test_weights_of_pairs_are_written_for_each_network(trained):
    for model in ("teacher", "student"):
        found = read_pair_ratios(trained.workdir / "pairs.json", trained.run.task.dataset.chain, model=model)
        assert found.weights[0] == 0
        assert max(found.weights) > 0


def test_costs_are_one_for_each_step_and_an_annealed_rate_keeps_its_length(trained, tmp_path):
    settings, chain = trained.run.settings, trained.run.task.dataset.chain
    priced = dataclasses.replace(settings, evaluation=dataclasses.replace(settings.evaluation, step_costs=(1.0, 2.0)))
    check_step_costs(settings, chain)
    with pytest.raises(BadInput, match="step_costs: found 2 costs, expected one for each of 7 steps"):
        check_step_costs(priced, chain)
    annealed = load_settings(dataclasses.asdict(settings), **{"training.given_answers": "annealed"})
    longer = load_settings(dataclasses.asdict(annealed), **{"training.joint_epochs": 9})
    (tmp_path / "checkpoints" / "1").mkdir(parents=True)
    write_settings(tmp_path / "settings.json", annealed)
    check_earlier_run(annealed, tmp_path)
    with pytest.raises(BadInput, match=r"config.training.joint_epochs \(the rate of given_answers='annealed'"):
        check_earlier_run(longer, tmp_path)
