"""Hugging Face tokenizers: tokenizer.json is checked before the package tokenizers, which may abort, reads it."""

import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from stepcot_jax.host.download import fetch, split_hub_id
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_json
from stepcot_jax.host.text import one_line, shorten

_MOST_BYTES = 2**26  # published files have 0.5 to 34 MB
_MOST_PARTS, _MOST_ADDED, _LONGEST = 16, 2**14, 16

_KINDS = {
    "normalizer": "NFC NFD NFKC NFKD Lowercase Strip StripAccents BertNormalizer Replace Prepend Precompiled",
    "pre_tokenizer": "ByteLevel Split BertPreTokenizer Whitespace WhitespaceSplit Metaspace Digits Punctuation",
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
    decoder: dict[str, Any] | None = None
    added_tokens: list[Any] = []


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
    except BaseException as error:  # transformers raises many kinds; a panic of tokenizers is no Exception
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise BadInput(f"{type(error).__name__}: {one_line(error)}") from None
        raise
    return loaded


def _check(path: pathlib.Path) -> None:
    file = read_json(path, _File, accepted="expected a Hugging Face tokenizer", max_bytes=_MOST_BYTES)
    if len(file.added_tokens) > _MOST_ADDED:
        raise BadInput(f"{path}, added_tokens: {len(file.added_tokens)}; at most {_MOST_ADDED} are accepted")
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
            listed: Any = next((part[key] for key in ("normalizers", "pretokenizers", "decoders") if key in part), [])
            waiting += listed if isinstance(listed, list) else [listed]
        yield part


def _find_problem(part: Any, kinds: list[str]) -> str:
    """Return why a part of a tokenizer is refused, or ""."""
    kind = part.get("type") if isinstance(part, Mapping) else part
    if kind not in ("Sequence", *kinds) or not isinstance(part, Mapping):
        return f"{shorten(repr(kind))} is not one of {', '.join(kinds)}"
    pattern = part.get("pattern", {})
    for form, value in pattern.items() if isinstance(pattern, Mapping) else [("pattern", pattern)]:
        if form == "Regex" and value not in _PATTERNS:
            return f"the regular expression {shorten(repr(value))} of {kind} is of no published tokenizer"
        if form != "Regex" and not (isinstance(value, str) and 0 < len(value) <= _LONGEST):
            return f"the pattern {shorten(repr(value))} of {kind} is not a text of 1 to {_LONGEST} characters"
    long = next((key for key in ("content", "prepend", "replacement") if len(str(part.get(key, ""))) > _LONGEST), "")
    return f"{long} of {kind} is longer than {_LONGEST} characters" if long else ""
