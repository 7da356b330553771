"""Rollouts and GRPO updates of `benchmarks.plain_policy` as a plain PyTorch loop. Needs the extra `torch`."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.plain_policy import Encoder, PlainPolicy, as_state_dict


def make_plain_policy(sizes: Any, params: Any) -> PlainPolicy:
    """Return the network of `benchmarks.policy.Sizes` with parameters of `PrefixVlm`."""
    policy = PlainPolicy(Encoder(sizes.encoder_widths, 1, 5, sizes.grid), sizes.encoder_widths[-1], sizes.decoder)
    policy.load_state_dict(as_state_dict(params))
    return policy


class TorchSide:
    """The counterpart of `benchmarks.policy.JaxSide`: same weights, inputs, sampling and objective."""

    def __init__(self, ours: Any) -> None:
        self.sizes, self.sampling = ours.sizes, ours.sampling
        self.policy, self.reference = (make_plain_policy(ours.sizes, each) for each in (ours.params, ours.reference))
        self.reference.requires_grad_(False)
        self.images = torch.from_numpy(np.asarray(ours.images).transpose(0, 3, 1, 2).copy())
        self.prompts, self.lengths = (torch.tensor(np.asarray(each)).long() for each in (ours.prompts, ours.lengths))
        self.advantage = torch.tensor(np.asarray(ours.advantage))
        self.optimizer = torch.optim.AdamW(
            self.policy.parameters(), lr=ours.learning_rate, weight_decay=0.01, fused=True
        )
        self.generator = torch.Generator().manual_seed(0)

    @staticmethod
    def as_tensors(replies: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return tokens, log-probabilities and what counts of replies, [rollout, token] each."""
        tokens, log_probs, counted = (torch.tensor(np.asarray(each)) for each in replies)
        return tokens.long(), log_probs, counted

    @torch.inference_mode()
    def roll_out(self) -> tuple[Tensor, Tensor, Tensor]:
        """Draw the replies of an update with caches; ends when all have ended."""
        longest, stop, group = self.sampling.longest, self.sampling.stop, self.sizes.group_size
        scores, cache = self.policy.prefill(self.images, self.prompts, self.lengths, longest)
        scores, lengths = scores.repeat_interleave(group, 0), self.lengths.repeat_interleave(group)
        cache = [(keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0)) for keys, values in cache]
        number, start = len(lengths), self.policy.num_cells + self.prompts.shape[1]
        visible = torch.ones(number, 1, 1, start + longest, dtype=torch.bool)
        visible[:, 0, 0, :start] = torch.arange(start) < (self.policy.num_cells + lengths)[:, None]
        tokens = torch.full((number, longest), stop)
        log_probs, counted = torch.zeros(number, longest), torch.zeros(number, longest, dtype=torch.bool)
        ended = torch.zeros(number, dtype=torch.bool)
        for place in range(longest):
            logs = torch.log_softmax(scores / self.sampling.temperature, dim=-1)
            drawn = torch.multinomial(logs.exp(), 1, generator=self.generator)
            drawn = drawn.masked_fill(ended[:, None], stop)
            tokens[:, place], counted[:, place] = drawn[:, 0], ~ended
            log_probs[:, place] = logs.gather(1, drawn)[:, 0].masked_fill(ended, 0.0)
            ended |= drawn[:, 0] == stop
            if place + 1 == longest or ended.all():
                break
            positions = (self.policy.grid + lengths + place).expand(3, -1)[..., None]
            seen, slot = visible[..., : start + place + 1], start + place
            hidden = self.policy.decode(self.policy.embedding(drawn), positions, seen, cache, slot)
            scores = self.policy.score(hidden)[:, 0]
        return tokens, log_probs, counted

    def log_probs(self, policy: PlainPolicy, tokens: Tensor, counted: Tensor) -> Tensor:
        """Return the log-probability [rollout, token] of each token of replies; 0 where a token does not count."""
        logits = policy(self.images, self.prompts, self.lengths, tokens)
        chosen = logits.gather(2, tokens[..., None])[..., 0] - logits.logsumexp(dim=-1)
        return chosen.masked_fill(~counted, 0.0)

    def loss(self, replies: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Return the loss of `losses.policy_gradient` at its defaults: token ratios, clip, k3, sequence means."""
        tokens, old, counted = replies
        with torch.no_grad():
            reference = self.log_probs(self.reference, tokens, counted)
        current = self.log_probs(self.policy, tokens, counted)
        ratio, advantage = (current - old).exp(), self.advantage[:, None]
        term = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        penalty = torch.expm1(reference - current) + current - reference
        means = (counted * (term - 1e-3 * penalty)).sum(1) / counted.sum(1).clamp(min=1)
        return -means.mean()

    def update(self, replies: tuple[Tensor, Tensor, Tensor]) -> float:
        """Update the parameters; return the loss before."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(replies)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        self.optimizer.step()
        return float(loss.detach())
