import hashlib
import io

import numpy as np
from features.fake_encoders import FakeImageEncoder
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from stepcot_jax.data.images.preprocessing import Preprocessing, decode_image, normalise, resize_image
from stepcot_jax.features import store as keys
from stepcot_jax.features.encode import image_keys
from stepcot_jax.features.store import DECODING_VERSION, digest_fields, digest_pixels

BASE = Preprocessing(size=224)
TEXTS = st.text(max_size=8)
EXPECTED_DIGESTS = ["d3df17c5", "033e04e6", "7db79a52"]
EXPECTED_MEANS = {"crop": 0.098506, "pad": -0.455657, "stretch": 0.098506}


def key(encoder="e", preprocessing=BASE, content="c"):
    made = FakeImageEncoder(encoder)
    made.preprocessing = preprocessing
    return image_keys(made, [content])[0]


@given(
    one=st.tuples(TEXTS, st.integers(1, 300), st.floats(0, 1), st.floats(0.1, 1), TEXTS),
    other=st.tuples(TEXTS, st.integers(1, 300), st.floats(0, 1), st.floats(0.1, 1), TEXTS),
)
def test_equal_keys_mean_equal_ingredients(one, other):
    def make(encoder, size, mean, std, content):
        return key(encoder, Preprocessing(size=size, mean=(mean, 0.5, 0.5), std=(0.5, 0.5, std)), content)

    assert (make(*one) == make(*other)) == (repr(one) == repr(other))


def test_kinds_differ_and_a_key_stays_what_it_is(monkeypatch):
    assert digest_fields("a", x=1) != digest_fields("b", x=1)
    assert len(key()) == keys.KEY_BYTES
    before = key()
    assert len({before, key(encoder="e2"), key(content="c2")}) == 3
    monkeypatch.setattr(keys, "DECODING_VERSION", DECODING_VERSION + 1)
    assert key() != before
    # A key of another release: if this changes, every store is made anew; then raise the version in keys.py.
    written = b'["stepcot_jax",1,"image",{"encoder":"e"}]'
    assert digest_fields("image", encoder="e") == hashlib.sha256(written).digest()


def test_pixels_are_digested_by_type_shape_and_value():
    pixels = np.arange(12, dtype=np.uint8)
    arrays = [pixels, pixels.reshape(3, 4), pixels.astype(np.int8), pixels + np.uint8(1)]
    assert len({digest_pixels(array) for array in arrays}) == len(arrays)
    wide = np.arange(12, dtype="<u2").reshape(3, 4)
    assert digest_pixels(wide) == digest_pixels(wide.astype(">u2")) == digest_pixels(np.asfortranarray(wide))


def test_decoding_has_not_changed_without_a_new_version(tmp_path):
    """If this fails, `data.images` makes other pixels than before: raise `DECODING_VERSION` and note the digest."""
    rows, columns = np.mgrid[:37, :53]
    buffer = io.BytesIO()
    Image.fromarray((rows * 1700 + columns * 23).astype(np.uint16)).save(buffer, "PNG")
    (tmp_path / "a.png").write_bytes(buffer.getvalue())
    digests = []
    for fit in ("crop", "pad", "stretch"):
        preprocessing = Preprocessing(size=16, fit=fit)
        pixels = resize_image(decode_image(tmp_path / "a.png"), preprocessing)
        digests.append(hashlib.sha256(pixels.tobytes()).hexdigest()[:8])
        assert abs(float(normalise(pixels, preprocessing).mean()) - EXPECTED_MEANS[fit]) < 1e-5
    assert (DECODING_VERSION, digests) == (2, EXPECTED_DIGESTS)
