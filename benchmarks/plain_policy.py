"""`models.prefix_vlm.PrefixVlm` in plain PyTorch: the yardstick of `benchmarks.policy`. Needs the extra `torch`.

Written as such loops are in PyTorch: scaled_dot_product_attention with a mask, caches allocated once and read up to the
current slot, rollouts that are copies of their prompt's cache, full passes over prompt and reply for gradients.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor, nn

from stepcot_jax.models.decoder import DecoderSizes

Cache = list[tuple[Tensor, Tensor]]
"""Keys and values of each layer, [rollout, kv_head, slot, head_width]."""


class Residual(nn.Module):
    """Basic block of ResNet-18 with GroupNorm."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv_0 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.conv_1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm_0, self.norm_1 = _norm(width), _norm(width)
        self.changes = stride != 1 or inputs != width
        if self.changes:
            self.shortcut, self.shortcut_norm = nn.Conv2d(inputs, width, 1, stride, bias=False), _norm(width)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return [case, width, height / stride, width / stride]."""
        residual = self.shortcut_norm(self.shortcut(hidden)) if self.changes else hidden
        hidden = F.relu(self.norm_0(self.conv_0(hidden)))
        return F.relu(self.norm_1(self.conv_1(hidden)) + residual)


class Encoder(nn.Module):
    """Images [case, 3, height, width] to cells [case, grid * grid, channel]."""

    def __init__(self, widths: tuple[int, ...], blocks_per_stage: int, stem_kernel: int, grid: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], stem_kernel, 2, padding=stem_kernel // 2, bias=False)
        self.stem_norm, self.grid = _norm(widths[0]), grid
        self.blocks, inputs = nn.ModuleDict(), widths[0]
        for stage, width in enumerate(widths):
            for block in range(blocks_per_stage):
                stride = 2 if stage and not block else 1
                self.blocks[f"stage_{stage}_block_{block}"] = Residual(inputs, width, stride)
                inputs = width

    def forward(self, images: Tensor) -> Tensor:
        """Encode `images`."""
        hidden = F.max_pool2d(F.relu(self.stem_norm(self.stem(images))), 3, 2, padding=1)
        for block in self.blocks.values():
            hidden = block(hidden)
        return F.adaptive_avg_pool2d(hidden, self.grid).flatten(2).transpose(1, 2)


def _norm(width: int) -> nn.GroupNorm:
    return nn.GroupNorm(min(32, width // 4), width, eps=1e-5)


class Layer(nn.Module):
    """Attention and SwiGLU of Qwen2."""

    def __init__(self, sizes: DecoderSizes) -> None:
        super().__init__()
        self.sizes, heads, kv = sizes, sizes.num_heads * sizes.head_width, sizes.num_kv_heads * sizes.head_width
        self.query = nn.Linear(sizes.width, heads)
        self.key, self.value = nn.Linear(sizes.width, kv), nn.Linear(sizes.width, kv)
        self.out = nn.Linear(heads, sizes.width, bias=False)
        self.gate, self.up = (nn.Linear(sizes.width, sizes.mlp_width, bias=False) for _ in range(2))
        self.down = nn.Linear(sizes.mlp_width, sizes.width, bias=False)
        self.attention_norm, self.mlp_norm = (nn.RMSNorm(sizes.width, eps=sizes.epsilon) for _ in range(2))

    def forward(self, hidden: Tensor, angles: tuple[Tensor, Tensor], visible: Tensor, cache: Any, start: int) -> Tensor:
        """Decode `hidden` [rollout, token, width]; write to `cache` at slot `start` unless it is None."""
        normed, sizes = self.attention_norm(hidden), self.sizes
        queries, keys, values = (
            project(normed).unflatten(-1, (-1, sizes.head_width)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        queries, keys = _rotate(queries, angles), _rotate(keys, angles)
        if cache is not None:
            stop = start + hidden.shape[1]
            cache[0][:, :, start:stop], cache[1][:, :, start:stop] = keys, values
            keys, values = cache[0][:, :, :stop], cache[1][:, :, :stop]
        mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=visible, enable_gqa=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).flatten(2))
        normed = self.mlp_norm(hidden)
        return hidden + self.down(F.silu(self.gate(normed)) * self.up(normed))


def _rotate(heads: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    first, second = heads.chunk(2, dim=-1)
    cosine, sine = angles
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


class PlainPolicy(nn.Module):
    """Images and tokens to scores of the next token, with a tied head; arguments as for `PrefixVlm`."""

    def __init__(self, encoder: Encoder, channels: int, sizes: DecoderSizes) -> None:
        super().__init__()
        self.encoder, self.sizes, self.grid, self.num_cells = encoder, sizes, encoder.grid, encoder.grid**2
        self.cell_map = nn.Linear(channels, sizes.width)
        self.rows, self.columns = (nn.Parameter(0.02 * torch.randn(self.grid, sizes.width)) for _ in range(2))
        self.embedding = nn.Embedding(sizes.num_words, sizes.width)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.num_layers))
        self.norm = nn.RMSNorm(sizes.width, eps=sizes.epsilon)
        half = sizes.head_width // 2
        self.register_buffer("frequencies", sizes.theta ** (-torch.arange(half) / half), persistent=False)
        self.register_buffer("axes", torch.arange(3).repeat_interleave(torch.tensor(sizes.sections)), persistent=False)

    def decode(self, embedded: Tensor, positions: Tensor, visible: Tensor, cache: Cache | None, start: int) -> Tensor:
        """Return normed vectors; `positions` [3, rollout, token], `visible` [rollout, 1, token, slot]."""
        angles = (positions[self.axes].movedim(0, -1) * self.frequencies)[:, None]
        turn = angles.cos(), angles.sin()
        for number, layer in enumerate(self.layers):
            embedded = layer(embedded, turn, visible, None if cache is None else cache[number], start)
        return self.norm(embedded)

    def score(self, hidden: Tensor) -> Tensor:
        """Return logits of the next token."""
        return F.linear(hidden, self.embedding.weight)

    def prefill(self, images: Tensor, prompts: Tensor, lengths: Tensor, num_completed: int) -> tuple[Tensor, Cache]:
        """Return the scores of the first token, and caches with room for the reply."""
        embedded = self._prefix(images, prompts)
        num_slots, sizes = embedded.shape[1], self.sizes
        shape = (len(prompts), sizes.num_kv_heads, num_slots + num_completed, sizes.head_width)
        cache = [(embedded.new_zeros(shape), embedded.new_zeros(shape)) for _ in self.layers]
        visible = self._visible(lengths, prompts.shape[1], 0)
        hidden = self.decode(embedded, self._positions(lengths, prompts.shape[1], 0), visible, cache, 0)
        return self.score(hidden[torch.arange(len(lengths)), self.num_cells + lengths - 1]), cache

    def forward(self, images: Tensor, prompts: Tensor, lengths: Tensor, completions: Tensor) -> Tensor:
        """Return scores [rollout, token, word] of every token of replies; rollouts of a case follow each other."""
        each, num_prompt, num_completed = len(completions) // len(prompts), prompts.shape[1], completions.shape[1]
        prefix, lengths = self._prefix(images, prompts).repeat_interleave(each, 0), lengths.repeat_interleave(each)
        hidden = self.decode(
            torch.cat([prefix, self.embedding(completions[:, :-1])], dim=1),
            self._positions(lengths, num_prompt, num_completed - 1),
            self._visible(lengths, num_prompt, num_completed - 1),
            None,
            0,
        )
        first = hidden[torch.arange(len(lengths)), self.num_cells + lengths - 1]
        return self.score(torch.cat([first[:, None], hidden[:, self.num_cells + num_prompt :]], dim=1))

    def _prefix(self, images: Tensor, prompts: Tensor) -> Tensor:
        places = (self.rows[:, None] + self.columns[None]).flatten(0, 1)
        return torch.cat([self.cell_map(self.encoder(images)) + places, self.embedding(prompts)], dim=1)

    def _visible(self, lengths: Tensor, num_prompt: int, num_completed: int) -> Tensor:
        slots = torch.arange(self.num_cells + num_prompt + num_completed)
        is_real = (slots < self.num_cells + lengths[:, None]) | (slots >= self.num_cells + num_prompt)
        is_before = (slots <= slots[:, None]) | (slots < self.num_cells)
        return (is_before & (is_real[:, None] | torch.eye(len(slots), dtype=torch.bool)))[:, None]

    def _positions(self, lengths: Tensor, num_prompt: int, num_completed: int) -> Tensor:
        cells, number = torch.arange(self.num_cells), len(lengths)
        of_cells = torch.stack([torch.zeros_like(cells), cells // self.grid, cells % self.grid])
        prompt = (self.grid + torch.arange(num_prompt)).expand(number, -1)
        text = torch.cat([prompt, self.grid + lengths[:, None] + torch.arange(num_completed)], dim=1)
        return torch.cat([of_cells[:, None].expand(-1, number, -1), text.expand(3, -1, -1)], dim=2)


def as_state_dict(params: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return parameters of `PrefixVlm`, or their gradients, under the names and in the shapes of `PlainPolicy`."""
    found: dict[str, Tensor] = {}

    def visit(tree: Mapping[str, Any], name: str) -> None:
        for key, value in tree.items():
            if isinstance(value, Mapping):
                visit(value, name + _name(key))
                continue
            array = np.asarray(value)
            if key == "kernel" and array.ndim == 4:  # of a convolution
                array = array.transpose(3, 2, 0, 1)
            elif key == "kernel":
                array = array.reshape(-1, array.shape[-1]) if name.endswith("out.") else array.reshape(len(array), -1)
                array = array.T
            own = key if key in ("bias", "rows", "columns") else "weight"
            found[name + own] = torch.from_numpy(np.array(array.reshape(-1) if key == "bias" else array))

    visit(params, "")
    return found


def _name(key: str) -> str:
    if key.startswith(("layer_", "stage_")):
        return f"layers.{key.removeprefix('layer_')}." if key.startswith("layer_") else f"blocks.{key}."
    return {"image_encoder": "encoder.", "Conv_0": "stem.", "decoder": "", "attention": ""}.get(key, key + ".")
