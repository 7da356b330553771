import json

import numpy as np
import pytest
from policies.policy_workdir import SIZES
from refusals import refuse
from run.small_policy_run import share_programs
from run.small_run import Killed, Killer, assert_same, last_params, read_log

import stepcot_jax as sc
from stepcot_jax.host.errors import BadInput

pytestmark = pytest.mark.slow
NETWORK = {name.removeprefix("policy."): value for name, value in SIZES.items() if name.startswith("policy.")}
POLICY = sc.Policy.small(num_merges=300, **NETWORK)
QUICK = {
    "evaluation.num_resamples": 20,
    "vqa.num_validated": 6,
    "parallel.num_devices": 1,
    "training.log_every": 1,
    "training.checkpoint_minutes": 1e-9,
}
SEEN = []


def odd(replies, records):
    SEEN.append((len(replies), {record.id for record in records}))
    return [float(len(reply.text) % 7) / 6 for reply in replies]


@pytest.fixture(scope="module", autouse=True)
def shared_programs():
    with pytest.MonkeyPatch.context() as patch:
        share_programs(patch)
        yield


@pytest.fixture(scope="module")
def data():
    pictures = {name: value for name, value in SIZES.items() if not name.startswith("policy.")}
    return sc.load_dataset("vqa_quickstart", **pictures)


@pytest.fixture(scope="module")
def tuned(data, tmp_path_factory):
    system = sc.SFT(POLICY, epochs=1, batch_size=16)
    return sc.fit(system, data, workdir=tmp_path_factory.mktemp("sft") / "run", **QUICK)


def optimise(data, tuned, workdir, rewards=((odd, 0.5), sc.rewards.well_formed), **changes):
    system = sc.GRPO(POLICY, rewards=list(rewards), group_size=3, batch_size=4, epochs=1, updates_per_epoch=3, beta=0)
    return sc.fit(system, data, workdir=workdir, start=tuned, **QUICK, **changes)


@pytest.fixture(scope="module")
def whole(data, tuned, tmp_path_factory):
    return optimise(data, tuned, tmp_path_factory.mktemp("grpo") / "run")


def test_the_callers_rewards_are_called_with_training_records_and_logged(whole, data):
    train = {data.records[place].id for place in data.splits.train}
    assert SEEN
    for number, ids in SEEN:
        assert number == 12
        assert ids <= train
    logged = [line for line in read_log(whole.workdir) if "rollouts/reward/odd" in line]
    assert logged
    for line in logged:
        total = 0.5 * line["rollouts/reward/odd"] + line["rollouts/reward/well_formed"]
        assert line["rollouts/reward/total"] == pytest.approx(total, rel=1e-5)
    assert json.loads((whole.workdir / "given.json").read_text())["rewards"] == {"odd": 0.5, "well_formed": 1.0}
    assert whole.report["test"]["grpo"].keys() >= {"A", "V"}
    assert "sft" not in whole.report["test"]
    assert last_params(whole.workdir).keys() == {"policy"}  # without a penalty no reference is kept


def test_killed_and_resumed_equals_uninterrupted(whole, data, tuned, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(Killed):
        optimise(data, tuned, folder, writers=[Killer(2)])
    words = r"rewards\['odd'\]: the run started with weight 0.5, now weight 0.25"
    refuse(words, optimise, data, tuned, folder, [(odd, 0.25), sc.rewards.well_formed])
    run = optimise(data, tuned, folder)
    assert_same(last_params(run.workdir), last_params(whole.workdir))
    assert run.report["test"] == whole.report["test"]


def test_a_run_is_read_without_its_rewards_and_refused_as_a_config(whole):
    picture = np.zeros((32, 32), np.uint8)
    assert isinstance(sc.load(whole.workdir).answer(picture, "Is there a mass?", kind="closed").text, str)
    refuse(r"rewards\['odd'\]: the run started with weight 0.5, now no such", sc.Run, whole.settings, whole.workdir)
    with pytest.raises(BadInput, match=r"config.vqa.source: 'given' is of a dataset that a caller passed to sc.fit"):
        sc.Run(whole.settings, whole.workdir.parent / "other")


def test_data_of_the_other_kind_is_refused(data, tmp_path):
    chains = sc.load_dataset("quickstart", **{"phantom.num_cases": 30, "phantom.image_size": 32})
    for system, given in ((sc.SFT(POLICY), chains), (sc.StepCoT(chains.chain), data)):
        refuse("SFT and GRPO train on questions", sc.fit, system, given, workdir=tmp_path / "run")


def test_options_are_checked_where_they_are_given():
    for make, words in (
        (lambda: sc.SFT(POLICY, epoch=2), "SFT: 'epoch' is not one of epochs, batch_size"),
        (lambda: sc.GRPO(POLICY, rewards=["answer"]), r"rewards\[0\]: 'answer' is not a function"),
        (lambda: sc.GRPO(POLICY, rewards=[odd], self_check=sc.SelfCheck()), "rewards needs sc.rewards.answer"),
    ):
        refuse(words, make)
