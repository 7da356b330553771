import json
import types

import pytest
from refusals import refuse

from stepcot_jax.encoders import text_encoder
from stepcot_jax.encoders.checkpoints import resolve
from stepcot_jax.encoders.text_encoder import load_tokenizer_files
from stepcot_jax.features.frozen_encoders import read_preprocessing
from stepcot_jax.host.errors import BadInput
from stepcot_jax.policies.policy_files import load_pretrained

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CLIP = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


def write(folder, **changes):
    """A tokenizer of bytes, as Qwen's is apart from its merges, with other parts."""
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    model = tokenizers.models.BPE(vocab={letter: place for place, letter in enumerate(letters)}, merges=[])
    content = json.loads(tokenizers.Tokenizer(model).to_str())
    split = {"type": "Split", "pattern": {"Regex": QWEN}, "behavior": "Isolated", "invert": False}
    in_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    content |= {
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, in_bytes]},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    }
    (folder / "tokenizer.json").write_text(json.dumps(content | changes))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return folder


def split_at(pattern):
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


def replace(pattern, content=" "):
    return {"type": "Replace", "pattern": pattern, "content": content}


def template(*tokens):
    single = [{"SpecialToken": {"id": token, "type_id": 0}} for token in tokens]
    return {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": {}}


def in_sequence(key, *parts):
    return {"type": "Sequence", key: list(parts)}


def test_the_published_kinds_are_read(tmp_path):
    assert load_tokenizer_files(write(tmp_path)).encode("A b", add_special_tokens=False) == [32, 220, 65]
    clip = in_sequence("normalizers", {"type": "NFC"}, replace({"Regex": r"\s+"}), {"type": "Lowercase"})
    assert load_tokenizer_files(write(tmp_path, normalizer=clip, pre_tokenizer=split_at({"Regex": CLIP}))) is not None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"normalizer": in_sequence("normalizers", *[replace({"String": "a"}, "aa")] * 4_000)}, "more than 16 parts"),
        ({"normalizer": replace({"String": "a"}, "a" * 10**6)}, "content of Replace is longer than 16"),
        ({"normalizer": replace({"String": ""})}, "pattern '' of Replace is not a text of 1 to 16"),
        ({"pre_tokenizer": split_at({"Regex": "(a|a)*$"})}, r"'\(a\|a\)\*\$' of Split is of no published tokenizer"),
        ({"pre_tokenizer": in_sequence("pretokenizers", split_at({"Regex": "("}))}, "of no published tokenizer"),
        ({"pre_tokenizer": {"type": "FixedLength", "length": 1}}, "pre_tokenizer: 'FixedLength' is not one of"),
        ({"decoder": {"type": "x" * 10**6}}, "decoder: 'xxx.{0,90} is not one of ByteLevel"),
        ({"decoder": [1]}, "tokenizer.json"),
        ({"added_tokens": [{}] * 20_000}, "added_tokens: 20000; at most 16384"),
        ({"added_tokens": [{"content": "x" * 10**6}]}, "added_tokens: one of 1000000 characters"),
        ({"post_processor": template(*["z"] * 10**5)}, "post_processor: TemplateProcessing of 100000 pieces"),
        ({"post_processor": template("z")}, "PanicException|Exception"),  # a token that the file lacks
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "A" * 1000}}, "PanicException|Exception"),
        ({"model": "z" * 10**5}, "z|model|Exception"),
    ],
)
def test_what_would_stop_the_machine_is_refused(tmp_path, changes, message):
    with pytest.raises(BadInput, match=message) as caught:
        load_tokenizer_files(write(tmp_path, **changes))
    assert len(str(caught.value)) < 1_000


def test_a_file_has_a_largest_size_and_a_panic_is_a_sentence(tmp_path, monkeypatch):
    import transformers

    class PanicException(BaseException):
        """As of the package tokenizers."""

    def panic(*_, **__):
        raise PanicException("called `Result::unwrap()` on an `Err` value")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", panic)
    refuse(r"^PanicException: called `Result", load_tokenizer_files, write(tmp_path))
    monkeypatch.setattr(text_encoder, "_MOST_BYTES", 100)
    refuse(r"tokenizer\.json: \d+ bytes, more than 100", load_tokenizer_files, tmp_path)


@pytest.mark.parametrize("name", ["a/b@v1/../../x", "a/..", "../b", "./b", "a/b@", "-a/b", "a/b/c"])
@pytest.mark.parametrize("load", [load_tokenizer_files, load_pretrained, read_preprocessing, resolve])
def test_a_name_that_is_no_hub_id_is_refused_before_anything_is_fetched(load, name, monkeypatch):
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("was asked for"))
    refuse(r"not a Hugging Face id|is not the name of a repository or revision", load, name)


def test_the_tokenizer_of_a_hub_id_is_checked_as_that_of_a_folder(tmp_path, monkeypatch):
    asked = set()

    def download(repository, *, revision, dry_run=False, **_):
        asked.add((repository, revision))
        return [types.SimpleNamespace(file_size=1)] if dry_run else write(tmp_path, normalizer={"type": "Evil"})

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    refuse("'Evil' is not one of NFC", load_pretrained, "owner/name@v1")
    assert asked == {("owner/name", "v1")}
