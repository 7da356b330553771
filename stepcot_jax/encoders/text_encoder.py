"""Frozen text encoders, which turn prompts into vectors, and their tokenizers."""

import dataclasses
import functools
import hashlib
import logging
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import flax.linen as nn
import jax
import msgspec
import numpy as np
from jaxtyping import Array, Bool, Float32, Int

from stepcot_jax.host.download import fetch, split_hub_id
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_json
from stepcot_jax.host.text import one_line, shorten

_MOST_BYTES = 2**26  # published files have 0.5 to 34 MB
_MOST_PARTS, _MOST_ADDED, _LONGEST, _LONGEST_ADDED, _MOST_PIECES = 16, 2**14, 16, 256, 64
_TRIAL = "".join(map(chr, range(0x20, 0x2800)))

_KINDS = {
    "normalizer": "NFC NFD NFKC NFKD Lowercase Strip StripAccents BertNormalizer Replace Prepend Precompiled",
    "pre_tokenizer": "ByteLevel Split BertPreTokenizer Whitespace WhitespaceSplit Metaspace Digits Punctuation",
    "post_processor": "TemplateProcessing ByteLevel BertProcessing RobertaProcessing",
    "decoder": "ByteLevel WordPiece Metaspace Replace ByteFallback Fuse Strip BPEDecoder",
}
"""Kinds of the parts of published files: BERT, CLIP, Qwen, Llama, and those that SentencePiece made."""

_TEXT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|NUMBER| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CLIP = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
_PATTERNS = frozenset(
    {_TEXT.replace("NUMBER", number) for number in (r"\p{N}", r"\p{N}{1,3}")}
    | {_CLIP, rf"<\|startoftext\|>|<\|endoftext\|>|{_CLIP}"}
    | {r"\s+", " {2,}", r"\s{2,}|[\n\r\t]", r"[\n\r\t]", r"\n", r"\A▁", r"\A +| +\z", "^▁+$", " +▁"}
)
"""Regular expressions of published files; others may run out of their engine's steps, which ends the process."""


class _File(msgspec.Struct):
    """The parts of a tokenizer.json that change a text; vocabulary and merges are looked up alone."""

    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None
    post_processor: dict[str, Any] | None = None
    decoder: dict[str, Any] | None = None
    added_tokens: list[dict[str, Any]] = []


_FILES = (
    "config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.txt", "vocab.json", "merges.txt", "*.model", "chat_template.json", "chat_template.jinja",
)  # fmt: skip
_MOST_REPOSITORY_BYTES = 2**28


def load_tokenizer_files(source: str | pathlib.Path) -> Any:
    """Return the transformers tokenizer of a folder or a Hugging Face id; its own code is never run."""
    folder = pathlib.Path(source).expanduser()
    if not folder.exists():
        repository, revision = split_hub_id(str(source))
        folder = fetch(str(source), repository, revision, allow=_FILES, most_bytes=_MOST_REPOSITORY_BYTES)
    path = folder / "tokenizer.json"
    if path.is_file():
        _check(path)
    import transformers  # slow to import, and often not needed

    try:
        loaded = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        loaded.get_vocab()
        loaded.encode(_TRIAL, verbose=False)  # some damage panics first where a text is read
    except BaseException as error:  # transformers raises many kinds; a panic of tokenizers is no Exception
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise BadInput(f"{type(error).__name__}: {one_line(error)}") from None
        raise
    return loaded


def _check(path: pathlib.Path) -> None:
    file = read_json(path, _File, accepted="expected a Hugging Face tokenizer", max_bytes=_MOST_BYTES)
    if len(file.added_tokens) > _MOST_ADDED:
        raise BadInput(f"{path}, added_tokens: {len(file.added_tokens)}; at most {_MOST_ADDED} are accepted")
    longest = max((len(str(token.get("content", ""))) for token in file.added_tokens), default=0)
    if longest > _LONGEST_ADDED:
        raise BadInput(f"{path}, added_tokens: one of {longest} characters; at most {_LONGEST_ADDED} are accepted")
    for section, kinds in _KINDS.items():
        for number, part in enumerate(_list_parts(getattr(file, section)), start=1):
            if number > _MOST_PARTS:
                raise BadInput(f"{path}, {section}: more than {_MOST_PARTS} parts")
            if problem := _find_problem(part, kinds.split()):
                raise BadInput(f"{path}, {section}: {problem}")


