"""Write the folder of an exported policy: whole or not at all, and only after it generated the run's own tokens."""

import pathlib
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np

from stepcot_jax import __version__
from stepcot_jax.export import policy_loader
from stepcot_jax.export.folder import copy_loader, describe_preprocessing, save_tensors, write_json, write_sums
from stepcot_jax.export.policy_program import export_policy_programs, make_policy_programs
from stepcot_jax.export.program import PLATFORMS
from stepcot_jax.host.errors import BadInput, RunStopped, make_workdir
from stepcot_jax.host.files import read_file
from stepcot_jax.host.text import escape_markdown as plain
from stepcot_jax.policies import merges
from stepcot_jax.policies.decoder_policy import generate
from stepcot_jax.policies.rollouts import Sampling, rollout_keys
from stepcot_jax.policies.tokenizers import Vocabulary
from stepcot_jax.predict.asked_questions import ask_question
from stepcot_jax.predict.trained_policy import TrainedPolicy, load_policy
from stepcot_jax.reasoning.dialects import write_question
from stepcot_jax.reasoning.record import KINDS
from stepcot_jax.settings.run_settings import Settings
from stepcot_jax.training.state import count_parameters

_NUM_CHECKS = 2
_MOST_REPORT_BYTES = 64 * 2**20
_HERE = pathlib.Path(__file__).parent


