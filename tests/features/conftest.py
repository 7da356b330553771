import pytest
from features.fake_encoders import FakeImageEncoder, FakeTextEncoder

from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.data.phantom.phantom import export_phantom
from stepcot_jax.encoders import load as encoder_loading


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("cases")
    export_phantom(root, num_cases=40, seed=0, size=32, prevalence="flat")
    return root


@pytest.fixture
def load_fakes(monkeypatch):
    """Let runs load new fake encoders from now on, of pictures of 32 pixels and of texts; returns both."""

    def load():
        image, text = FakeImageEncoder(), FakeTextEncoder()
        image.preprocessing = Preprocessing(size=32, fit="pad")
        monkeypatch.setattr(encoder_loading, "load_image_encoder", lambda source, dtype: image)
        monkeypatch.setattr(encoder_loading, "load_text_encoder", lambda source, dtype, max_tokens: text)
        return image, text

    return load