def _list_parts(part: Any) -> Iterator[Any]:
    """Yield a part, or the parts of a sequence, which may hold sequences."""
    waiting = [] if part is None else [part]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping) and part.get("type") == "Sequence":
            listed: Any = next(
                (part[key] for key in ("normalizers", "pretokenizers", "processors", "decoders") if key in part), []
            )
            waiting += listed if isinstance(listed, list) else [listed]
        yield part


def _find_problem(part: Any, kinds: list[str]) -> str:
    """Return why a part of a tokenizer is refused, or ""."""
    kind = part.get("type") if isinstance(part, Mapping) else part
    if kind not in ("Sequence", *kinds) or not isinstance(part, Mapping):
        return f"{shorten(repr(kind))} is not one of {', '.join(kinds)}"
    listed = [part.get(key) for key in ("single", "pair", "special_tokens")]
    pieces = max(len(pieces) if isinstance(pieces, list | dict) else 0 for pieces in listed)
    if kind == "TemplateProcessing" and pieces > _MOST_PIECES:
        return f"{kind} of {pieces} pieces; at most {_MOST_PIECES} are accepted"
    pattern = part.get("pattern", {})
    for form, value in pattern.items() if isinstance(pattern, Mapping) else [("pattern", pattern)]:
        if form == "Regex" and value not in _PATTERNS:
            return f"the regular expression {shorten(repr(value))} of {kind} is of no published tokenizer"
        if form != "Regex" and not (isinstance(value, str) and 0 < len(value) <= _LONGEST):
            return f"the pattern {shorten(repr(value))} of {kind} is not a text of 1 to {_LONGEST} characters"
    long = next((key for key in ("content", "prepend", "replacement") if len(str(part.get(key, ""))) > _LONGEST), "")
    return f"{long} of {kind} is longer than {_LONGEST} characters" if long else ""


Pooling = Literal["cls", "mean", "projected"]
"""Last state of BERT's first or CLIP's end token; mean over all tokens but padding; vector in the space of images."""

SHORTEST = 16
"""Texts are padded to this number of tokens times a power of two, so that few lengths are compiled."""

TEXT_BATCH = 16
"""Texts per call. Fixed, so that a text's vector does not depend on the number of texts."""


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """A transformers tokenizer with a length limit."""

    loaded: Any
    max_tokens: int  # longest text, special tokens included
    digest: str  # SHA-256 of vocabulary and rules

    def tokenize(self, texts: Sequence[str]) -> tuple[list[list[int]], list[int]]:
        """Return the tokens of each text, without padding, and the lengths of the texts that were truncated."""
        # verbose=False: transformers' warning about long texts does not name them.
        rows = self.loaded(list(texts), verbose=False, return_attention_mask=False)["input_ids"] if texts else []
        lengths = {index: len(row) for index, row in enumerate(rows) if len(row) > self.max_tokens}
        for index in lengths:  # the tokenizer keeps the special token at the end
            rows[index] = self.loaded(texts[index], truncation=True, max_length=self.max_tokens)["input_ids"]
        return [list(row) for row in rows], list(lengths.values())

    def pad(
        self, rows: Sequence[Sequence[int]], *, num_rows: int, num_tokens: int
    ) -> tuple[Int[np.ndarray, "text token"], Bool[np.ndarray, "text token"]]:
        """Return tokens int32 and attention mask [num_rows, num_tokens]; missing rows repeat the first."""
        padding = self.loaded.pad_token_id or 0
        tokens = np.full((num_rows, num_tokens), padding, np.int32)
        attended = np.zeros((num_rows, num_tokens), bool)
        for k, row in enumerate([*rows, *[rows[0]] * (num_rows - len(rows))]):
            tokens[k, : len(row)] = row
            attended[k, : len(row)] = True
        return tokens, attended

    def padded_length(self, num_tokens: int) -> int:
        """Return the padded length of a text of `num_tokens`; it does not depend on other texts."""
        return min(max(SHORTEST, 1 << (num_tokens - 1).bit_length()), self.max_tokens)


