"""Read an exported policy, which answers questions about radiographs. Needs jax and numpy alone; copied as load.py.

    from load import load
    model = load(".")                                         # the folder of the export
    model.answer(images, "Is there a pleural effusion?")      # a reply for each image
    model.answer(images, "Which?", choices=("Mass", "Edema"), greedy=False, seed=3)

`python load.py` checks that this machine computes the exported tokens.

Every export has a copy of this file, of exported_models.py, of exported_files.py, which compares each file with
SHA256SUMS before its use, of exported_programs.py and of exported_words.py. A policy with a Hugging Face tokenizer
needs the package tokenizers too.
"""

import argparse
import pathlib
import re
import string
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

if __package__:
    from stepcot_jax.export.exported_models import print_check, read_pixel_rules
    from stepcot_jax.export.exported_programs import read_program, require_fit
    from stepcot_jax.export.exported_words import ClosedWords, PretrainedWords
    from stepcot_jax.host.exported_files import Files, RefusedExport
else:  # in the folder of an export
    from exported_files import Files, RefusedExport  # type: ignore[import-not-found,no-redef]
    from exported_models import print_check, read_pixel_rules  # type: ignore[import-not-found,no-redef]
    from exported_programs import read_program, require_fit  # type: ignore[import-not-found,no-redef]
    from exported_words import ClosedWords, PretrainedWords  # type: ignore[import-not-found,no-redef]

FORMAT = 1
KIND = "policy"

_YES_OR_NO = re.compile(r"\W*(?:is|are|was|were|does|do|did|has|have|had|can|could|should|will|would)\b", re.IGNORECASE)


