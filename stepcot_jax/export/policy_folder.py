"""Write the folder of an exported policy, atomically, after comparing its tokens with the run's."""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import jaxlib
import msgspec
import numpy as np
from jaxtyping import Array

from stepcot_jax import __version__
from stepcot_jax.encoders.load import ImageEncoder
from stepcot_jax.export import exported_programs, exported_words, policy_loader
from stepcot_jax.export.carried_files import describe_encoder, name_encoder
from stepcot_jax.export.folder import copy_loader, describe_preprocessing, list_sizes, save_tensors
from stepcot_jax.export.model_card import list_files, write_front_matter, write_lifetime
from stepcot_jax.export.program import PLATFORMS, Tensors
from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.host.exported_files import write_sums
from stepcot_jax.host.files import read_json, write_json, writing_folder
from stepcot_jax.host.text import escape_markdown as plain
from stepcot_jax.models.decoder import KeyValues, Prefix, empty_cache
from stepcot_jax.models.prefix_vlm import PrefixVlm
from stepcot_jax.policies import merges
from stepcot_jax.policies.policy_files import LENGTHS_FILE, VOCABULARY_FILE, AnyTokenizer, write_lengths
from stepcot_jax.policies.qwen_weights import write_qwen
from stepcot_jax.policies.sampling import Sampling, generate, rollout_keys
from stepcot_jax.reading.policy_reader import TrainedPolicy, ask_question, load_policy
from stepcot_jax.reasoning.dialects import write_question
from stepcot_jax.record import KINDS
from stepcot_jax.run.stored import SETTINGS_FILE
from stepcot_jax.run.stored_policy import FROZEN_ENCODER, POLICY_FILE
from stepcot_jax.training.state import count_parameters, flatten, unflatten

# A policy as two pure functions of named tensors: prefill, which reads image and prompt, and one decoded token.


Caches = list[Array]  # Keys, then values, of each layer: [rollout, slot, kv_head * head_width]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyPrograms:
    """The programs of a policy, functions of (tensors, ...)."""

    prefill: Callable[..., tuple[Array, Caches, Caches]]  # images, prompts, lengths -> scores, caches
    extend: Callable[..., tuple[Array, Caches]]  # tokens, position, lengths, caches -> scores, caches of the reply
    tensors: Tensors
    size: int  # height and width of an image in pixels
    prompt_length: int  # tokens that prompts are padded to


def make_policy_programs(trained: TrainedPolicy) -> PolicyPrograms:
    """Return the programs of a trained policy with the small decoder; `prefill` includes a frozen encoder."""
    network, lengths_of = trained.network, trained.lengths
    if not isinstance(network, PrefixVlm):
        raise TypeError(f"trained: {type(network).__name__} has no programs; expected a PrefixVlm")

    see, frozen = _frozen_encoder(trained)

    def prefill(tensors: Tensors, images: Array, prompts: Array, lengths: Array) -> tuple[Array, Caches, Caches]:
        variables = {"params": unflatten(tensors)}
        images = see(variables["params"].pop(FROZEN_ENCODER, None), images)
        scores, prefix = network.apply(variables, images, prompts, lengths, method="prefill")
        empty = empty_cache(
            network.sizes, num_rollouts=lengths.shape[0], num_slots=lengths_of.reply_length, dtype=network.dtype
        )
        return scores, [part for entry in prefix for part in entry.layer], [part for layer in empty for part in layer]

    def extend(
        tensors: Tensors, tokens: Array, position: Array, lengths: Array, prompt: Caches, reply: Caches
    ) -> tuple[Array, Caches]:
        variables = {"params": unflatten(tensors)}
        variables["params"].pop(FROZEN_ENCODER, None)
        is_real = jnp.arange(prompt[0].shape[1])[None] < network.num_cells + lengths[:, None]
        scores, layers = network.apply(
            variables,
            tokens,
            position,
            lengths,
            _pair(reply),
            prefix=tuple(Prefix(layer, is_real) for layer in _pair(prompt)),
            method="extend",
        )
        return scores, [part for cache in layers for part in cache]

    arrays: dict[str, Any] = {
        key: np.asarray(value) for key, value in sorted(flatten({**trained.params, **frozen}).items())
    }
    return PolicyPrograms(
        prefill=prefill,
        extend=extend,
        tensors=arrays,
        size=trained.preprocessing.size,
        prompt_length=lengths_of.prompt_length,
    )


