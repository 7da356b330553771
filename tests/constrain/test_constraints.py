"""Every verifier by hand values, the loose reading after IFEval, and any text at all."""

import functools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timing import least_seconds

from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.data.phantom.phantom import plan_case
from stepcot_jax.reasoning.levels import VARIANTS, Dialogue, list_keys, make_dialogue, position_of
from stepcot_jax.tools.constrain.constraints import MAX_CHARACTERS, find_option, loose_forms, verify

TRUTH = (1, 0, 2, 2, 1, 6, 1)
TWO = make_dialogue(("constraints", 2), answers={}, truth=TRUTH)
GOOD = {"step_1": "B. Increased opacity", "step_2": "A. Focal", "diagnosis": "B. Nodule"}


def write(answers, **changes):
    return json.dumps({name: {"reasoning": "Seen.", "answer": each} for name, each in {**answers, **changes}.items()})


def broken(text, dialogue=TWO, *, chain=DEFAULT_CHAIN, reading="strict", **how):
    found = verify(text, chain=chain, dialogue=dialogue, **how)
    kept = getattr(found, reading)
    return {f"{each.kind} {each.field}".strip() for each, ok in zip(found.constraints, kept, strict=True) if not ok}


def every(kind):
    return {f"{kind} {field}" for field in TWO.fields}


ALL = {"json", "schema", "order", "consistent", *every("answered"), *every("option"), *every("letter")}


@pytest.mark.parametrize(
    ("text", "strict", "loose"),
    [
        *((f"```json\n{write(GOOD)}\n```", {"json"}, set()), (f"Sure, here it is:\n{write(GOOD)}", {"json"}, set())),
        *((f"{write(GOOD)}\nI hope this helps.", {"json"}, set()), (f"**{write(GOOD)}**", {"json"}, set())),
        (f"One\ntwo\n{write(GOOD)}", {"json"}, {"json"}),
        (write(GOOD, step_2="A"), {"letter step_2"}, {"letter step_2"}),
        (write(GOOD, step_2="focal"), {"letter step_2"}, {"letter step_2"}),
        *((write(GOOD, step_2=" a.  FOCAL "), set(), set()), (write(GOOD, step_2="N/A"), set(), set())),
        (write(GOOD, step_2="**A. Focal**"), {"letter step_2", "option step_2"}, set()),
        (write(GOOD, step_2="B. Focal"), {"letter step_2", "option step_2"}, {"letter step_2", "option step_2"}),
        (write(GOOD, step_2=" "), *[{"answered step_2", "letter step_2", "option step_2"}] * 2),
        (write(GOOD, step_1="A. No abnormality"), {"consistent"}, {"consistent"}),
        (write(GOOD, step_1="A. No abnormality", step_2="N/A"), {"consistent"}, {"consistent"}),
        (write(GOOD, step_1="A. No abnormality", step_2="N/A", diagnosis="A. Normal"), set(), set()),
        (write(dict(reversed(GOOD.items()))), {"order"}, {"order"}),
        *((write(GOOD, more="A"), {"schema"}, {"schema"}), ("[]", ALL, ALL)),
    ],
)  # fmt: skip
def test_verifiers_by_hand(text, strict, loose):
    assert (broken(text), broken(text, reading="loose")) == (strict, loose)


def test_the_schema_names_both_texts_once_and_in_order():
    direct = make_dialogue(("constraints", 0), answers={}, truth=TRUTH)
    for entry in (
        '{"answer": "B. Nodule", "reasoning": "Seen."}',
        '{"reasoning": null, "answer": "B. Nodule"}',
        '{"reasoning": "Seen.", "reasoning": "Again.", "answer": "B. Nodule"}',
    ):
        assert broken(f'{{"diagnosis": {entry}}}', direct) == {"schema"}
        assert broken((f'{{"diagnosis": {entry}, "diagnosis": {entry}}}'), direct) == {"schema"}


def test_answers_that_contradict_each_other_or_what_was_given_break_consistency():
    last = make_dialogue(("true", 7), answers={}, truth=TRUTH)
    assert broken(write({"step_7": "B. Nodule", "diagnosis": "B. Nodule"}), last) == set()
    assert broken(write({"step_7": "B. Nodule", "diagnosis": "H. Mass"}), last) == {"consistent"}
    clear = Dialogue("own", 3, (2,), ((0, 0), (1, 0)))  # "No abnormality", and yet "Focal"
    normal = {"step_3": "N/A", "diagnosis": "A. Normal"}
    assert broken(write(normal), clear) == set()
    assert broken(write({**normal, "step_3": "C. Nodular"}), clear) == {"consistent"}
    assert broken(write({**normal, "diagnosis": "B. Nodule"}), clear) == {"consistent"}
    shown = {"step_1": "B. Increased opacity", "step_2": "A. Focal", "diagnosis": "A. Normal"}
    for reading in ("strict", "loose"):
        assert broken(write(shown), reading=reading) == {"consistent"}
    given = Dialogue("true", 3, (2,), ((0, 1), (1, 0)))
    assert broken(write({"step_3": "C. Nodular", "diagnosis": "A. Normal"}), given) == {"consistent"}
    assert broken(write({"step_3": "C. Nodular", "diagnosis": "B. Nodule"}), given) == set()
    unknown = Dialogue("own", 3, (2,), ((1, 0),))
    assert broken(write({"step_3": "C. Nodular", "diagnosis": "A. Normal"}), unknown) == set()


