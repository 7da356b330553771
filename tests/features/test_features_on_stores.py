import types

import pytest
from memory_store import new_address, objects

from configs import paper
from stepcot_jax.tools import features as command


@pytest.fixture
def fill(folder, tmp_path, monkeypatch, load_fakes):
    def on_machine(name, workdir, *, stop_after=None):
        def stop(_):
            if stop_after is not None and len(image.images) > stop_after:
                raise KeyboardInterrupt

        image, _ = load_fakes()
        image.visit = stop
        config = paper.get_config()
        config.data.source, config.data.root = "folder", str(folder)
        config.image_encoder.weights = config.prompts.weights = "fake"
        config.features.batch_size = 8
        given = types.SimpleNamespace(workdir=str(workdir), config=config, encoder=None, engine="local")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        monkeypatch.setattr(command.flags, "FLAGS", given)
        try:
            command.fill(["features"])
        except SystemExit as ended:
            return ended.code, len(image.images)
        return 0, len(image.images)

    return on_machine


def test_a_killed_command_goes_on_elsewhere_from_its_shards(fill, tmp_path, monkeypatch):
    address = new_address(monkeypatch)
    assert fill("a", address, stop_after=16) == (130, 24)  # the third batch is lost
    assert fill("b", address) == (0, 24)
    assert fill("c", tmp_path / "here") == (0, 40)
    assert objects(address)["splits.json"] == (tmp_path / "here" / "splits.json").read_bytes()
