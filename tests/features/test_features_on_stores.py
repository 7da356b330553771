import pytest
from features.test_inputs import FakeEncoder, FakeTextEncoder
from memory_store import new_address, objects

from configs import paper
from stepcot_jax.data.phantom.phantom import export_phantom
from stepcot_jax.encoders import load as encoder_loading
from stepcot_jax.tools import features as command


class Flags:
    workdir = encoder = None
    engine = "local"

    def __init__(self, root, workdir, **changes):
        self.workdir = str(workdir)
        self.config = paper.get_config()
        self.config.data.source, self.config.data.root = "folder", str(root)
        self.config.image_encoder.weights = self.config.prompts.weights = "fake"
        self.config.features.batch_size = 8
        self.config.update_from_flattened_dict(changes)


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    root = tmp_path_factory.mktemp("cases")
    export_phantom(root, num_cases=24, seed=0, size=32, prevalence="flat")
    return root


@pytest.fixture
def fill(cases, tmp_path, monkeypatch):
    def on_machine(name, workdir, stop_after=None, **changes):
        image, text = FakeEncoder(), FakeTextEncoder()
        encode = image.encode

        def encode_some(images):
            if stop_after is not None and image.num_seen >= stop_after:
                raise KeyboardInterrupt
            return encode(images)

        image.encode = encode_some
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        monkeypatch.setattr(encoder_loading, "load_image_encoder", lambda source, dtype: image)
        monkeypatch.setattr(encoder_loading, "load_text_encoder", lambda source, dtype, max_tokens: text)
        monkeypatch.setattr(command.flags, "FLAGS", Flags(cases, workdir, **changes))
        try:
            command.fill(["features"])
        except SystemExit as ended:
            return ended.code, image.num_seen
        return 0, image.num_seen

    return on_machine


def test_a_killed_command_goes_on_elsewhere_from_its_shards(fill, tmp_path, monkeypatch, capsys):
    address = new_address(monkeypatch)
    code, seen = fill("a", address, stop_after=16)
    assert (code, seen) == (130, 16)
    code, rest = fill("b", address)
    assert (code, rest) == (0, 8)
    assert fill("c", tmp_path / "here") == (0, 24)
    assert objects(address)["splits.json"] == (tmp_path / "here" / "splits.json").read_bytes()