def test_true_chains_of_phantoms_are_consistent_at_every_level():
    for index in range(60):
        truth = plan_case(index, seed=7, prevalence="flat" if index % 2 else "published").case.answers
        for key in list_keys(VARIANTS, range(8)):
            dialogue = make_dialogue(key, answers=dict(enumerate(truth)), truth=truth)
            answers = {
                field: DEFAULT_CHAIN.steps[at].lettered_options[truth[at]]
                for field in dialogue.fields
                for at in [position_of(field, 7)]
            }
            assert broken(write(answers), dialogue) == set()


def test_the_last_object_with_a_name_asked_for_is_read():
    draft = write(GOOD, diagnosis="A. Normal")
    found = verify(f"{draft}\nOn reflection:\n{write(GOOD)}\n{{}}", chain=DEFAULT_CHAIN, dialogue=TWO)
    assert found.labels["diagnosis"] == 1
    # Without its last line the reply says otherwise; the reply itself comes first.
    assert verify(f"{draft}\n{write(GOOD)}", chain=DEFAULT_CHAIN, dialogue=TWO).labels["diagnosis"] == 1


def test_answers_of_an_object_that_is_nearly_json_count_though_it_breaks_the_constraints():
    for text in (
        write(GOOD)[:-1] + ",}",
        json.dumps({"result": json.loads(write(GOOD))}),
        str(json.loads(write(GOOD))),
    ):
        assert verify(text, chain=DEFAULT_CHAIN, dialogue=TWO).labels == {"step_1": 1, "step_2": 0, "diagnosis": 1}
        assert "schema" in broken(text)


def test_an_open_diagnosis_counts_as_the_one_option_that_it_mentions():
    said = write(GOOD, diagnosis="A solitary pulmonary nodule, most likely.")
    assert broken(said, lists_diagnoses=False) == set()
    assert verify(said, chain=DEFAULT_CHAIN, dialogue=TWO, lists_diagnoses=False).labels["diagnosis"] == 1
    assert "diagnosis" not in verify(said, chain=DEFAULT_CHAIN, dialogue=TWO).labels
    assert find_option("Nodule or mass", DEFAULT_CHAIN.steps[-1]) is None


def test_loose_forms_are_those_of_ifeval():
    lines = "a*\nb\n*c"
    assert set(loose_forms(lines)) == {lines, "a\nb\nc", "b\n*c", "b\nc", "a*\nb", "a\nb", "b"}


NESTED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from([*TWO.fields, "answer", "reasoning", "x"]), inner),
    max_leaves=8,
)
PIECES = st.lists(
    st.sampled_from(
        [write(GOOD), "{", "}", "[", '"', "\\", "\n", "*", "```json\n", "N/A", '{"step_1":', "9" * 5000, "\ud800"]
    )
    | st.text(max_size=20),
    max_size=8,
).map("".join)


@settings(max_examples=150, deadline=None)
@given(text=PIECES | NESTED.map(json.dumps) | st.text())
def test_no_text_raises_and_loose_includes_strict(text):
    for how in (True, False):
        found = verify(text, chain=DEFAULT_CHAIN, dialogue=TWO, lists_diagnoses=how)
        assert all(loose or not strict for strict, loose in zip(found.strict, found.loose, strict=True))
        assert set(found.labels) <= set(TWO.fields)


@settings(max_examples=60, deadline=None)
@given(
    labels=st.tuples(*(st.integers(0, count - 1) for count in (*DEFAULT_CHAIN.answers_per_step, 9))),
    level=st.integers(0, 7),
    prose=st.sampled_from(["{}", "```json\n{}\n```", "Reading.\n{}", "{}\nDone."]),
)
def test_what_is_written_is_read_back(labels, level, prose):
    dialogue = make_dialogue(("constraints", level), answers={}, truth=TRUTH)
    places = [*range(level), 6]
    wanted = dict(zip(dialogue.fields, [*labels[:level], labels[-1]], strict=True))
    answers = {
        field: DEFAULT_CHAIN.steps[at].lettered_options[wanted[field]]
        for field, at in zip(dialogue.fields, places, strict=True)
    }
    found = verify(prose.replace("{}", write(answers)), chain=DEFAULT_CHAIN, dialogue=dialogue)
    assert found.labels == wanted
    kept = {each.kind for each, ok in zip(found.constraints, found.loose, strict=True) if ok}
    assert {"json", "schema", "answered", "option", "letter"} <= kept


@pytest.mark.parametrize(
    "piece", ["{", "[", '{"a":', '"', "{}", "\\", "*", "<think>", '{"diagnosis":{"answer":"', "\n"]
)
def test_the_time_is_linear(piece):
    text = (piece * MAX_CHARACTERS * 20)[: MAX_CHARACTERS * 20]
    call = functools.partial(verify, text, chain=DEFAULT_CHAIN, dialogue=TWO)
    assert least_seconds(call, 5) < 5  # 0.05 s on an idle core
