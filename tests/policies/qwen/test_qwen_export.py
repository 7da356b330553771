import jax
import jax.numpy as jnp
import numpy as np
from policies.qwen.tiny_qwen import IMAGES, write_qwen
from refusals import refuse
from safetensors.numpy import load_file

from stepcot_jax.models.low_rank import LowRankSettings, init_low_rank, merge_low_rank
from stepcot_jax.policies import qwen_weights as qwen_export
from stepcot_jax.policies.qwen_weights import load_qwen


def test_what_was_read_is_written(tmp_path):
    tensors, _ = write_qwen(tmp_path / "a", IMAGES, is_new=True)
    for name in ("processor_config.json", "video_preprocessor_config.json"):
        (tmp_path / "a" / name).write_text(name)
    loaded = load_qwen(str(tmp_path / "a"), dtype=np.float32)
    written = {"dtype": np.float32, "most_bytes": 20_000}
    qwen_export.write_qwen(tmp_path / "b", loaded.params, loaded.network, source=tmp_path / "a", **written)
    assert len(list((tmp_path / "b").glob("model-*-of-*.safetensors"))) > 2
    again = load_qwen(str(tmp_path / "b"), dtype=np.float32)
    jax.tree.map(np.testing.assert_array_equal, again.params, loaded.params)
    assert again.config == loaded.config
    for name in ("processor_config.json", "video_preprocessor_config.json"):
        assert (tmp_path / "b" / name).read_text() == name
    held = [name for file in (tmp_path / "b").glob("*.safetensors") for name in load_file(file)]
    assert len(held) == len(tensors) == len(set(held))
    # Weights are as readable as their siblings.
    assert len({path.stat().st_mode for path in (tmp_path / "b").iterdir()}) == 1
    settings = LowRankSettings(rank=2)
    low_rank = init_low_rank(jax.random.key(0), loaded.params, settings)
    merged = merge_low_rank(loaded.params, jax.tree.map(lambda leaf: leaf + jnp.float32(0.05), low_rank), settings)
    qwen_export.write_qwen(tmp_path / "c", merged, loaded.network, source=tmp_path / "a", dtype=np.float32)
    jax.tree.map(np.testing.assert_array_equal, load_qwen(str(tmp_path / "c"), dtype=np.float32).params, merged)
    kernels = (params["decoder"]["layer_0"]["up"]["kernel"] for params in (merged, loaded.params))
    assert not np.array_equal(*kernels)


def test_what_cannot_be_written(tmp_path):
    write_qwen(tmp_path / "a", IMAGES)
    loaded = load_qwen(str(tmp_path / "a"), dtype=np.float32)
    refuse("a: exists", qwen_export.write_qwen, tmp_path / "a", loaded.params, loaded.network, source=tmp_path / "a")
    refuse(r"no config\.json", qwen_export.write_qwen, tmp_path / "b", loaded.params, loaded.network, source=tmp_path)
    assert not list(tmp_path.glob("b*"))
