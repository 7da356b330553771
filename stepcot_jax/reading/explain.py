"""Saliency maps: Chefer et al. (ICCV 2021) for vision transformers, element-wise Grad-CAM for convolutions.

After an average over cells Grad-CAM's mean gradient no longer distinguishes them.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int

from stepcot_jax.encoders.resnet import ResidualBlock
from stepcot_jax.encoders.torchvision_networks import FrozenBatchNorm, FrozenBlock, FrozenDenseNet
from stepcot_jax.encoders.transformer import VisionTransformer
from stepcot_jax.reading.programs import Reader, Reading, read_features
from stepcot_jax.reading.trained_model import Trained
from stepcot_jax.systems.networks import Networks
from stepcot_jax.training.state import Params

# Read values and gradients inside an image encoder without changing it.
#
# An interceptor of Flax methods records the input or output of chosen modules and adds a tap of zeros to it; the
# gradient with respect to the tap is the gradient with respect to the value.


Side = Literal["input", "output"]
Choose = Callable[[nn.Module], Side | None]  # From a module to the tapped side; None leaves it alone

Taps = dict[str, Array]  # An array for each tapped module, by its path


class TappedModules:
    """Interceptor of Flax methods."""

    def __init__(self, choose: Choose, taps: Taps) -> None:
        self._choose, self._taps = choose, taps
        self.values: Taps = {}

    def __call__(
        self, next_method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], context: Any
    ) -> Any:
        """Call the method and add its module's tap, if any; Flax calls this."""
        side = self._choose(context.module) if context.method_name == "__call__" else None
        name = "/".join(context.module.path)
        if side == "input":
            return next_method(self._tap(name, args[0]), *args[1:], **kwargs)
        value = next_method(*args, **kwargs)
        return self._tap(name, value) if side == "output" else value

    def _tap(self, name: str, value: Array) -> Array:
        self.values[name] = value
        tap = self._taps.get(name)
        return value if tap is None else value + tap.astype(value.dtype)


def encode(network: nn.Module, params: Any, images: Float[Array, "case height width 3"]) -> Array:
    """Return features [case, width] of any of the package's image encoders."""
    features = network.apply({"params": params}, images)
    return features[0] if isinstance(features, tuple) else features


def find_values(network: nn.Module, params: Any, images: Any, choose: Choose) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes of the values that `choose` selects, in the order in which the network computes them."""
    order: list[str] = []

    def run(params: Any, images: Any) -> Taps:
        tapped = TappedModules(choose, {})
        with nn.intercept_methods(tapped):
            encode(network, params, images)
        order.extend(tapped.values)
        return tapped.values

    shapes = jax.eval_shape(run, params, images)
    return {name: shapes[name] for name in order}  # JAX returns a dict sorted by key


def step_gradients(
    *,
    network: nn.Module,
    params: Any,
    images: Float[Array, "case height width 3"],
    read: Callable[[Array], tuple[Float[Array, "case step answer"], Any]],
    labels: Int[Array, "case step"],
    choose: Choose,
    tapped: dict[str, jax.ShapeDtypeStruct],
) -> tuple[tuple[Array, Any], Int[Array, "case step"], Taps, Taps]:
    """Return outputs of `read`, explained labels, values [case, ...] and each step's gradients [step, case, ...]."""

    def run(taps: Taps) -> tuple[Array, Any]:
        modules = TappedModules(choose, taps)
        with nn.intercept_methods(modules):
            features = encode(network, params, images)
        logits, rest = read(features)
        followed = jnp.where(labels >= 0, labels, jnp.argmax(logits, axis=-1).astype(labels.dtype))
        chosen = jnp.take_along_axis(logits, followed[..., None], axis=-1)[..., 0]
        return chosen, ((logits, rest), followed, modules.values)

    taps = {name: jnp.zeros(shape.shape, shape.dtype) for name, shape in tapped.items()}
    chosen, pull_back, (outputs, followed, values) = jax.vjp(run, taps, has_aux=True)

    def follow(step: Array) -> Taps:
        return pull_back(jnp.broadcast_to(step[None], chosen.shape))[0]

    # Cases are independent in an encoder: one backward pass serves the batch, and each step needs a pass.
    return outputs, followed, values, jax.vmap(follow)(jnp.eye(chosen.shape[1], dtype=chosen.dtype))


PREDICTED = -1  # As a label: explain the most probable answer

LEAST_ROWS = 7  # Rows of a ResNet's last feature map for a 224 px image


@dataclasses.dataclass(frozen=True)
class Explanation:
    """A network's reading of images, with its maps."""

    reading: Reading
    labels: Int[np.ndarray, "case step"]  # the answer that each map explains
    maps: Float32[np.ndarray, "case step row column"]  # not negative, each with sum 1; constant without support


