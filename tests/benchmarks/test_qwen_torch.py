import pytest

from benchmarks.qwen import measure_qwen
from stepcot_jax.models.decoder import DecoderSizes

pytest.importorskip("torch")
SIZES = DecoderSizes(width=32, num_layers=2, num_heads=4, num_kv_heads=2, head_width=8, mlp_width=48, num_words=50)


def test_both_sides_reply_alike():
    found = measure_qwen(1, SIZES, prompt=5, longest=4)
    for batch_size in (1, 4):
        assert found[f"qwen_batch_{batch_size}_same_tokens"] == 1.0
        assert found[f"qwen_batch_{batch_size}_vs_torch"] > 0
        assert found[f"qwen_batch_{batch_size}_torch_1_tokens_per_second"] > 0