def _frozen_encoder(trained: TrainedPolicy) -> tuple[Callable[[Any, Array], Array], dict[str, Any]]:
    """Return the function from its parameters and normalised images to the network's input, and the parameters."""
    patches = trained.patches
    if patches is None:
        return (lambda _, images: images), {}
    encoder, dtype = patches.encoder, patches.dtype
    if not isinstance(encoder, ImageEncoder):
        raise BadInput(
            f"{trained.workdir}: the policy reads {encoder.name}, which runs in PyTorch; an export needs an image "
            "encoder of this package, see docs/encoders.md"
        )

    def see(params: Any, images: Array) -> Array:
        features: Array = encoder.network.apply({"params": params}, images)[1]
        # The barrier separates encoder and decoder, as in the run: below float32, other fusions round differently.
        features = jax.lax.optimization_barrier(features)
        return features.astype(dtype).astype(jnp.float32)

    return see, {FROZEN_ENCODER: encoder.params}


def _pair(caches: Caches) -> tuple[KeyValues, ...]:
    return tuple(KeyValues(*pair) for pair in zip(caches[::2], caches[1::2], strict=True))


def export_policy_programs(programs: PolicyPrograms) -> dict[str, jax.export.Exported]:
    """Return StableHLO of both programs, for any number of rollouts on every platform."""
    (number,) = jax.export.symbolic_shape("rollout")
    tensors = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in programs.tensors.items()}
    counts = jax.ShapeDtypeStruct((number,), jnp.int32)
    asked = (
        tensors,
        jax.ShapeDtypeStruct((number, programs.size, programs.size, 3), jnp.float32),
        jax.ShapeDtypeStruct((number, programs.prompt_length), jnp.int32),
        counts,
    )
    prefill = jax.jit(programs.prefill)
    _, *caches = jax.eval_shape(prefill, *asked)
    drawn = (tensors, counts, jax.ShapeDtypeStruct((), jnp.int32), counts, *caches)
    functions = {"prefill": (prefill, asked), "extend": (jax.jit(programs.extend), drawn)}
    return {
        name: jax.export.export(function, platforms=PLATFORMS)(*shapes)
        for name, (function, shapes) in functions.items()
    }


# Export the Qwen2.5-VL of a run as a checkpoint folder that transformers and vLLM read, with LoRA merged.


