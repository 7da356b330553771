"""A workdir with the files of a policy's run but without training: random weights, three checkpoints, true replies."""

import functools
import json
import pathlib
import shutil
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
from oracles.random_params import randomise
from sections import section

from stepcot_jax.data.questions.record_files import write_vqa_records
from stepcot_jax.policies.policy_files import PolicyLengths, write_lengths
from stepcot_jax.policies.tokenizers import Vocabulary
from stepcot_jax.reasoning.dialects import write_question, write_reply
from stepcot_jax.run.loading import load_vqa_dataset
from stepcot_jax.run.networks import make_policy
from stepcot_jax.run.settings import load_settings, write_settings
from stepcot_jax.training.checkpoints import Best, Checkpoints
from stepcot_jax.training.state import TrainState

SIDE = 32
BEST = {"sft": Best(0.4, 2), "grpo": Best(0.5, 3)}
LATEST = 4
SIZES = {
    **section("phantom", num_cases=30, image_size=64, prevalence="flat"),
    **section("policy", grid=2, encoder_widths=(8, 8), width=16, num_layers=1, num_heads=2, head_width=8, mlp_width=16),
    "image_encoder.image_size": SIDE,
}
_BUILT = tempfile.TemporaryDirectory(prefix="stepcot-jax-policy-")


def small_settings(**changes):
    """Settings of a tiny policy; further changes by full name, with `__` for dots."""
    return load_settings(
        "base", **{"job": "grpo", **SIZES, **{key.replace("__", "."): changes[key] for key in changes}}
    )


def random_params(network, *, seed):
    tokens = jnp.zeros((1, 1), jnp.int32)
    images = jnp.zeros((1, SIDE, SIDE, 3))
    shapes = jax.eval_shape(lambda: network.init(jax.random.key(0), images, tokens, tokens[0] + 1, tokens))["params"]
    return jax.tree.map(np.asarray, randomise(shapes, seed))


def make_policy_workdir(folder: pathlib.Path):
    """Return the settings, the records, and the policy's parameters by update; each process builds the workdir once."""
    built = _build()
    shutil.copytree(_BUILT.name, folder)
    return built


@functools.cache
def _build():
    settings, folder = small_settings(), pathlib.Path(_BUILT.name)
    write_settings(folder / "settings.json", settings)
    records = load_vqa_dataset(settings).records
    dialect = settings.vqa.dialect
    prompts = [write_question(record, dialect) for record in records]
    replies = [write_reply(record, dialect) for record in records]
    vocabulary = Vocabulary.count([*prompts, *replies], largest=SIDE)
    vocabulary.write(folder / "vocabulary.json")
    longest, num_words = max(len(vocabulary.encode(prompt)) for prompt in prompts), vocabulary.num_words
    lengths = PolicyLengths(prompt_length=longest, reply_length=12, num_words=num_words, largest_coordinate=SIDE)
    write_lengths(folder, lengths)
    tests = [record for record in records if record.split == "test"]
    (folder / "records").mkdir()
    write_vqa_records(folder / "records" / "test.jsonl", tests)
    _write_replies(folder / "replies", tests, dialect)
    _write_metrics(folder / "metrics.jsonl")
    best = {name: {"step": each.step, "validation_score": each.score} for name, each in BEST.items()}
    (folder / "report.json").write_text(json.dumps({"best": best, "test": {}}))
    return settings, records, _save(folder / "checkpoints", make_policy(settings, num_words=lengths.num_words))


def _write_replies(folder, records, dialect):
    """The true replies; every third one of SFT ends before its boxes."""
    folder.mkdir()
    for phase in BEST:
        lines = []
        for place, record in enumerate(records):
            text = write_reply(record, dialect)
            text = text.split("<location>")[0] if phase == "sft" and place % 3 == 0 else text
            lines.append(json.dumps({"id": record.id, "reply": text}))
        (folder / f"{phase}_test.jsonl").write_text("\n".join(lines) + "\n")


def _write_metrics(path):
    """One entry of each kind an epoch: three of SFT, then two of GRPO."""
    lines = []
    for epoch in range(5):
        is_grpo = epoch > 2
        numbers = {"reward": 0.5 + 0.1 * epoch, "kl": 0.01} if is_grpo else {"loss": 3.0 - epoch}
        at = {"step": epoch + 1, "epoch": epoch}
        lines.append({"kind": "train", **at, **numbers, "cases_per_second": 10.0})
        lines.append({"kind": "val", **at, f"{'grpo' if is_grpo else 'sft'}/score": 0.1 * epoch})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _save(folder, network):
    checkpoints, params = Checkpoints(folder), {}
    for step in (*(entry.step for entry in BEST.values()), LATEST):
        params[step] = random_params(network, seed=step)
        both = {"policy": params[step], "reference": jax.tree.map(np.zeros_like, params[step])}
        state = TrainState(np.int32(step), both, {"policy": {"count": np.int32(step)}}, jax.random.key(0))
        kept = {name: entry for name, entry in BEST.items() if entry.step <= step}
        checkpoints.save(state, {"batches": {}, "seconds": 0.0, "data": ""}, kept)
    checkpoints.wait()
    checkpoints.close()
    return params