def load_tokenizer(folder: pathlib.Path, *, max_tokens: int, vocabulary_size: int) -> Tokenizer:
    """Load the tokenizer of a checkpoint's folder."""
    expected = "expected the model's tokenizer.json and tokenizer_config.json, or vocab.txt"
    if not any((folder / name).is_file() for name in ("tokenizer.json", "vocab.txt", "vocab.json")):
        raise BadInput(f"{folder}: no tokenizer; {expected}")
    try:
        loaded = load_tokenizer_files(folder)
    except BadInput as error:
        raise BadInput(f"{folder}: unreadable tokenizer ({error}); {expected}") from None
    vocabulary = loaded.get_vocab()
    largest = max(vocabulary.values(), default=-1)
    if not 0 <= largest < vocabulary_size:
        raise BadInput(
            f"{folder}: the tokenizer's largest token is {largest}, but the network has {vocabulary_size} embeddings"
        )
    backend = getattr(loaded, "backend_tokenizer", None)
    rules = backend.to_str() if backend is not None else repr(sorted(vocabulary.items()))
    return Tokenizer(loaded, max_tokens, hashlib.sha256(rules.encode()).hexdigest())


@functools.partial(jax.jit, static_argnames=("network", "pooling"))
def _encode_texts(params: Any, tokens: Array, attended: Array, network: nn.Module, pooling: str) -> Any:
    return getattr(network.apply({"params": params}, tokens, attended), pooling)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlaxEncoder:
    """A frozen encoder of a checkpoint."""

    name: str  # kind and source, for logs
    width: int  # size of a feature vector; of texts with pooling "cls" and "mean"
    digest: str  # SHA-256 of everything that determines the features
    num_parameters: int  # of the checkpoint, for CLIP of both towers
    network: nn.Module = dataclasses.field(repr=False)
    # called at the first `encode`, so that an encoder whose features are all stored takes no memory
    read_params: Callable[[], Any] = dataclasses.field(repr=False)

    @functools.cached_property
    def params(self) -> Any:
        """Parameters on the device."""
        return jax.device_put(self.read_params())


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextEncoder(FlaxEncoder):
    """A frozen text encoder with its tokenizer."""

    projected_width: int  # size of the vectors of pooling "projected"; 0 without a projection
    max_tokens: int  # longest text; longer texts are truncated and logged
    tokenizer: Tokenizer = dataclasses.field(repr=False)

    def encode(self, texts: Sequence[str], *, pooling: Pooling = "cls") -> Float32[np.ndarray, "text feature"]:
        """Return vectors [text, width] or [text, projected_width]; longer texts are truncated and logged."""
        if pooling not in ("cls", "mean", "projected") or (pooling == "projected" and not self.projected_width):
            accepted = "'cls', 'mean'" + (", 'projected'" if self.projected_width else " (it has no projection)")
            raise BadInput(f"{self.name}: pooling {pooling!r} is not one of {accepted}")
        rows, truncated = self.tokenizer.tokenize(texts)
        if truncated:
            lengths = ", ".join(map(str, truncated[:10])) + (", ..." if len(truncated) > 10 else "")
            logging.getLogger(__name__).warning(
                "%s: truncated %d of %d texts to %d tokens; their lengths were %s",
                self.name, len(truncated), len(texts), self.max_tokens, lengths,
            )  # fmt: skip
        width = self.projected_width if pooling == "projected" else self.width
        vectors = np.zeros((len(rows), width), np.float32)
        lengths_of = np.asarray([self.tokenizer.padded_length(len(row)) for row in rows], int)
        for length in np.unique(lengths_of):
            same = np.flatnonzero(lengths_of == length)
            for start in range(0, len(same), TEXT_BATCH):
                chosen = same[start : start + TEXT_BATCH]
                batch = [rows[k] for k in chosen]
                tokens, attended = self.tokenizer.pad(batch, num_rows=TEXT_BATCH, num_tokens=int(length))
                encoded = _encode_texts(self.params, tokens, attended, self.network, pooling)
                vectors[chosen] = np.asarray(encoded)[: len(chosen)]
        return vectors
