"""Review forms: out to a spreadsheet, back with corrections; incomplete and altered forms are refused by name."""

import csv
import io
import re

import pytest
from annotate.test_agreement import MASS, NORMAL, make_case, write
from hypothesis import given
from hypothesis import strategies as st
from readers.reader_samples import read_cells, write_cells
from refusals import refuse

from stepcot_jax import __version__
from stepcot_jax.annotate.agreement import align
from stepcot_jax.annotate.review import apply_review, write_review
from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.data.delimited import encode_rows, is_same_cell, read_sheet_rows
from stepcot_jax.data.records.records import read_records
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import defuse_formula
from stepcot_jax.tools.annotate.command import main

REPORT = 'FINDINGS: Clear,\r\n"quite".\n\nIMPRESSION:  Größe; normal.'


@pytest.fixture
def aligned(tmp_path):
    hostile = {"report": "=HYPERLINK(1)", "reasoning": ("@SUM(1)", "+1", "-1", "\t=1", " =1", "\uff1d1", "why")}
    cases = [
        make_case("1", report=REPORT, provenance={"annotator": "rules"}),
        *(make_case("2", MASS, image="=cmd/2.png", **hostile), make_case("3")),
        make_case("1", image="images/1b.png", report=REPORT, provenance={"annotator": "rules"}),
    ]
    other = [cases[0], make_case("2", image="=cmd/2.png", **hostile), cases[2], cases[3]]
    return align(write(tmp_path, {"a": cases, "b": other}))


def fill(path, change=lambda row: None, **format_of):
    """Fill a form with "ok" and then with `change`, and write it again as another program may."""
    rows = read_cells(path)
    for row in rows:
        row["review"] = "ok"
        change(row)
    write_cells(path, rows, **format_of)


def changing(changes):
    """A change of the rows by case and step."""
    return lambda row: row.update(changes.get((row["case"], row["step"]), {}))


def review(tmp_path, aligned, change=lambda row: None, *, every=True, reviewer="Dr Example", **format_of):
    form = tmp_path / "form.csv"
    form.unlink(missing_ok=True)
    write_review(form, aligned, every=every)
    fill(form, change, **format_of)
    counts = apply_review(form, aligned, every=every, reviewer=reviewer, folder=tmp_path / "out")
    return counts, read_records(tmp_path / "out", require_images=False).cases


