import json

import numpy as np
import pytest
import transformers
from PIL import Image
from refusals import refuse

from stepcot_jax.data.images.preprocessing import normalise, resize_image
from stepcot_jax.encoders import checkpoints
from stepcot_jax.features.frozen_encoders import read_preprocessing
from stepcot_jax.features.store import describe_preprocessing

COLOURS = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.6, 0.7]}


def square(side):
    return {"height": side, "width": side}


def short(side):
    return {"shortest_edge": side}


READ = [
    ("CLIPImageProcessor", {"size": short(32), "crop_size": square(32)}, 32),
    ("BitImageProcessor", {"size": short(40), "crop_size": square(32), "resample": 3}, 32),  # as DINOv2
    ("ConvNextImageProcessor", {"size": short(32), "crop_pct": 0.875}, 32),
    ("ConvNextImageProcessor", {"size": short(384)}, 384),
    ("DeiTImageProcessor", {"size": square(40), "crop_size": square(32)}, 32),
    ("EfficientNetImageProcessor", {"size": square(32), "include_top": True}, 32),
    ("EfficientNetImageProcessor", {"size": square(40), "do_center_crop": True, "crop_size": square(32)}, 32),
    ("EfficientNetImageProcessor", {"size": square(32), "rescale_offset": True, "rescale_factor": 1 / 127.5}, 32),
    ("EfficientNetImageProcessor", {"size": square(32), "include_top": True, "do_normalize": False}, 32),
    ("LevitImageProcessor", {"size": short(32), "crop_size": square(32)}, 32),
    ("PoolFormerImageProcessor", {"size": short(32), "crop_size": square(32), "crop_pct": 0.7}, 32),
    ("PoolFormerImageProcessor", {"size": short(32), "crop_size": square(32), "crop_pct": None}, 32),
    ("ViTImageProcessor", {"size": square(32)}, 32),
    *(("ViTImageProcessor", {"size": square(32), "resample": number}, 32) for number in (0, 2, 5)),
    ("ViTImageProcessor", {"size": square(32), "do_rescale": False}, 32),
    ("ViTImageProcessor", {"size": square(32), "do_normalize": False}, 32),
    ("SiglipImageProcessor", {"size": square(48)}, 48),
]
REFUSED = [
    ("ViTImageProcessor", {"size": square(32), "do_resize": False}, "do_resize=False"),
    ("CLIPImageProcessor", {"size": short(32), "do_center_crop": False}, "do_center_crop=False"),
    ("CLIPImageProcessor", {"size": short(32), "crop_size": square(40)}, "not give square images|makes other pixels"),
    ("ViTImageProcessor", {"size": {"height": 32, "width": 64}}, "size .* does not give square images"),
    ("MobileViTImageProcessor", {"size": short(40), "crop_size": square(32)}, "do_flip_channel_order=True"),
    ("DPTImageProcessor", {"size": square(32), "keep_aspect_ratio": True}, "keep_aspect_ratio=True"),
]


def write(folder, kind, fields):
    (folder / "config.json").write_text(json.dumps({"model_type": "vit"}))
    entries = {"image_processor_type": kind, **COLOURS, **fields}
    (folder / "preprocessor_config.json").write_text(json.dumps(entries))
    return str(folder)


def assert_same_pixels(folder, pictures, tolerance):
    preprocessing = read_preprocessing(folder)
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    for picture in pictures:
        expected = processor(images=Image.fromarray(picture), return_tensors="np")["pixel_values"][0].transpose(1, 2, 0)
        found = normalise(resize_image(picture, preprocessing), preprocessing)
        np.testing.assert_allclose(found, expected, atol=tolerance * max(1, np.abs(expected).max()))
    return preprocessing.size


@pytest.mark.parametrize(("kind", "fields", "size"), READ)
def test_the_same_pixels_as_transformers(tmp_path, kind, fields, size):
    rows, columns = np.mgrid[:200, :231]
    smooth = (np.stack([rows, columns, rows + columns], axis=-1) * 0.55).astype(np.uint8)
    shapes = ((61, 44), (50, 50), (200, 231), (33, 90))
    pictures = [np.random.default_rng(1).integers(0, 256, (*shape, 3), np.uint8) for shape in shapes]
    pictures += [smooth[:height, :width] for height, width in shapes]
    assert assert_same_pixels(write(tmp_path, kind, fields), pictures, 2e-5) == size


@pytest.mark.parametrize(("kind", "fields", "found"), REFUSED)
def test_other_pixels_are_refused_with_their_field(tmp_path, kind, fields, found):
    refuse(rf"preprocessor_config.json: .*({found})", read_preprocessing, write(tmp_path, kind, fields))


def test_other_pixels_have_other_keys(tmp_path):
    described = []
    for number, fields in enumerate(({}, {"size": square(40), "crop_size": square(32)}, {"resample": 2})):
        (tmp_path / str(number)).mkdir()
        usual = {"size": square(32), "do_center_crop": number == 1, "resample": 3}
        folder = write(tmp_path / str(number), "DeiTImageProcessor", usual | fields)
        described.append(describe_preprocessing(read_preprocessing(folder)))
    assert set(described[1]) - set(described[0]) == {"resized"}
    assert set(described[2]) - set(described[0]) == {"resample"}


def test_an_encoder_of_this_package_refuses_a_share_to_crop(tmp_path):
    write(tmp_path, "ConvNextImageProcessor", {"size": short(32), "crop_size": square(32), "crop_pct": 0.875})
    refuse("crop_pct", checkpoints.read_preprocessing, tmp_path, size=32)


@pytest.mark.parametrize("name", ["control_clip", "convnext224", "convnext384", "deit", "efficientnet", "noresize"])
def test_processors_of_first_contact(shared, name):
    folder = str(shared / "data/first_contact/more/processors" / name)
    if name == "noresize":
        refuse("do_resize=False", read_preprocessing, folder)
        return
    picture = np.random.default_rng(2).integers(0, 256, (520, 640, 3), np.uint8)
    assert_same_pixels(folder, [picture], 1e-4)
