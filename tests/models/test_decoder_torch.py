"""The decoder against transformers' PyTorch Qwen2, with random weights in every tensor."""

import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
if not hasattr(transformers, "Qwen2ForCausalLM"):
    pytest.skip("needs transformers' torch classes", allow_module_level=True)

from stepcot_jax.models.decoder import Decoder, DecoderSizes

SIZES = DecoderSizes(
    width=32, num_layers=3, num_heads=4, num_kv_heads=2, head_width=8, mlp_width=48, num_words=50, theta=1e6
)


def make_qwen(sizes):
    config = transformers.Qwen2Config(
        vocab_size=sizes.num_words,
        hidden_size=sizes.width,
        intermediate_size=sizes.mlp_width,
        num_hidden_layers=sizes.num_layers,
        num_attention_heads=sizes.num_heads,
        num_key_value_heads=sizes.num_kv_heads,
        rope_theta=sizes.theta,
        rms_norm_eps=sizes.epsilon,
        tie_word_embeddings=sizes.is_tied,
        max_position_embeddings=64,
    )
    torch.manual_seed(0)
    model = transformers.Qwen2ForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter + 0.3 * torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)
    return model


def as_params(model, sizes):
    tensors = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    heads, kv, head = sizes.num_heads, sizes.num_kv_heads, sizes.head_width

    def block(layer):
        own = f"model.layers.{layer}."

        def projected(name, number):
            return {
                "kernel": tensors[f"{own}self_attn.{name}.weight"].T.reshape(sizes.width, number, head),
                "bias": tensors[f"{own}self_attn.{name}.bias"].reshape(number, head),
            }

        out = tensors[own + "self_attn.o_proj.weight"].T.reshape(heads, head, sizes.width)
        return {
            "attention": {
                "query": projected("q_proj", heads),
                "key": projected("k_proj", kv),
                "value": projected("v_proj", kv),
                "out": {"kernel": out},
            },
            "attention_norm": {"scale": tensors[own + "input_layernorm.weight"]},
            "mlp_norm": {"scale": tensors[own + "post_attention_layernorm.weight"]},
            **{name: {"kernel": tensors[f"{own}mlp.{name}_proj.weight"].T} for name in ("gate", "up", "down")},
        }

    params = {f"layer_{layer}": block(layer) for layer in range(sizes.num_layers)}
    params["embedding"] = {"embedding": tensors["model.embed_tokens.weight"]}
    params["norm"] = {"scale": tensors["model.norm.weight"]}
    if not sizes.is_tied:
        params["head"] = {"kernel": tensors["lm_head.weight"].T}
    return params


@pytest.mark.parametrize("is_tied", [True, False])
def test_logits_agree_with_qwen2(is_tied):
    sizes = DecoderSizes(**{**SIZES.__dict__, "is_tied": is_tied})
    model = make_qwen(sizes)
    tokens = np.random.default_rng(0).integers(0, sizes.num_words, (2, 12))
    with torch.inference_mode():
        expected = model(torch.from_numpy(tokens)).logits.numpy()

    def run(module, tokens):
        places = jnp.broadcast_to(jnp.arange(12)[None, None], (1, 2, 12))
        visible = jnp.tril(jnp.ones((1, 12, 12), bool))
        return module.score(module(module.embed(tokens), positions=places, visible=visible)[0])

    found = Decoder(sizes).apply({"params": as_params(model, sizes)}, jnp.asarray(tokens), method=run)
    assert np.abs(expected).mean() > 0.05
    np.testing.assert_allclose(found, expected, atol=1e-4)
