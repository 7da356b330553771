import json

import numpy as np
import pytest
from refusals import refuse

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from PIL import Image

from stepcot_jax.data.images.preprocessing import normalise, resize_image
from stepcot_jax.features.frozen_encoders import load_transformers_encoder
from stepcot_jax.features.store import FrozenImageEncoder
from stepcot_jax.run.networks import load_patches
from stepcot_jax.run.settings import load_settings

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clip")
    torch.manual_seed(0)
    text = SIZES | {"vocab_size": 60, "bos_token_id": 1, "eos_token_id": 2}
    config = transformers.CLIPConfig(
        text_config=text, vision_config=SIZES | {"image_size": 32, "patch_size": 8}, projection_dim=12
    )
    transformers.CLIPModel(config).save_pretrained(folder)
    processor = transformers.CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    processor.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def vit_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vit")
    torch.manual_seed(0)
    transformers.ViTModel(transformers.ViTConfig(**SIZES, image_size=32, patch_size=8)).save_pretrained(folder)
    transformers.ViTImageProcessorPil(size={"height": 32, "width": 32}, resample=3).save_pretrained(folder)
    return folder


def draw(count=3):
    return np.random.default_rng(0).integers(0, 256, (count, 45, 60, 3), np.uint8)


def prepare(encoder, pixels):
    return normalise(np.stack([resize_image(image, encoder.preprocessing) for image in pixels]), encoder.preprocessing)


def run_transformers(folder, pixels, run):
    model = transformers.AutoModel.from_pretrained(folder).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    inputs = processor(images=[Image.fromarray(image) for image in pixels], return_tensors="pt")
    with torch.inference_mode():
        return run(model, inputs["pixel_values"])


def test_clip_gives_its_projection(clip_folder):
    encoder = load_transformers_encoder(str(clip_folder))
    assert isinstance(encoder, FrozenImageEncoder)
    assert (encoder.width, encoder.pooling, encoder.preprocessing.size) == (12, "projection", 32)
    assert encoder.preprocessing.fit == "crop"
    pixels = draw()
    output = run_transformers(clip_folder, pixels, lambda model, values: model.get_image_features(pixel_values=values))
    features, patches = encoder.encode_patches(prepare(encoder, pixels))
    np.testing.assert_allclose(features, output.pooler_output.numpy(), atol=1e-5)
    np.testing.assert_allclose(patches, output.last_hidden_state[:, 1:].numpy(), atol=1e-4)
    np.testing.assert_array_equal(encoder.encode(prepare(encoder, pixels)), features)
    resized = np.stack([resize_image(image, encoder.preprocessing) for image in pixels])
    np.testing.assert_array_equal(encoder.encode(resized), features)  # bytes are normalised on the device
    np.testing.assert_array_equal(encoder.encode_patches(resized)[1], patches)
    assert encoder.batch_size == 32


def test_vit_gives_its_pooler(vit_folder):
    encoder = load_transformers_encoder(str(vit_folder))
    assert (encoder.width, encoder.pooling, encoder.preprocessing.fit) == (16, "pooler", "stretch")
    assert encoder.preprocessing.mean == (0.5, 0.5, 0.5)
    pixels = draw()
    output = run_transformers(vit_folder, pixels, lambda model, values: model(pixel_values=values))
    np.testing.assert_allclose(encoder.encode(prepare(encoder, pixels)), output.pooler_output.numpy(), atol=1e-5)


def test_a_pooler_without_weights_is_not_used(vit_folder, tmp_path):
    """A classifier's checkpoint has no pooler: transformers draws one at random at every start."""
    model = transformers.ViTForImageClassification(transformers.ViTConfig(**SIZES, image_size=32, patch_size=8))
    model.save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text((vit_folder / "preprocessor_config.json").read_text())
    one, other = (load_transformers_encoder(str(tmp_path)) for _ in range(2))
    assert (one.pooling, one.width) == ("mean", 16)
    assert one.digest == other.digest
    with torch.no_grad():
        model.vit.layernorm.bias[0] += 1e-6
    model.save_pretrained(tmp_path)
    assert load_transformers_encoder(str(tmp_path)).digest != one.digest
    images = prepare(one, draw())
    np.testing.assert_array_equal(one.encode(images), other.encode(images))


def test_what_cannot_be_used_is_refused(vit_folder, tmp_path):
    refuse("no such folder or file, and not a Hugging Face id", load_transformers_encoder, str(tmp_path / "nothing"))
    transformers.BertModel(transformers.BertConfig(**SIZES, vocab_size=60)).save_pretrained(tmp_path)
    refuse("no image processor", load_transformers_encoder, str(tmp_path))
    config = json.loads((vit_folder / "preprocessor_config.json").read_text())
    for change, message in (
        ({}, "BertModel cannot encode images without text"),
        ({"do_resize": False}, "ViTImageProcessorPil makes other pixels than this package can, by do_resize=False"),
    ):
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(config | change))
        refuse(message, load_transformers_encoder, str(tmp_path))


def test_a_policy_reads_the_same_patches_in_either_framework(clip_folder):
    pictures = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), np.uint8)
    found = {}
    for weights in (str(clip_folder), f"transformers:{clip_folder}"):
        frozen = {"image_encoder.name": "pretrained", "image_encoder.weights": weights, "image_encoder.image_size": 32}
        patches = load_patches(load_settings("base", **{"job": "sft", "policy.grid": 4, **frozen}))
        assert patches.shape == (16, 16)
        found[weights] = patches(pictures)
    ours, theirs = found.values()
    assert np.abs(ours).max() > 0.1
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())


def test_patches_of_another_size_than_that_of_training(tmp_path):
    torch.manual_seed(0)
    config = transformers.Dinov2WithRegistersConfig(**SIZES, image_size=98, patch_size=14)
    transformers.Dinov2WithRegistersModel(config).save_pretrained(tmp_path)
    transformers.BitImageProcessorPil(
        size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56}
    ).save_pretrained(tmp_path)
    encoder = load_transformers_encoder(str(tmp_path))
    assert encoder.patch_shape() == (16, 16)  # 4 x 4 of 56 px, without class and register tokens
    pixels = draw()
    hidden = run_transformers(tmp_path, pixels, lambda model, values: model(pixel_values=values).last_hidden_state)
    _, patches = encoder.encode_patches(prepare(encoder, pixels))
    np.testing.assert_allclose(patches, hidden[:, -16:].numpy(), rtol=0, atol=2e-2 * float(hidden.abs().max()))