class Explainer:
    """Explains the readings of one network; compiled once for one batch size."""

    def __init__(
        self, trained: Trained, *, model: str = "student", batch_size: int = 1, as_published: bool = False
    ) -> None:
        self.trained, self.model, self.batch_size = trained, model, batch_size
        self.reader = Reader(
            trained, model=model, batch_size=batch_size, with_attention=False, as_published=as_published
        )
        self._network, self._encoder_params = self.reader.image_network

    def explain(
        self,
        images: Float32[np.ndarray, "case height width 3"],
        *,
        given_answers: Int[np.ndarray, "case step"] | Float[np.ndarray, "case step answer"] | None = None,
        labels: Int[np.ndarray, "case step"] | None = None,
    ) -> Explanation:
        """Read images and map the support of each answer; a label of `PREDICTED` is the most probable answer.

        Answers of a joint reading are explained by the network's pass without given answers, which it is made from.
        """
        given = self.reader.check_given(given_answers, len(images))
        asked = np.full(given.shape[:2], PREDICTED, np.int32) if labels is None else np.asarray(labels, np.int32)
        told = given
        if self.reader.joint is not None:
            read = self.reader.read(images, given).probabilities.argmax(axis=-1)
            asked, told = np.where(asked == PREDICTED, read, asked).astype(np.int32), np.zeros_like(given)
        parts = []
        for start in range(0, len(images), self.batch_size):
            chosen = slice(start, start + self.batch_size)
            batch = (np.asarray(images[chosen], np.float32), told[chosen], asked[chosen])
            num_cases = len(batch[0])
            missing = self.batch_size - num_cases
            padded = [np.concatenate([rows, np.repeat(rows[:1], missing, axis=0)]) for rows in batch]
            outputs = _explain(
                self._encoder_params,
                self.reader.params,
                self.reader.text_features,
                *padded,
                network=self._network,
                networks=self.trained.networks,
                model=self.model,
            )
            parts.append(jax.tree.map(lambda rows, num=num_cases: np.asarray(rows)[:num], outputs))
        joined: Any = jax.tree.map(lambda *rows: np.concatenate(rows), *parts)
        logits, attention, followed, maps = joined
        scores = self.reader.gate_scores(images)
        return Explanation(self.reader.interpret(logits, given, attention, scores), followed, maps)


@functools.partial(jax.jit, static_argnames=("network", "networks", "model"))
def _explain(
    encoder_params: Params,
    params: Params,
    text_features: Any,
    images: Array,
    given_answers: Array,
    labels: Array,
    *,
    network: nn.Module,
    networks: Networks,
    model: str,
) -> tuple[Array, Any, Array, Array]:
    """Return logits, attention, the explained labels, and maps [case, step, row, column]."""

    def read(features: Array) -> tuple[Array, Any]:
        return read_features(
            features,
            params=params,
            text_features=text_features,
            given_answers=given_answers,
            networks=networks,
            model=model,
        )

    choose = choose_modules(network)
    shapes = find_values(network, encoder_params, images, choose)
    (logits, attention), followed, values, gradients = step_gradients(
        network=network,
        params=encoder_params,
        images=images,
        read=read,
        labels=labels,
        choose=choose,
        tapped=choose_taps(network, shapes, least_rows=LEAST_ROWS),
    )
    maps = make_maps(network, values, gradients)
    return logits, attention, followed, normalise_maps(jnp.moveaxis(maps, 0, 1))


def choose_modules(network: nn.Module) -> Any:
    """Return the function that selects the modules, and their side, from which a map is computed."""

    def of_transformer(module: nn.Module) -> Side | None:
        if type(module) is not nn.Dense or module.path[-2:-1] != ("attention",):
            return None
        return {"qkv": "output", "out": "input"}.get(module.path[-1])  # type: ignore[return-value]

    def of_convolutions(module: nn.Module) -> Side | None:
        is_last_norm = isinstance(module, FrozenBatchNorm) and module.name == "norm5"
        return "output" if isinstance(module, ResidualBlock | FrozenBlock) or is_last_norm else None

    return of_transformer if isinstance(network, VisionTransformer) else of_convolutions


def choose_taps(network: nn.Module, shapes: dict[str, Any], *, least_rows: int) -> dict[str, Any]:
    """Return the values to differentiate by: the outputs of all attentions, or the last fine enough feature map."""
    if isinstance(network, VisionTransformer):
        return {name: shape for name, shape in shapes.items() if name.endswith("/out")}
    if not shapes:
        raise TypeError(f"{type(network).__name__} has no known feature maps; expected one of the package's encoders")
    fine = [name for name, shape in shapes.items() if min(shape.shape[1:3]) >= least_rows]
    name = fine[-1] if fine else max(shapes, key=lambda layer: shapes[layer].shape[1])
    return {name: shapes[name]}


def make_maps(network: nn.Module, values: Taps, gradients: Taps) -> Float[Array, "step case row column"]:
    """Return maps that are not negative, of any scale."""
    if isinstance(network, VisionTransformer):
        rows = network.image_size // network.patch_size
        relevance = roll_out(values, gradients, num_heads=network.sizes.num_heads)
        return relevance.reshape(*relevance.shape[:2], rows, rows)
    ((name, gradient),) = gradients.items()
    # DenseNet applies a ReLU after the module of its last feature map.
    value = nn.relu(values[name]) if isinstance(network, FrozenDenseNet) else values[name]
    product = value[None].astype(jnp.float32) * gradient.astype(jnp.float32)
    return nn.relu(jnp.sum(product, axis=-1))