def test_a_form_has_what_is_disputed_unless_all_is_asked_for_and_no_formula(tmp_path, aligned):
    assert write_review(tmp_path / "some.csv", aligned, every=False) == 1
    rows = read_cells(tmp_path / "some.csv")
    assert [row["step"] for row in rows] == [f"Step {number}" for number in range(1, 8)]
    assert (rows[6]["answer of a"], rows[6]["answer of b"]) == ("H. Mass", "A. Normal")
    assert write_review(tmp_path / "all.csv", aligned, every=True) == 3
    assert write_review(tmp_path / "one.csv", align([tmp_path / "a"]), every=False) == 3
    refuse("exists", write_review, tmp_path / "all.csv", aligned, every=True)
    with pytest.raises(BadInput, match="do not disagree"):
        write_review(tmp_path / "none.csv", align([tmp_path / "a"] * 2, names=["x", "y"]), every=False)
    write_review(tmp_path / "form.csv", aligned, every=True)
    content = (tmp_path / "form.csv").read_bytes()
    assert content.startswith(b"\xef\xbb\xbf")
    cells = [cell for row in csv.reader(io.StringIO(content.decode("utf-8-sig"), newline="")) for cell in row]
    assert len(cells) == (3 * 7 + 1) * 11
    starts = [cell for cell in cells if re.match(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n]", cell)]
    assert set(starts) == {"+1", "-1"}  # numbers, not formulas
    assert "'=HYPERLINK(1)" in cells
    assert REPORT in cells


def test_agreement_and_review_from_the_command_line(tmp_path, capsys):
    cases = [make_case("1"), make_case("2")]
    a, b = map(str, write(tmp_path, {"a": cases, "b": [make_case("1", MASS), cases[1], make_case("3")]}))
    names, form = ["--names", "first", "second"], tmp_path / "form.csv"
    main(["agree", a, b, *names, f"--out={tmp_path / 'agreement'}"])
    printed = capsys.readouterr().out
    assert "Kappa is Cohen's of the two." in printed
    assert "first lacks 1 records that another has" in printed
    assert "1 of 2 reports with a disagreement" in (tmp_path / "agreement" / "disagreements.html").read_text()
    main(["review-out", a, b, *names, "--all", f"--out={form}"])
    fill(form, changing({("2", "Step 7"): {"review": "B", "comment": "a nodule"},
                         ("2", "Step 1"): {"review": "B", "comment": "dense"}}))  # fmt: skip
    main(["review-in", str(form), a, b, *names, "--all", "--reviewer=Dr Example", f"--out={tmp_path / 'reviewed'}"])
    assert "2 answers corrected in 1 of them" in capsys.readouterr().out
    assert read_records(tmp_path / "reviewed", require_images=False).cases[1].answers == (1, 3, 5, 6, 4, 6, 1)


@pytest.mark.parametrize("format_of", [{}, {"delimiter": ";"}, {"lineterminator": "\n"}, {"quoting": csv.QUOTE_ALL}])
def test_corrections_come_back_with_who_made_them(tmp_path, aligned, format_of):
    changes = {
        ("1", "Step 7"): {"review": " b. Nodule", "comment": "A nodule\nof 6 mm."},
        ("1", "Step 1"): {"review": "B", "comment": "one"},
        ("2", "Step 2"): {"review": "Focal"},  # as it was
        ("2", "Step 3"): {"comment": "hard to say"},
    }
    counts, cases = review(tmp_path, aligned, changing(changes), **format_of)
    assert counts == (3, 2, 1)
    first, second, third, same_report = cases
    assert first.answers == (1, 3, 5, 6, 4, 6, 1)
    assert first.reasoning == ("one", "why", "why", "why", "why", "why", "A nodule of 6 mm.")
    said = dict(first.provenance)
    date = said.pop("review 1 date")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", date)
    steps = {f"review 1 step {step}{end}": said for step in "17" for end, said in (("", "A -> B"), (" was", "why"))}
    assert said == {"annotator": "rules", "review 1 by": "Dr Example", "review 1 version": __version__, **steps}
    assert (same_report.answers, same_report.provenance) == (first.answers, first.provenance)
    assert (second.answers, second.reasoning) == (MASS, aligned.collections[0].cases[1].reasoning)
    said = {"review 1 by": "Dr Example", "review 1 date": date, "review 1 version": __version__}
    said["review 1 step 3 comment"] = "hard to say"
    assert (dict(second.provenance), third.answers) == (said, NORMAL)


def test_a_second_review_is_kept_beside_the_first(tmp_path, aligned):
    def answer(letters, comment):
        """The answers of the third case's first and last step."""
        steps = zip(("Step 1", "Step 7"), letters, strict=True)
        return changing({("3", step): {"review": letter, "comment": comment} for step, letter in steps})

    review(tmp_path, aligned, answer("BB", "x"))
    (tmp_path / "out").rename(tmp_path / "first")
    again = align([tmp_path / "first"])
    _, cases = review(tmp_path, again, answer("AA", "y"), reviewer="Second")
    said = dict(cases[2].provenance)
    assert (said["review 1 by"], said["review 2 by"]) == ("Dr Example", "Second")
    assert (said["review 1 step 1"], said["review 2 step 1"], said["review 2 step 1 was"]) == ("A -> B", "B -> A", "x")


def test_a_contradiction_that_nobody_corrected_is_not_the_reviewers(tmp_path):
    aligned = align(write(tmp_path, {"a": [make_case("1", (1, *NORMAL[1:]))]}))
    assert review(tmp_path, aligned)[1][0].answers == (1, *NORMAL[1:])


REFUSED = (
    (("2", "Step 3"), {"review": " "}, "case 2 (=cmd/2.png), Step 3, column 'review' is required (one of 'ok', A."),
    (("2", "Step 3"), {"review": "Z"}, "Step 3, column 'review': 'Z'"),
    (("2", "Step 3"), {"review": "A"}, "Step 3, column 'comment' is required"),
    (("2", "Step 3"), {"report": "x"}, "Step 3, column 'report' was altered"),
    (
        *(("3", "Step 7"), {"review": "B", "comment": "a nodule"}),
        "case 3 (images/3.png): 'no abnormality' contradicts the diagnosis 'nodule'",
    ),
)


def test_incomplete_altered_and_contradictory_forms_are_refused_by_row_and_column(tmp_path, aligned):
    for row, change, words in REFUSED:
        refuse(re.escape(words), review, tmp_path, aligned, changing({row: change}))
    assert not (tmp_path / "out" / "data.json").exists()
    form = tmp_path / "whole.csv"
    write_review(form, aligned, every=True)
    fill(form)
    rows = read_cells(form)
    for words, content in (
        *(("the row is missing", rows[:-1]), ("column 'step' was altered", [rows[1], rows[0], *rows[2:]])),
        ("rows after the last case", [*rows, rows[-1]]),
    ):
        write_cells(form, content)
        refuse(re.escape(words), apply_review, form, aligned, every=True, reviewer="x", folder=tmp_path / "out")
    refuse("exists", apply_review, form, aligned, every=True, reviewer="x", folder=tmp_path / "a")


def test_ok_leaves_an_answer_uncertain_and_writing_it_out_makes_it_certain(tmp_path):
    doubtful = make_case("1", MASS).with_stated(MASS, [False] * 5 + [True] * 2)
    aligned = align(write(tmp_path, {"a": [doubtful]}))
    form = tmp_path / "shown.csv"
    write_review(form, aligned, every=True)
    assert [row["answer of a"].endswith(" (uncertain)") for row in read_cells(form)] == [False] * 5 + [True] * 2

    def settle(row):
        if row["step"] == "Step 7":
            row["review"] = row["answer of a"].removesuffix(" (uncertain)")

    counts, cases = review(tmp_path, aligned, settle)
    assert (counts, cases[0].stated) == ((1, 1, 1), MASS)
    assert [label >= 0 for label in cases[0].uncertain] == [False] * 5 + [True, False]
    change = dict(cases[0].provenance)["review 1 step 7"]
    letter = DEFAULT_CHAIN.steps[6].written(MASS[6])
    assert change == f"{letter} (uncertain) -> {letter}"


CELLS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)


@given(st.lists(st.lists(CELLS, min_size=2, max_size=3), min_size=1, max_size=4))
def test_what_goes_out_comes_back_and_is_no_formula(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("sheet") / "form.csv"
    path.write_bytes(encode_rows([["a", "b"], *rows]))
    _, *found = read_sheet_rows(path)
    rows = [row for row in rows if any(defuse_formula(cell).strip() for cell in row)]  # empty rows are skipped
    assert [len(row) for row in found] == [len(row) for row in rows]
    for row, expected in zip(found, rows, strict=True):
        assert all(map(is_same_cell, row, expected))
        assert all(not cell.lstrip(" ").startswith(("=", "+", "-", "@")) for cell in row)
