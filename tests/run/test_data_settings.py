"""Data settings that exclude each other are refused, naming both keys."""

import typing

import pytest
from run.small_run import small_settings

from stepcot_jax.data.sources.layouts import AUTO, LAYOUTS
from stepcot_jax.host.errors import BadInput
from stepcot_jax.run.sections import DataSettings
from stepcot_jax.run.settings import MAY_CHANGE, changed_keys


def test_layouts_are_those_that_are_read():
    assert typing.get_args(typing.get_type_hints(DataSettings)["layout"]) == (AUTO, *LAYOUTS)


def test_what_is_found_on_use_cannot_be_skipped():
    assert small_settings(data__check_images="on_use").data.check_images == "on_use"
    with pytest.raises(
        BadInput, match=r"config\.data\.check_images: 'on_use' needs config\.data\.on_bad_record='stop'"
    ):
        small_settings(data__check_images="on_use", data__on_bad_record="skip")


def test_features_made_ahead_are_not_augmented():
    frozen = {"image_encoder__name": "pretrained", "image_encoder__weights": "anywhere", "data__augment": "light"}
    assert small_settings(features__store=False, **frozen).data.augment == "light"
    with pytest.raises(BadInput, match=r"config\.data\.augment: .* config\.features\.store=True; got 'light'"):
        small_settings(**frozen)
    imported = frozen | {"image_encoder__name": "imported"}
    with pytest.raises(
        BadInput, match=r"config\.data\.augment: .* config\.image_encoder\.name='imported'; got 'light'"
    ):
        small_settings(features__store=False, **imported)


def test_a_resumed_run_may_change_how_it_reads_and_not_what():
    before = small_settings()
    after = small_settings(data__num_workers=4, data__check_images="on_use", data__num_threads=7)
    assert changed_keys(before, after) == []
    after = small_settings(data__sampling="inverse_frequency", data__augment="light", data__single_label=False)
    assert changed_keys(before, after) == ["config.data.single_label", "config.data.sampling", "config.data.augment"]
    assert "config.data.num_workers" in MAY_CHANGE