class Policy:
    """An exported policy."""

    def __init__(self, folder: str | pathlib.Path) -> None:
        files = Files(pathlib.Path(folder))
        with files.expecting("export.json", "kind and format"):
            self.facts = files.read_json("export.json")
            layout = (self.facts.get("kind"), self.facts.get("format"))
        if layout != (KIND, FORMAT):
            raise RefusedExport(f"{folder}: kind and format {layout} are not supported; expected {(KIND, FORMAT)}")
        self.preprocessing = read_pixel_rules(files)
        special = self.facts.get("special_tokens")
        self._words = ClosedWords(files) if special is None else PretrainedWords(files, special)
        self.prefill, self.extend = (
            read_program(files.read(f"{name}.stablehlo"), folder) for name in ("prefill", "extend")
        )
        tensors = files.read_tensors("policy.safetensors")
        require_fit(self.prefill, tensors, f"{folder}: policy.safetensors")
        self._tensors = jax.device_put(tensors)
        self._prefill, self._extend = jax.jit(self.prefill.call), jax.jit(self.extend.call)

    def write_prompt(self, question: str, *, choices: Sequence[str] = (), kind: str | None = None) -> str:
        """Return the prompt of a question."""
        kind = kind or ("single" if choices else "closed" if _YES_OR_NO.match(question) else "open")
        if not question.strip() or kind not in self.facts["instructions"]:
            raise ValueError(
                f"question {question!r}, kind {kind!r}: expected a text, and open, closed, single or multi"
            )
        fits = 2 <= len(choices) <= 26 if kind in ("single", "multi") else not choices
        if isinstance(choices, str) or not fits:
            raise ValueError(f"kind {kind!r}, {len(choices)} choices: expected 2 to 26 for single and multi, else none")
        listed = ", ".join(f"{letter}: {text}" for letter, text in zip(string.ascii_uppercase, choices, strict=False))
        lines = [question.strip(), *([f"<choices>: [{listed}]"] if choices else []), self.facts["instructions"][kind]]
        return "\n".join(lines)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        return self._words.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens up to the first stop."""
        kept = list(tokens)
        kept = kept[: kept.index(self.facts["stop"])] if self.facts["stop"] in kept else kept
        return self._words.decode(kept)

    def answer(
        self,
        images: Any,
        question: str,
        *,
        choices: Sequence[str] = (),
        kind: str | None = None,
        greedy: bool = True,
        seed: int = 0,
        temperature: float = 1.0,
    ) -> list[str]:
        """Return a reply to the question for each image; boxes in it are in pixels of the stretched image."""
        pixels = self.preprocessing.normalise(images)
        tokens = self.encode(self.write_prompt(question, choices=choices, kind=kind))
        longest = self.facts["prompt_length"]
        if len(tokens) > longest:
            raise ValueError(f"the prompt has {len(tokens)} tokens; at most {longest}")
        prompts = np.full((len(pixels), longest), self.facts["pad"], np.int32)
        prompts[:, : len(tokens)] = tokens
        lengths = np.full(len(pixels), len(tokens), np.int32)
        replies = self.generate(pixels, prompts, lengths, greedy=greedy, seed=seed, temperature=temperature)
        return [self.decode(row) for row in replies.tolist()]

    def generate(
        self, images: Any, prompts: Any, lengths: Any, *, greedy: bool = True, seed: int = 0, temperature: float = 1.0
    ) -> np.ndarray:
        """Return int32 [rollout, token], the replies to normalised images and padded prompts, with stops at the end."""
        if not temperature > 0:
            raise ValueError(f"temperature must be above 0; got {temperature}")
        lengths = jnp.asarray(lengths, jnp.int32)
        asked = jnp.asarray(images), jnp.asarray(prompts, jnp.int32), lengths
        scores, of_prompt, caches = self._prefill(self._tensors, *asked)
        keys = jax.vmap(lambda number: jax.random.fold_in(jax.random.key(seed), number))(jnp.arange(len(lengths)))
        stop, longest = self.facts["stop"], self.facts["reply_length"]
        replies = np.full((len(lengths), longest), stop, np.int32)
        ended = np.zeros(len(lengths), bool)
        for position in range(longest):
            drawn = np.asarray(_draw(keys, scores / temperature, position, greedy=greedy))
            replies[:, position] = np.where(ended, stop, drawn)
            ended |= replies[:, position] == stop
            if ended.all() or position + 1 == longest:
                break
            token = jnp.asarray(replies[:, position])
            scores, caches = self._extend(self._tensors, token, jnp.int32(position), lengths, of_prompt, caches)
        return replies


def _draw(keys: jax.Array, scores: jax.Array, position: int, *, greedy: bool) -> jax.Array:
    if greedy:
        return jnp.argmax(scores, axis=-1).astype(jnp.int32)
    draw = jax.vmap(lambda key, row: jax.random.categorical(jax.random.fold_in(key, position), row))
    return draw(keys, scores).astype(jnp.int32)


def load(folder: str | pathlib.Path) -> Policy:
    """Load a policy."""
    return Policy(folder)


def check(folder: str | pathlib.Path) -> dict[str, Any]:
    """Compare this machine's greedy replies to the stored prompts with the stored tokens."""
    files, names = Files(pathlib.Path(folder)), ("images", "prompts", "lengths", "tokens")
    with files.expecting("check.safetensors", ", ".join(names)):
        images, prompts, lengths, tokens = map(files.read_tensors("check.safetensors").__getitem__, names)
    model = load(folder)
    same = model.generate(model.preprocessing.normalise(images), prompts, lengths) == tokens
    return {"same_tokens": float(same.mean()), "ok": bool(same.all())}


def main(arguments: list[str] | None = None) -> int:
    """Print one JSON line; return 1 if tokens differ, 2 if the export is refused."""
    parser = argparse.ArgumentParser(description="Check that this machine computes the tokens that were exported.")
    here = pathlib.Path(__file__).parent
    parser.add_argument("folder", nargs="?", type=pathlib.Path, default=here, help="default: this file's folder")
    return print_check(lambda: [check(parser.parse_args(arguments).folder)])


if __name__ == "__main__":
    sys.exit(main())
