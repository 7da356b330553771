import numpy as np
import pytest
from convert.named_tensors import random_tensors
from refusals import assert_says, refuse

from stepcot_jax.export.authors import NETWORKS, entries, flatten, from_torch_networks, to_torch_networks

SIZES = {
    "teacher_width": 6, "student_width": 5, "image_width": 7, "num_heads": 2, "head_width": 3, "projection_width": 4,
    "answers_0": 3, "answers_1": 2, "answers_2": 4, "num_steps": 3, "num_layers": 2,
}  # fmt: skip


def make_tensors(memory=True):
    return random_tensors(NETWORKS, SIZES, num_steps=3, num_layers=2, memory=memory)


def assert_same(found, expected):
    found, expected = flatten(found), flatten(expected)
    assert set(found) == set(expected)
    for name, array in expected.items():
        assert found[name].shape == array.shape, name
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("memory", [True, False])
def test_both_ways_give_every_tensor_back_exactly(memory):
    tensors = make_tensors(memory=memory)
    params = from_torch_networks(tensors)
    assert_same(to_torch_networks(params), tensors)
    assert_same(from_torch_networks(to_torch_networks(params)), params)
    assert sum(leaf.size for leaf in flatten(params).values()) == sum(leaf.size for leaf in flatten(tensors).values())


def test_names_are_those_of_the_golden_file(shared):
    with np.load(shared / "golden" / "full_mask.npz") as archive:
        for network in NETWORKS:
            prefix = f"params/{network}/"
            expected = {name.removeprefix(prefix) for name in archive.files if name.startswith(prefix)}
            assert {entry.torch_name for entry in entries(network, num_steps=7, num_layers=2)} == expected


def test_missing_and_left_over_tensors_are_all_listed():
    tensors = make_tensors()
    for name in ("pred2mem.bias", "step_models.1.classifier.weight"):
        del tensors["teacher"][name]
    tensors["student"]["clip.visual.proj"] = np.zeros(3, np.float32)
    words = ("missing", "pred2mem.bias", "step_models.1.classifier.weight", "clip.visual.proj")
    assert_says(refuse("", from_torch_networks, tensors), *words)
    params = from_torch_networks(make_tensors())
    params["teacher"]["text_projection"] = {"kernel": np.zeros((2, 6), np.float32)}
    del params["teacher"]["context"]["linear"]["bias"]
    assert_says(refuse("", to_torch_networks, params), "context/linear/bias", "text_projection/kernel")


@pytest.mark.parametrize(
    ("network", "name", "shape", "expected"),
    [
        ("teacher", "fusion_proj.0.weight", (6, 13), (6, 12)),
        ("teacher", "memory_gat.layers.1.a_dst", (3, 2), (2, 3)),
        ("student", "step_heads.2.bias", (3,), (4,)),
        ("proj_t", "weight", (4, 5), (4, 6)),
    ],
)
def test_a_shape_that_contradicts_the_others_is_refused(network, name, shape, expected):
    tensors = make_tensors()
    tensors[network][name] = np.zeros(shape, np.float32)
    message = refuse("", from_torch_networks, tensors)
    assert message.startswith(f"{network}/{name} has shape {list(shape)}; expected {list(expected)}")
    assert message.count("shape") == 1  # no other tensor is blamed


def test_what_no_parameter_can_be_is_refused_by_name():
    tensors = make_tensors()
    for value, words in ((np.zeros(4, np.int64), "int64"), (np.array([0, np.inf, np.nan, 0]), "not finite")):
        tensors["student"]["step_heads.2.bias"] = value
        refuse(rf"student/step_heads\.2\.bias \(.*{words}", from_torch_networks, tensors)
    own = {name: array for name, array in make_tensors()["student"].items() if not name.startswith("step_heads.2")}
    refuse("teacher has 3 steps and student 2", from_torch_networks, tensors | {"student": own})


def test_half_precision_becomes_float32_exactly():
    tensors = {name: array.astype(np.float16) for name, array in make_tensors()["proj_s"].items()}
    params = from_torch_networks({"proj_s": tensors})["student_projection"]
    assert params["kernel"].dtype == np.float32
    np.testing.assert_array_equal(params["kernel"].T, tensors["weight"].astype(np.float32))
