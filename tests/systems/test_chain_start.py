"""Weights of a finished run: refused where they do not fit."""

import jax.numpy as jnp
import pytest
from memory_store import new_address
from run.small_run import small_settings

from stepcot_jax.host.errors import BadInput
from stepcot_jax.run.settings import write_settings
from stepcot_jax.run.start import read_start
from stepcot_jax.systems.chain_grpo import check_same_shapes


def test_a_missing_folder_is_named_here_and_on_a_store(tmp_path, monkeypatch):
    with pytest.raises(BadInput, match=r"config.policy.start: .*nowhere is not a folder"):
        read_start(tmp_path / "nowhere", small_settings(job="chain_grpo"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(BadInput, match=r"config.policy.start: memory://.*/run: holds no files"):
        read_start(new_address(monkeypatch), small_settings(job="chain_grpo"))


def test_other_data_or_networks_are_refused_by_name(tmp_path):
    write_settings(tmp_path / "settings.json", small_settings(job="teacher", data__split_seed=7, teacher__width=16))
    with pytest.raises(BadInput, match=r"other values of config.data.split_seed, config.teacher.width; expected"):
        read_start(tmp_path, small_settings(job="chain_grpo"))


def test_a_run_without_checkpoints_is_refused(tmp_path):
    write_settings(tmp_path / "settings.json", small_settings(job="teacher", data__augment="light"))
    with pytest.raises(BadInput, match=r"config.policy.start: .*no checkpoints"):
        read_start(tmp_path, small_settings(job="chain_grpo"))


def test_weights_of_other_shapes_are_refused():
    found, expected = {"teacher": {"kernel": jnp.zeros((2, 3))}}, {"teacher": {"kernel": jnp.zeros((2, 4))}}
    assert check_same_shapes(found, found) is found
    with pytest.raises(BadInput, match=r"'kernel'.*is \(2, 3\); expected \(2, 4\); 1 tensors differ"):
        check_same_shapes(found, expected)
    with pytest.raises(BadInput, match=r"expected no such tensor"):
        check_same_shapes({**expected, "image_encoder": {"bias": jnp.zeros(3)}}, expected)