def roll_out(values: Taps, gradients: Taps, *, num_heads: int) -> Float[Array, "step case patch"]:
    """Return each patch's relevance to the class token through all blocks' attention, weighted by its gradient."""
    relevance = None
    num_blocks = len(gradients)
    for block in reversed(range(num_blocks)):
        prefix = f"blocks/layer_{block}/attention"
        attention, value = _attend(values[f"{prefix}/qkv"].astype(jnp.float32), num_heads)
        gradient = gradients[f"{prefix}/out"].astype(jnp.float32)
        gradient = gradient.reshape(*gradient.shape[:-1], num_heads, -1)
        # The gradient by an attention weight: mixed_t = sum_k attention_tk value_k.
        worth = jnp.einsum("scthw,ckhw->schtk", gradient, value)
        weights = jnp.mean(nn.relu(worth * attention[None]), axis=2)
        if relevance is None:
            relevance = jnp.zeros(weights.shape[:3]).at[..., 0].set(1.0)
        relevance = relevance + jnp.einsum("sct,sctk->sck", relevance, weights)
    if relevance is None:
        raise ValueError("gradients hold no block's attention")
    return relevance[..., 1:]


def _attend(fused: Float[Array, "case token three_widths"], num_heads: int) -> tuple[Array, Array]:
    """Return attention [case, head, token, key] and values [case, key, head, width] as in `SelfAttention`."""
    fused = fused.reshape(*fused.shape[:2], 3, num_heads, -1)
    query, key, value = fused[:, :, 0], fused[:, :, 1], fused[:, :, 2]
    scores = jnp.einsum("cthw,ckhw->chtk", query, key) * query.shape[-1] ** -0.5
    return jax.nn.softmax(scores, axis=-1), value


def normalise_maps(maps: Float[Array, "case step row column"]) -> Float[Array, "case step row column"]:
    """Return maps that sum to 1; a map without positive values becomes constant."""
    largest = jnp.max(maps, axis=(2, 3), keepdims=True)
    is_empty = ~(largest > 0)
    # Divided by the largest first: the sum of very small numbers would underflow.
    scaled = jnp.where(is_empty, 1.0, maps / jnp.where(is_empty, 1.0, largest))
    return scaled / jnp.sum(scaled, axis=(2, 3), keepdims=True)


# How wide each map is, and how that changes over the steps.


def spread(maps: Float[np.ndarray, "*case row column"]) -> Float[np.ndarray, "*case"]:
    """Return the entropy of each map as a share of the even map's: 0 for a single cell, 1 for an even map.

    Args:
      maps: of `explain_image`, not negative, each with sum 1, of at least two cells.

    >>> float(spread(np.full((2, 2), 0.25)))
    1.0
    """
    cells = np.asarray(maps, np.float64).reshape(*maps.shape[:-2], -1)
    if cells.shape[-1] < 2:
        raise ValueError(f"maps need at least 2 cells; got {cells.shape[-1]}")
    logs = np.log(np.where(cells > 0, cells, 1.0))
    return np.clip(-(cells * logs).sum(axis=-1) / np.log(cells.shape[-1]), 0.0, 1.0)


def change_a_step(spreads: Float[np.ndarray, "*case step"]) -> Float[np.ndarray, "*case"]:
    """Return the slope of the least-squares line through the spreads of the steps; below 0 the focus narrows.

    >>> round(float(change_a_step(np.array([0.9, 0.8, 0.7]))), 6)
    -0.1
    """
    offsets = np.arange(spreads.shape[-1]) - (spreads.shape[-1] - 1) / 2
    return (spreads * offsets).sum(axis=-1) / np.maximum((offsets**2).sum(), 1e-12)


def describe_change(spreads: Float[np.ndarray, "step"]) -> str:
    """Return a phrase for the change of the spread over the steps.

    A slope below 0.005 a step counts as constant, and a line that explains less than half of the variance as none.

    Args:
      spreads: of the maps of one image, in the chain's order.

    >>> describe_change(np.array([0.9, 0.8, 0.7])), describe_change(np.array([0.9, 0.2, 0.8]))
    ('the focus narrows', 'the focus goes back and forth')
    """
    change = float(change_a_step(spreads))
    if float(np.ptp(spreads)) < _CONSTANT * (len(spreads) - 1):
        return "the focus stays as wide"
    line = change * (np.arange(len(spreads)) - (len(spreads) - 1) / 2)
    if (line**2).sum() < 0.5 * ((spreads - spreads.mean()) ** 2).sum():
        return "the focus goes back and forth"
    if abs(change) < _CONSTANT:
        return "the focus stays as wide"
    return f"the focus {'narrows' if change < 0 else 'widens'}"


_CONSTANT = 0.005  # slope a step