def export_policy(
    workdir: str | pathlib.Path, out: str | pathlib.Path, *, say: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Write the policy of a run to a folder that generates replies without this package.

    Args:
      workdir: of the run.
      out: the folder; it must not exist or be empty.
      say: called with a message before each slow part.

    Returns:
      "folder", "files" (names -> bytes), and "policy" ("parameters", "phase", "step").

    Raises:
      BadInput: the run cannot be loaded, has no closed vocabulary, or the folder is not empty.
      RunStopped: the export generates other tokens than the run's own network.
    """
    trained, out = load_policy(pathlib.Path(workdir)), pathlib.Path(out)
    if not isinstance(trained.tokenizer, Vocabulary):
        raise BadInput(
            f"{workdir}: config.policy.tokenizer={trained.settings.policy.tokenizer!r} cannot be exported; a policy "
            "with a closed vocabulary is required"
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(f"{out} already exists; expected a new or an empty folder")
    make_workdir(out.parent)
    partial = pathlib.Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".partial", dir=out.parent))
    try:
        say("writing the policy")
        _write(partial, trained, trained.tokenizer)
        say("reading it back")
        share = policy_loader.check(partial)["same_tokens"]
        if share < 1:
            raise RunStopped(f"the exported policy gives {share:.0%} of the network's own tokens; nothing was written")
        partial.chmod(0o755)
        partial.replace(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    files = {path.name: path.stat().st_size for path in sorted(out.iterdir())}
    about = {"parameters": count_parameters(trained.params), "phase": trained.phase, "step": trained.step}
    return {"folder": str(out), "files": files, "policy": about}


def _write(folder: pathlib.Path, trained: TrainedPolicy, vocabulary: Vocabulary) -> None:
    programs = make_policy_programs(trained)
    for name, exported in export_policy_programs(programs).items():
        (folder / f"{name}.stablehlo").write_bytes(exported.serialize())
    save_tensors(folder / "policy.safetensors", programs.tensors)
    vocabulary.write(folder / "vocabulary.json")
    write_json(folder / "preprocessing.json", describe_preprocessing(trained.preprocessing))
    manifest = {
        "format": policy_loader.FORMAT,
        "kind": policy_loader.KIND,
        "dialect": trained.settings.vqa.dialect,
        "instructions": list_instructions(trained.settings),
        "prompt_length": trained.lengths.prompt_length,
        "reply_length": trained.lengths.reply_length,
        "pad": vocabulary.pad,
        "stop": vocabulary.stop,
        "phase": trained.phase,
        "step": trained.step,
        "platforms": list(PLATFORMS),
        "made_with": {"stepcot_jax": __version__, "jax": jax.__version__},
    }
    write_json(folder / "export.json", manifest)
    save_tensors(folder / "check.safetensors", _make_check(trained))
    copy_loader(folder, policy_loader.__file__)
    shutil.copyfile(merges.__file__, folder / "merges.py")
    text = (_HERE / "policy_card.txt").read_text(encoding="utf-8")
    (folder / "README.md").write_text(text.format(**_describe(trained)), encoding="utf-8")
    write_sums(folder)


def list_instructions(settings: Settings) -> dict[str, str]:
    """Return the last line of a prompt by kind of question: the kind, and the form that the reply is to have."""
    found: dict[str, str] = {}
    for kind in KINDS:
        choices = ("a", "b") if kind in ("single", "multi") else ()
        record = ask_question("?", image_size=(1, 1), choices=choices, kind=kind)
        prompt = write_question(record, settings.vqa.dialect, with_thinking=settings.vqa.with_thinking)
        found[kind] = prompt.split("\n", 2 if choices else 1)[-1]
    return found


def _make_check(trained: TrainedPolicy) -> dict[str, np.ndarray]:
    """Return images and prompts of noise with the network's own greedy replies."""
    draws, lengths = np.random.default_rng(0), trained.lengths
    size = trained.preprocessing.size
    images = draws.integers(0, 256, (_NUM_CHECKS, size, size), dtype=np.uint8)
    prompts = draws.integers(0, lengths.num_words, (_NUM_CHECKS, lengths.prompt_length)).astype(np.int32)
    counts = np.linspace(lengths.prompt_length, 1, _NUM_CHECKS).astype(np.int32)
    preprocessing = trained.preprocessing
    normalise = policy_loader.Preprocessing(size, tuple(preprocessing.mean), tuple(preprocessing.std)).normalise
    replies = generate(
        trained.network,
        trained.params,
        jnp.asarray(normalise(images)),
        jnp.asarray(prompts),
        jnp.asarray(counts),
        sampling=Sampling(longest=lengths.reply_length, stop=trained.tokenizer.stop, greedy=True),
        keys=rollout_keys(jax.random.key(0), first=0, number=_NUM_CHECKS),
    )
    return {"images": images, "prompts": prompts, "lengths": counts, "tokens": np.asarray(replies.tokens)}


def _describe(trained: TrainedPolicy) -> dict[str, Any]:
    """Return the values of the card's fields."""
    settings = trained.settings
    phantom = settings.phantom
    drawn = f"{phantom.num_cases:,} drawn chest phantoms, seed {phantom.seed}: no patients, no evidence about patients"
    # Only the name: the full path would disclose the layout of a disk.
    named = f"records of {plain(pathlib.Path(settings.vqa.root).name)!r}"
    return {
        "version": __version__,
        "jax": jax.__version__,
        "numbers": f"{count_parameters(trained.params):,}",
        "phase": trained.phase.upper(),
        "step": trained.step,
        "source": drawn if settings.vqa.source == "phantom" else named,
        "seed": settings.seed,
        "dialect": settings.vqa.dialect,
        "size": trained.preprocessing.size,
        "num_words": trained.lengths.num_words,
        "figures": _describe_figures(trained),
        "platforms": ", ".join(PLATFORMS),
    }


def _describe_figures(trained: TrainedPolicy) -> str:
    """Return the run's figures of the test split, as its report has them."""
    path = trained.workdir / "report.json"
    found = (
        msgspec.json.decode(read_file(path, max_bytes=_MOST_REPORT_BYTES), type=dict[str, Any])
        if path.is_file()
        else {}
    )
    test = found.get("test") or {}
    figures = test.get(trained.phase) if isinstance(test, dict) else None
    if not figures:
        return "None: the run had measured nothing when it was exported."
    return f"```json\n{msgspec.json.format(msgspec.json.encode(figures), indent=1).decode()}\n```"