def export_qwen(
    trained: TrainedPolicy, out: pathlib.Path, *, say: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Write the network of a run, bfloat16, with the config, tokenizer and preprocessing that it started from."""
    source, policy = trained.source, trained.run.settings.policy
    if source is None or not hasattr(trained.network, "merge"):
        raise ValueError("trained: its network is no Qwen2.5-VL")
    if source.folder is None or policy.shrink > 1:
        raise BadInput(
            f"{trained.workdir}: a dry run cannot be exported (config.policy.random=True, shrink={policy.shrink}: it "
            "has no config.json of its size); config.policy.weights of the run must be a folder, and shrink 1"
        )
    say("writing the checkpoint")
    merged = trained.network.merge(trained.params)
    write_qwen(out, merged, trained.network.network, source=source.folder, dtype=jnp.bfloat16)
    write_sums(out)
    about = {"parameters": count_parameters(merged), "phase": trained.phase, "step": trained.step}
    return {"folder": str(out), "files": list_sizes(out), "policy": about}


_NUM_CHECKS = 2
_CLOSED = f"A question with\na word that is not in `{VOCABULARY_FILE}` is refused."
_PRETRAINED = "Its\nHugging Face tokenizer needs `pip install tokenizers` too."
_HERE = pathlib.Path(__file__).parent
_DESCRIBED = {
    "prefill.stablehlo": "image and prompt to the first token's scores and caches",
    "extend.stablehlo": "one more token and caches to the next token's scores",
    POLICY_FILE: f"parameters; those of a frozen encoder have names that begin with `{FROZEN_ENCODER}/`",
    VOCABULARY_FILE: "words of the training records, and their tokens",
    LENGTHS_FILE: "lengths of prompts and replies; with it and `settings.json` `sc.load` reads this folder",
    "export.json": "instructions of the prompts, lengths, versions",
    "check.safetensors": "noise with its greedy tokens, for `python load.py`, which checks this machine",
}


def export_policy(
    workdir: str | pathlib.Path, out: str | pathlib.Path, *, say: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Write the policy of a run to a folder that generates replies without this package; Qwen by `export_qwen`."""
    trained, out = load_policy(pathlib.Path(workdir)), pathlib.Path(out)
    if trained.source is not None:
        return export_qwen(trained, out, say=say)
    with writing_folder(out) as partial:
        say("writing the policy")
        _write(partial, trained)
        say("reading it back")
        share = policy_loader.check(partial)["same_tokens"]
        if share < 1:
            raise RunStopped(f"the exported policy gives {share:.0%} of the network's own tokens; nothing was written")
    about = {"parameters": count_parameters(trained.params), "phase": trained.phase, "step": trained.step}
    return {"folder": str(out), "files": list_sizes(out), "policy": about}


def _write(folder: pathlib.Path, trained: TrainedPolicy) -> None:
    special = _write_words(folder, trained.tokenizer)
    described = dict.fromkeys(list_sizes(folder), "the Hugging Face tokenizer") | _DESCRIBED
    programs = make_policy_programs(trained)
    for name, exported in export_policy_programs(programs).items():
        (folder / f"{name}.stablehlo").write_bytes(exported.serialize())
    save_tensors(folder / POLICY_FILE, programs.tensors)
    write_lengths(folder, trained.lengths)
    trained.run.write_shared(folder / SETTINGS_FILE)
    write_json(folder / "preprocessing.json", describe_preprocessing(trained.preprocessing))
    manifest = {
        "format": policy_loader.FORMAT,
        "kind": policy_loader.KIND,
        "dialect": trained.run.dialect,
        "instructions": list_instructions(trained.run.dialect, with_thinking=trained.run.with_thinking),
        "prompt_length": trained.lengths.prompt_length,
        "reply_length": trained.lengths.reply_length,
        "pad": trained.tokenizer.pad,
        "stop": trained.tokenizer.stop,
        **special,
        "phase": trained.phase,
        "step": trained.step,
        "platforms": list(PLATFORMS),
        "made_with": {"stepcot_jax": __version__, "jax": jax.__version__, "jaxlib": jaxlib.__version__},
    }
    if trained.patches is not None:
        manifest["encoder"] = describe_encoder(trained.patches.encoder, trained.workdir)
    write_json(folder / "export.json", manifest)
    save_tensors(folder / "check.safetensors", _make_check(trained))
    copy_loader(folder, policy_loader, exported_programs, exported_words, merges)
    text = (_HERE / "policy_card.txt").read_text(encoding="utf-8")
    facts = {**_describe(trained), "files": list_files(folder, described)}
    card = f"{write_front_matter('visual-question-answering')}{text.format(**facts).rstrip()}"
    (folder / "README.md").write_text(f"{card}\n\n{write_lifetime()}", encoding="utf-8")
    write_sums(folder)


def _write_words(folder: pathlib.Path, tokenizer: AnyTokenizer) -> dict[str, Any]:
    """Write the vocabulary, or a pretrained tokenizer's files; return its special tokens for export.json."""
    if tokenizer.closed is not None:
        tokenizer.closed.write(folder / VOCABULARY_FILE)
        return {}
    if not hasattr(tokenizer, "special"):
        raise BadInput(f"config.policy.tokenizer: a {type(tokenizer).__name__} cannot be exported with this network")
    pretrained: Any = tokenizer
    pretrained.write(folder)
    return {"special_tokens": sorted(pretrained.special)}


def list_instructions(dialect: str, *, with_thinking: bool) -> dict[str, str]:
    """Return the last line of a prompt by kind of question: the kind, and the required form of the reply."""
    instructions: dict[str, str] = {}
    for kind in KINDS:
        choices = ("a", "b") if kind in ("single", "multi") else ()
        record = ask_question("?", image_size=(1, 1), choices=choices, kind=kind)
        prompt = write_question(record, dialect, with_thinking=with_thinking)
        instructions[kind] = prompt.split("\n", 2 if choices else 1)[-1]
    return instructions


def _make_check(trained: TrainedPolicy) -> dict[str, np.ndarray]:
    """Return images and prompts of noise with the network's own greedy replies."""
    draws, lengths = np.random.default_rng(0), trained.lengths
    size = trained.preprocessing.size
    images = draws.integers(0, 256, (_NUM_CHECKS, size, size), dtype=np.uint8)
    prompts = draws.integers(0, lengths.num_words, (_NUM_CHECKS, lengths.prompt_length)).astype(np.int32)
    counts = np.linspace(lengths.prompt_length, 1, _NUM_CHECKS).astype(np.int32)
    replies = generate(
        trained.network,
        trained.params,
        trained.see(np.repeat(images[..., None], 3, axis=-1)),
        jnp.asarray(prompts),
        jnp.asarray(counts),
        sampling=Sampling(longest=lengths.reply_length, stop=trained.tokenizer.stop, greedy=True),
        keys=rollout_keys(jax.random.key(0), first=0, number=_NUM_CHECKS),
    )
    return {"images": images, "prompts": prompts, "lengths": counts, "tokens": np.asarray(replies.tokens)}


def _describe(trained: TrainedPolicy) -> dict[str, Any]:
    closed = trained.tokenizer.closed is not None
    return {
        "version": __version__,
        "numbers": f"{count_parameters(trained.params):,}",
        "phase": trained.phase.upper(),
        "step": trained.step,
        "source": trained.run.question_source,
        "seed": trained.run.settings.seed,
        "dialect": trained.run.dialect,
        "size": trained.preprocessing.size,
        "num_words": trained.lengths.num_words,
        "figures": _describe_figures(trained),
        **_describe_encoder(trained),
        "words": _CLOSED if closed else _PRETRAINED,
        "platforms": ", ".join(PLATFORMS),
    }


def _describe_encoder(trained: TrainedPolicy) -> dict[str, str]:
    """Return the card's fields on a frozen encoder; "" if the encoder was trained with the policy."""
    if trained.patches is None:
        return {"encoder": ""}
    encoder = trained.patches.encoder
    about = (
        f"\nIt reads the patches of {plain(name_encoder(encoder))}, pretrained and frozen; its own licence and data\n"
        "apply."
    )
    return {"encoder": about}


def _describe_figures(trained: TrainedPolicy) -> str:
    """Return the run's figures of the test split, as its report has them."""
    path = trained.workdir / "report.json"
    report = read_json(path, dict[str, Any], accepted="expected the report of a run") if path.exists() else {}
    test = report.get("test") or {}
    figures = test.get(trained.phase) if isinstance(test, dict) else None
    if not figures:
        return "None: the run had measured nothing when it was exported."
    return f"```json\n{msgspec.json.format(msgspec.json.encode(figures), indent=1).decode()}\n```"
