"""CLIP's towers against transformers' PyTorch CLIPModel."""

import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
if not hasattr(transformers, "CLIPModel"):
    pytest.skip("needs transformers' torch classes", allow_module_level=True)

from encoders.torch_checkpoints import as_torch, largest_difference, make_bert, make_clip, network_of, pictures
from refusals import refuse

from stepcot_jax.data.images.preprocessing import CLIP_MEAN, Preprocessing, normalise, resize_image
from stepcot_jax.encoders.load import load_image_encoder
from stepcot_jax.encoders.transformer import VisionTransformer


def test_image_tower(tmp_path):
    model = make_clip(tmp_path, shards="30KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    encoder = load_image_encoder(str(tmp_path))
    images = pictures(1, 3, encoder.preprocessing.size)
    with torch.inference_mode():
        vision = model.vision_model(as_torch(images))
        expected = model.visual_projection(vision.pooler_output)
    features, patches = encoder.encode_patches(images)
    assert largest_difference(encoder.encode(images), expected) <= 1e-4
    assert largest_difference(features, expected) <= 1e-4
    assert largest_difference(patches, vision.last_hidden_state[:, 1:]) <= 1e-4
    assert expected.abs().mean() > 0.05
    assert isinstance(encoder.network, VisionTransformer)
    assert encoder.width == expected.shape[1]
    assert encoder.num_parameters == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("end_token", [98, 2])
def test_text_tower(tmp_path, end_token):
    model = make_clip(tmp_path, eos_token_id=end_token, bos_token_id=97, pad_token_id=98)
    tokens = np.random.default_rng(2).integers(3, 97, (3, 20)).astype(np.int32)
    attended = np.ones_like(tokens, bool)
    for row, end in enumerate((19, 7, 4)):
        tokens[row, end:], attended[row, end + 1 :] = 98, False
    with torch.inference_mode():
        text = model.text_model(torch.from_numpy(tokens), attention_mask=torch.from_numpy(attended.astype(np.int64)))
        expected = model.text_projection(text.pooler_output)
    network, params = network_of(tmp_path)
    found = network.apply({"params": params}, jnp.asarray(tokens), jnp.asarray(attended))
    assert largest_difference(found.projected, expected) <= 1e-4
    assert largest_difference(found.cls, text.pooler_output) <= 1e-4
    assert largest_difference(np.asarray(found.hidden)[attended], text.last_hidden_state.numpy()[attended]) <= 1e-4


def test_one_tower_alone(tmp_path):
    whole = make_clip(tmp_path / "whole")
    config = whole.config.vision_config
    config.projection_dim = 24
    tower = transformers.CLIPVisionModelWithProjection(config)
    tower.load_state_dict({k: v for k, v in whole.state_dict().items() if k.startswith("vis")})
    tower.save_pretrained(tmp_path / "tower")
    images = pictures(3, 2, 36)
    found, expected = (load_image_encoder(str(tmp_path / name)).encode(images) for name in ("tower", "whole"))
    np.testing.assert_array_equal(found, expected)


def test_compute_and_weights_in_half_precision(tmp_path):
    model = make_clip(tmp_path / "whole")
    images = pictures(4, 2, 36)
    exact = load_image_encoder(str(tmp_path / "whole"))
    coarse = {load_image_encoder(str(tmp_path / "whole"), dtype=jnp.bfloat16)}
    for dtype in (torch.float16, torch.bfloat16):
        model.to(dtype).save_pretrained(tmp_path / str(dtype))
        coarse.add(load_image_encoder(str(tmp_path / str(dtype))))
    expected = np.asarray(exact.encode(images))
    for encoder in coarse:
        found = np.asarray(encoder.encode(images))
        assert (encoder.digest != exact.digest, found.dtype) == (True, np.float32)
        assert np.abs(found - expected).max() <= 0.05 * np.abs(expected).max()


def test_preprocessing_agrees_with_transformers(tmp_path):
    pytest.importorskip("PIL")
    processor = transformers.CLIPImageProcessorPil(size={"shortest_edge": 36}, crop_size={"height": 36, "width": 36})
    make_clip(tmp_path)
    processor.save_pretrained(tmp_path)
    preprocessing = load_image_encoder(str(tmp_path)).preprocessing
    assert preprocessing == Preprocessing(size=36)
    generator = np.random.default_rng(6)
    for height, width in [(36, 36), (50, 90), (140, 37), (20, 33)]:
        pixels = generator.integers(0, 256, (height, width, 3)).astype(np.uint8)
        expected = processor(pixels, return_tensors="np")["pixel_values"][0].transpose(1, 2, 0)
        assert largest_difference(normalise(resize_image(pixels, preprocessing), preprocessing), expected) <= 1e-5
    assert preprocessing.mean == pytest.approx(CLIP_MEAN)
    make_bert(tmp_path / "bert")
    refuse("has no image encoder", load_image_encoder, str(tmp_path / "bert"))
