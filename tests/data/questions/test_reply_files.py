import json
import pathlib
import re

import hypothesis
import hypothesis.strategies as st
import pytest
from refusals import refuse

from stepcot_jax.data.questions.reply_files import name_models, read_replies
from stepcot_jax.host.errors import BadInput

IDS = ("a", "b", "c")


def read(tmp_path, content, **settings):
    path = tmp_path / "replies.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_replies(path, name="m", chosen={"a": None, "b": None}.keys(), known=IDS, **settings)


def test_replies_are_read_by_id_whatever_their_order_and_other_fields(tmp_path):
    content = '{"reply": "B", "id": "b", "seconds": 0.2}\n\n{"id": "c", "reply": "C"}\r\n{"id": "a", "reply": ""}'
    found = read(tmp_path, b"\xef\xbb\xbf" + content.encode())
    assert (found.replies, found.num_unused) == ({"a": "", "b": "B"}, 1)


@pytest.mark.parametrize(
    ("fields", "finish"),
    [
        *(({}, {}), ({"finish_reason": None}, {}), ({"finish_reason": "done"}, {})),
        *(({"finish_reason": "stop"}, {"a": "stop"}), ({"finish_reason": "MAX_TOKENS"}, {"a": "length"})),
        ({"finish_reason": "content_filter"}, {"a": "content_filter"}),
        ({"finish_reason": "stop", "refusal": "I cannot help."}, {"a": "refusal"}),
    ],
)
def test_finish_reasons(tmp_path, fields, finish, caplog):
    assert read(tmp_path, json.dumps({"id": "a", "reply": "", **fields})).finishes == finish
    is_unknown = fields.get("finish_reason") == "done"
    assert ("1 replies have a finish_reason that is not known: 'done' (1)" in caplog.text) == is_unknown


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"id": "a", "reply": "x"}\n{"id": "a", "reply": "y"}', "line 2, id: 'a' came in line 1"),
        ('{"id": "z", "reply": "x"}', "line 1, id: 'z' is not the id of a record"),
        ('{"id": "a"}', "line 1, Object missing required field `reply`"),
        ('{"id": 3.5, "reply": "x"}', "line 1, id: Expected `int | str`, got `float`"),
        ('\n{"id": "a", "reply": null}', "line 2, reply: null without an error; expected a text"),
        ('{"id": "a", "reply": "x"', "line 1, Input data was truncated"),
        *((b'{"id": "a", "reply": "\xff"}', "line 1"), (b"\xff\xfe{", "UTF-16")),
        ('{"id": "a", "reply": "x", "finish_reason": 3}', "line 1, finish_reason: Expected `str | null`, got `int`"),
        ('{"id": "c", "reply": "x"}', "no reply to any of the 2 chosen records"),
        ('{"id": "a", "reply": "' + "x" * 2**25 + '"}', "line 1: exceeds 33554432 bytes"),
        ('{"id": "a", "reply": "\\ud800"', "line 1, Input data was truncated"),
    ],
)
def test_a_bad_line_is_named(tmp_path, content, words):
    message = refuse("", read, tmp_path, content)
    assert words in message
    assert str(tmp_path / "replies.jsonl") in message


def test_replies_to_lines_that_were_set_aside_are_counted(tmp_path):
    content = "".join(json.dumps({"id": name, "reply": "x"}) + "\n" for name in "abcyz")
    found = read(tmp_path, content, set_aside={"y"}, most_unknown=1)
    assert (set(found.replies), found.num_unused, found.num_set_aside, found.num_unknown) == ({"a", "b"}, 1, 1, 1)
    with pytest.raises(BadInput, match=r"line 5, id: 'z' is not the id of a record; expected one of the records' ids$"):
        read(tmp_path, content, set_aside={"y"})
    refuse(r"line 5, id: 'z' .* of 1 bad lines without a readable id$", read, tmp_path, content, most_unknown=1)


@hypothesis.given(st.text(st.sampled_from('ab\\u"\ud800\udbff\udc00\udfff\U0001f600d8'), max_size=12), st.booleans())
@hypothesis.settings(max_examples=100, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
def test_halves_of_surrogate_pairs_are_replaced(tmp_path, text, is_upper):
    line = json.dumps({"id": "a", "reply": text})
    if is_upper:
        line = re.sub("u([0-9a-f]{4})", lambda found: "u" + found[1].upper(), line)
    joined = json.loads(line)["reply"]  # two halves side by side are a pair
    assert read(tmp_path, line).replies == {"a": re.sub("[\ud800-\udfff]", "\ufffd", joined)}


def test_a_missing_reply_and_names_of_models(tmp_path):
    assert read(tmp_path, '{"id": "a", "reply": "x"}', missing="wrong").replies == {"a": "x"}
    assert read(tmp_path, '{"id": "a", "reply": "x"}', missing="skip").replies == {"a": "x"}
    refuse("no reply to 1 of 2 records, the first 'b'", read, tmp_path, '{"id": "a", "reply": "x"}', missing="stop")
    with pytest.raises(BadInput, match=r"absent\.jsonl: does not exist; expected one reply per line"):
        read_replies(tmp_path / "absent.jsonl", name="m", chosen={"a"}, known=IDS)

    def named(*paths):
        return name_models([pathlib.Path(path) for path in paths])

    assert named("x/sft.jsonl", "y/grpo.jsonl") == ["sft", "grpo"]
    assert named("x/1/r.jsonl", "y/1/r.jsonl") == ["x/1/r.jsonl", "y/1/r.jsonl"]
    refuse("a file comes twice", named, "x/r.jsonl", "x/../x/r.jsonl")
