"""Rollouts and updates of GRPO beside a plain PyTorch loop: `python -m benchmarks.run --only policy [--rounds 5]`.

Both sides have the decoder of the quickstart with the same random weights, draw the same number of replies to the same
prompts, and update on the same replies. Needs the extra `torch` (`benchmarks.plain_policy`); each task is timed in turn
with its counterpart, because shared machines change speed. Random weights hardly ever draw the stop token: nearly all
replies are of the longest length, and both sides take as many steps.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.measure import median_of_ratios, time_in_turn
from stepcot_jax.encoders.resnet import ResNet
from stepcot_jax.losses.policy_gradient import PolicyGradient, policy_gradient_loss
from stepcot_jax.losses.sequence import token_log_probs
from stepcot_jax.models.decoder import DecoderSizes
from stepcot_jax.models.prefix_vlm import PrefixVlm
from stepcot_jax.policies.sampling import Replies, Sampling, generate, rollout_keys
from stepcot_jax.training.optimizers import make_optimizer

_DECODER = DecoderSizes(
    width=96,
    num_layers=3,
    num_heads=3,
    num_kv_heads=1,
    head_width=32,
    mlp_width=192,
    num_words=1500,
    theta=1e4,
    sections=(6, 5, 5),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """What is measured; the defaults are the quickstart's.

    Attributes:
      decoder: see `DecoderSizes`.
      encoder_widths: channels of each stage.
      grid: cells on a side.
      image_size: px.
      prompt: tokens of the longest prompt; prompts are at least half as long.
      longest: tokens of the longest reply.
      num_prompts: of an update.
      group_size: replies a prompt.
    """

    decoder: DecoderSizes = _DECODER
    encoder_widths: tuple[int, ...] = (24, 64)
    grid: int = 8
    image_size: int = 64
    prompt: int = 24
    longest: int = 100
    num_prompts: int = 32
    group_size: int = 8


class JaxSide:
    """Our policy, its rollouts and its update.

    Attributes:
      sizes: what is measured.
      learning_rate: of AdamW.
      update_compilations: of the update so far.
    """

    def __init__(self, sizes: Sizes) -> None:
        self.sizes, self.learning_rate, self.update_compilations = sizes, 1e-4, 0
        rng = np.random.default_rng(0)
        encoder = ResNet(widths=sizes.encoder_widths, blocks_per_stage=1, stem_kernel=5, grid=sizes.grid)
        self.policy = PrefixVlm(encoder, sizes.grid, sizes.decoder)
        number, words = sizes.num_prompts, sizes.decoder.num_words
        self.images = jnp.asarray(rng.standard_normal((number, sizes.image_size, sizes.image_size, 3)), jnp.float32)
        self.prompts = jnp.asarray(rng.integers(0, words, (number, sizes.prompt)), jnp.int32)
        self.lengths = jnp.asarray(rng.integers(-(-sizes.prompt // 2), sizes.prompt + 1, number), jnp.int32)
        self.advantage = jnp.asarray(rng.standard_normal(number * sizes.group_size), jnp.float32)
        self.sampling = Sampling(longest=sizes.longest, stop=1)
        rows = (self.images[:1], self.prompts[:1], self.lengths[:1], jnp.zeros((1, 2), jnp.int32))
        self.params = jax.jit(lambda key: self.policy.init(key, *rows)["params"])(jax.random.key(0))
        # The reference is not the policy itself: at equal weights the divergence and its gradient are 0.
        self.reference = jax.tree.map(lambda leaf: leaf + 1e-3, self.params)
        optimizer = make_optimizer(learning_rate=self.learning_rate)
        self.state = jax.jit(optimizer.init)(self.params)
        self._update, self._updates = jax.jit(self._make_update(optimizer)), 0

    def roll_out(self) -> Replies:
        """Draw the replies of an update, others at each call."""
        self._updates += 1
        keys = rollout_keys(jax.random.key(self._updates), first=0, number=len(self.advantage))
        replies: Replies = generate(
            self.policy, self.params, self.images, self.prompts, self.lengths, sampling=self.sampling, keys=keys
        )
        return jax.block_until_ready(replies)

    @property
    def inputs(self) -> tuple[jax.Array, ...]:
        """Images, prompts and their lengths."""
        return self.images, self.prompts, self.lengths

    def log_probs(self, params: Any, replies: Replies, inputs: tuple[jax.Array, ...] | None = None) -> jax.Array:
        """Return the log-probability [rollout, token] of each token of replies; `inputs` for traced ones."""
        logits = self.policy.apply({"params": params}, *(inputs or self.inputs), replies.tokens)
        return token_log_probs(logits=logits, tokens=replies.tokens, counted=replies.counted)

    def _make_update(self, optimizer: optax.GradientTransformation) -> Callable[..., Any]:
        # Everything is an argument: of constants XLA would compute what it can when it compiles.
        def update(
            params: Any, state: Any, frozen: Any, inputs: tuple[jax.Array, ...], advantage: jax.Array, replies: Replies
        ) -> tuple[Any, Any, jax.Array]:
            self.update_compilations += 1
            reference = self.log_probs(frozen, replies, inputs)

            def loss(params: Any) -> jax.Array:
                return policy_gradient_loss(
                    log_probs=self.log_probs(params, replies, inputs),
                    old_log_probs=replies.log_probs,
                    reference_log_probs=reference,
                    advantage=advantage[:, None],
                    counted=replies.counted,
                    settings=PolicyGradient(),
                ).total

            total, gradients = jax.value_and_grad(loss)(params)
            updates, state = optimizer.update(gradients, state, params)
            return optax.apply_updates(params, updates), state, total

        return update

    def update(self, replies: Replies) -> float:
        """Update the parameters; return the loss before."""
        given = (self.reference, self.inputs, self.advantage, replies)
        self.params, self.state, total = jax.block_until_ready(self._update(self.params, self.state, *given))
        return float(total)


def measure_policy(rounds: int, sizes: Sizes | None = None) -> dict[str, float]:
    """Return the rates of both sides and, if torch is installed, the median over the rounds of their ratios."""
    ours = JaxSide(sizes or Sizes())
    start = time.perf_counter()
    replies = ours.roll_out()
    middle = time.perf_counter()
    ours.update(replies)
    numbers = {"rollout_first_seconds": middle - start, "update_first_seconds": time.perf_counter() - middle}
    pairs: dict[str, dict[str, Callable[[], object]]] = {
        "rollout": {"rollout": ours.roll_out},
        "update": {"update": lambda: ours.update(replies)},
    }
    try:
        from benchmarks.plain_policy_loop import TorchSide
    except ImportError:
        print("policy: no ratios, because they need torch; pip install -e '.[torch]'")
    else:
        theirs = TorchSide(ours)
        given = theirs.as_tensors(replies)
        pairs["rollout"]["torch_rollout"] = theirs.roll_out
        pairs["update"]["torch_update"] = lambda: theirs.update(given)
    num_tokens = float(np.sum(replies.counted))
    for name, tasks in pairs.items():
        timings = time_in_turn(tasks, rounds=rounds)
        for side, timing in timings.items():
            numbers[f"{side}_tokens_per_second"] = num_tokens / timing.median
            numbers[f"{side}_spread"] = timing.spread
        if f"torch_{name}" in timings:
            numbers[f"{name}_vs_torch"] = median_of_ratios(timings[f"torch_{name}"], timings[name])
    numbers["update_compilations"] = ours.update_compilations
    return {f"policy_{name}": number for name, number in numbers.items()}
