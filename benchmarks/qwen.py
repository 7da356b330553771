"""Greedy replies of a random model of Qwen2.5-0.5B's shape, beside transformers' `generate` with the same weights.

PyTorch is measured with all threads and with one, because threads that wait for each other lose most on a shared
machine; the ratio is to the faster of both.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.measure import Timing, median_of_ratios, time_in_turn
from stepcot_jax.models.decoder import DecoderSizes
from stepcot_jax.models.qwen import QwenVl
from stepcot_jax.policies.qwen_inputs import QwenPrompt, lay_out_prompts
from stepcot_jax.policies.qwen_weights import name_tensors, qwen_shapes
from stepcot_jax.policies.sampling import Sampling, generate, rollout_keys

HALF_BILLION = DecoderSizes(
    width=896, num_layers=24, num_heads=14, num_kv_heads=2, head_width=64, mlp_width=4864, num_words=151_936
)


class JaxReplies:
    """Our replies to random prompts.

    Attributes:
      params: random parameters, float32.
      prompts: [case, token], all of one length.
      longest: tokens of a reply; no token stops it.
    """

    def __init__(self, sizes: DecoderSizes, *, batch_size: int, prompt: int, longest: int) -> None:
        self.network, self.longest = QwenVl(sizes), longest
        rng = np.random.default_rng(0)
        self.params = jax.tree.map(
            lambda leaf: jnp.asarray(0.02 * rng.standard_normal(leaf.shape, np.float32)), qwen_shapes(sizes, None)
        )
        self.prompts = rng.integers(0, sizes.num_words - 1, (batch_size, prompt))
        rows = lay_out_prompts([QwenPrompt(row.tolist()) for row in self.prompts])
        self.batch = jax.tree.map(jnp.asarray, rows)
        self.sampling = Sampling(longest=longest, stop=sizes.num_words - 1, greedy=True)
        self.keys = rollout_keys(jax.random.key(0), first=0, number=batch_size)

    def reply(self) -> np.ndarray:
        """Return the tokens [case, token] of the replies."""
        replies = generate(self.network, self.params, *self.batch, sampling=self.sampling, keys=self.keys)
        return np.asarray(replies.tokens)


class TorchReplies:
    """The counterpart of `JaxReplies`: same weights and prompts."""

    def __init__(self, ours: JaxReplies) -> None:
        import torch
        import transformers

        self.torch, sizes = torch, ours.network.sizes
        config = transformers.Qwen2Config(
            vocab_size=sizes.num_words,
            hidden_size=sizes.width,
            intermediate_size=sizes.mlp_width,
            num_hidden_layers=sizes.num_layers,
            num_attention_heads=sizes.num_heads,
            num_key_value_heads=sizes.num_kv_heads,
            rms_norm_eps=sizes.epsilon,
            rope_parameters={"rope_type": "default", "rope_theta": sizes.theta},
            tie_word_embeddings=sizes.is_tied,
        )
        self.model = transformers.Qwen2ForCausalLM(config).eval()
        tensors = {name: torch.tensor(tensor) for name, tensor in name_tensors(ours.params, ours.network).items()}
        self.model.load_state_dict(tensors, strict=False)
        self.model.tie_weights()
        self.tokens, self.longest = torch.from_numpy(ours.prompts), ours.longest

    def reply(self, num_threads: int) -> np.ndarray:
        """Return the tokens [case, token] of the replies."""
        torch, before = self.torch, self.torch.get_num_threads()
        torch.set_num_threads(num_threads)
        try:
            with torch.inference_mode():
                found = self.model.generate(
                    input_ids=self.tokens,
                    attention_mask=torch.ones_like(self.tokens),
                    max_new_tokens=self.longest,
                    do_sample=False,
                    pad_token_id=0,
                    eos_token_id=None,
                )
        finally:
            torch.set_num_threads(before)
        tokens: np.ndarray = found[:, self.tokens.shape[1] :].numpy()
        return tokens


def measure_qwen(
    rounds: int, sizes: DecoderSizes = HALF_BILLION, *, prompt: int = 64, longest: int = 16
) -> dict[str, float]:
    """Return tokens a second of batches of 1 and 4 and, if torch is installed, ratios and the share of equal tokens."""
    numbers = {}
    for batch_size in (1, 4):
        ours = JaxReplies(sizes, batch_size=batch_size, prompt=prompt, longest=longest)
        tasks: dict[str, Callable[[], object]] = {"reply": ours.reply}
        name = f"qwen_batch_{batch_size}"
        try:
            theirs = TorchReplies(ours)
        except ImportError:
            print("qwen: no ratios, because they need torch; pip install -e '.[torch]'")
        else:
            all_threads = theirs.torch.get_num_threads()
            for number in sorted({1, all_threads}):
                tasks[f"torch_{number}"] = lambda number=number, theirs=theirs: theirs.reply(number)
            numbers[f"{name}_same_tokens"] = float(np.mean(ours.reply() == theirs.reply(1)))
        timings = time_in_turn(tasks, rounds=rounds)
        for side, timing in timings.items():
            numbers[f"{name}_{side}_tokens_per_second"] = batch_size * longest / timing.median
            numbers[f"{name}_{side}_spread"] = timing.spread
        others = [timing for side, timing in timings.items() if side != "reply"]
        if others:
            fastest = Timing(tuple(min(each) for each in zip(*(timing.seconds for timing in others), strict=True)))
            numbers[f"{name}_vs_torch"] = median_of_ratios(fastest, timings["reply"])
    return numbers
