"""Statistics: counted again by other means, what pictures show too, and the published shares."""

import collections
import csv
import io
import itertools
import statistics as python_statistics
import warnings
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from matplotlib.patches import PathPatch, Rectangle
from PIL import Image
from refusals import refuse

from stepcot_jax.chain import DEFAULT_CHAIN, DIAGNOSIS_OPTIONS, NOT_ANNOTATED, Chain, Step
from stepcot_jax.data.phantom.answers import draw_answers
from stepcot_jax.data.records.records import read_records, write_records
from stepcot_jax.data.splits.making import make_splits
from stepcot_jax.data.splits.split_resolver import read_splits
from stepcot_jax.data.splits.splits import SPLIT_NAMES
from stepcot_jax.data.statistics import compute_statistics
from stepcot_jax.record import Record
from stepcot_jax.tools.data import pictures
from stepcot_jax.tools.data.command import main
from stepcot_jax.tools.data.pictures import draw_flow
from stepcot_jax.tools.data.statistics import list_splits, write_tables

CHAIN = Chain(
    (
        Step("Größe", "?", ("Klein", "Groß", "N/A")),
        Step("=SUM(A1)", "?", ("Right lung", "Left lung", "A name so long that no picture could hold all of it")),
        Step("Diagnosis $x_1$", "?", ("Normal", "Пневмония", "Mass|<b>", "Effusion")),
    )
)
PUBLISHED_SPLITS = np.array([(4750, 1018, 1019), (595, 127, 129), (511, 109, 111), (506, 108, 109), (308, 66, 66),
                             (193, 41, 42), (91, 19, 21), (61, 13, 14), (28, 6, 7)])  # fmt: skip
"""Cases of each diagnosis in the published train, validation and test sets (the paper's Table 7)."""


def make_cases(num_cases=300, seed=0, chain=CHAIN):
    rng, cases = np.random.default_rng(seed), []
    names = ["Klinik Ä", "", "B with a name that goes on and on", *(f"origin {number}" for number in range(20))]
    for number in range(num_cases):
        origin = names[min(rng.geometric(0.4), 3) - 1]
        answers = tuple(draw_label(rng, step) for step in chain.steps)
        reasoning = tuple(" ".join(["word"] * rng.integers(0, 30)) for _ in chain.steps)
        fields = {"image": f"images/{number}.png", "origin": origin, "answers": answers, "reasoning": reasoning}
        cases.append(Record(patient=f"P{number // 2}", **fields))
    return cases


def draw_label(rng, step):
    return NOT_ANNOTATED if rng.random() < 0.1 else int(rng.integers(step.num_answers))


def count(cases, chain=CHAIN):
    return compute_statistics(cases, chain, make_splits(cases, seed=1), splits_source="made from seed 1")


def read_table(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def name_of(step, label):
    return "(not annotated)" if label == NOT_ANNOTATED else step.options[label]


@pytest.fixture(scope="module")
def cases():
    return make_cases()


@pytest.fixture(scope="module")
def tables(cases, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    names = write_tables(folder, count(cases))
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)
    return folder


def test_origins_and_diagnoses(tables, cases):
    head, *rows = read_table(tables / "origins_diagnoses.csv")
    origins = collections.Counter(case.origin or "(none)" for case in cases)
    expected = collections.Counter((name_of(CHAIN.steps[-1], c.answers[-1]), c.origin or "(none)") for c in cases)
    assert head == ["diagnosis", *(origin for origin, _ in origins.most_common()), "total"]
    assert [row[0] for row in rows] == [*CHAIN.steps[-1].options, "(not annotated)", "total"]
    for row in rows[:-1]:
        values = [expected[row[0], origin] for origin in head[1:-1]]
        assert [int(value) for value in row[1:]] == [*values, sum(values)]
    assert [int(value) for value in rows[-1][1:]] == [*(origins[origin] for origin in head[1:-1]), len(cases)]


def test_answers(tables, cases):
    _, *rows = read_table(tables / "answers.csv")
    place = 0
    for number, step in enumerate(CHAIN.steps):
        expected = collections.Counter(name_of(step, case.answers[number]) for case in cases)
        num_annotated = len(cases) - expected["(not annotated)"]
        for name in (*step.options, "(not annotated)"):
            shown = "'" + step.name if step.name.startswith("=") else step.name
            share = "" if name == "(not annotated)" else expected[name] / num_annotated
            assert rows[place][:3] == [shown, name, str(expected[name])]
            assert rows[place][3] == share or float(rows[place][3]) == pytest.approx(share, abs=1e-6)
            place += 1
    assert place == len(rows)


def test_reasoning_lengths_by_diagnosis(tables, cases):
    head, *rows = read_table(tables / "reasoning_length_by_diagnosis.csv")
    ranges = {"1-5": (1, 5), "6-10": (6, 10), "11-15": (11, 15), "16-20": (16, 20), "21-25": (21, 25)}
    ranges |= {"over 25": (26, 99)}
    assert head[9:] == [f"{name} words" for name in ranges]
    names = [*CHAIN.steps[-1].options, "(not annotated)"]
    assert [row[:2] for row in rows] == [
        ["'" + step.name if step.name.startswith("=") else step.name, name] for step in CHAIN.steps for name in names
    ]
    for place, row in enumerate(rows):
        number = place // len(names)
        texts = [case.reasoning[number] for case in cases if name_of(CHAIN.steps[-1], case.answers[-1]) == row[1]]
        lengths = [text.count(" ") + 1 for text in texts if text]
        assert (int(row[2]), float(row[3])) == (len(lengths), pytest.approx(python_statistics.fmean(lengths), abs=1e-3))
        assert float(row[6]) == python_statistics.median(lengths)
        expected = [sum(low <= length <= high for length in lengths) for low, high in ranges.values()]
        assert [int(cell) for cell in row[9:]] == expected


def test_flow_of_answers(tables, cases):
    _, *rows = read_table(tables / "answer_flow.csv")
    expected = collections.Counter()
    for case in cases:
        for number, (step, following) in enumerate(itertools.pairwise(CHAIN.steps)):
            labels = case.answers[number : number + 2]
            expected[step.name, name_of(step, labels[0]), following.name, name_of(following, labels[1])] += 1
    assert {tuple(cell.removeprefix("'") for cell in row[:4]): int(row[4]) for row in rows} == expected
    assert all(expected.values())
    usual = collections.Counter(case.answers[0] for case in cases).most_common(1)[0][0]
    rest = count([case for case in cases if case.answers[0] != usual]).flows
    assert [flow.tolist() for flow in count(cases).rest_flows] == [flow.tolist() for flow in rest]


SPLIT_TABLES = {
    "diagnosis": ("splits.csv", lambda case: name_of(CHAIN.steps[-1], case.answers[-1])),
    "origin": ("splits_by_origin.csv", lambda case: case.origin or "(none)"),
}


@pytest.mark.parametrize("what", SPLIT_TABLES)
def test_split_tables_as_csv_and_markdown(tables, cases, what):
    file, key = SPLIT_TABLES[what]
    splits, totals = make_splits(cases, seed=1).by_name(), collections.Counter(map(key, cases))
    order = [name for name, _ in totals.most_common()]
    if what == "diagnosis":
        order = [*CHAIN.steps[-1].options, "(not annotated)"]
    head, *rows = read_table(tables / file)
    assert head == [what, "train", "val", "test", "total"]
    assert [row[0] for row in rows] == [*order, "total"]
    for row in rows[:-1]:
        counts = [sum(key(cases[index]) == row[0] for index in splits[name]) for name in SPLIT_NAMES]
        assert [int(value) for value in row[1:]] == [*counts, totals[row[0]]]
    assert [int(value) for value in rows[-1][1:]] == [*(len(splits[name]) for name in SPLIT_NAMES), len(cases)]
    lines = (tables / "splits.md").read_text(encoding="utf-8").splitlines()
    start = lines.index(f"| {what.title()} | Train | Val | Test | Total | Train (%) | Val (%) | Test (%) |") + 2
    assert lines[start - 1] == "| --- |" + " ---: |" * 7
    for line, row in zip(itertools.takewhile(bool, lines[start:]), rows, strict=True):
        shown = line.replace("\\|", "!").replace("&lt;", "<").strip("| ").split(" | ")
        assert shown[:5] == [row[0].replace("|", "!"), *row[1:]]
        assert shown[5:] == [f"{100 * int(count) / int(row[4]):.1f}" for count in row[1:4]]
    assert lines[-1] == "Splits: made from seed 1."


def test_bands_of_the_flow_lead_from_answer_to_answer_at_the_heights_of_their_counts(cases):
    found = count(cases)
    figure = draw_flow(found)
    patches = figure.axes[0].patches
    nodes = [patch for patch in patches if isinstance(patch, Rectangle)]
    bands = [patch for patch in patches if isinstance(patch, PathPatch)]
    columns = [[node for node in nodes if node.get_x() == step] for step in range(3)]
    flows = collections.defaultdict(float)
    for band in bands:
        corners = band.get_path().vertices
        step = int(corners[0][0])
        assert corners[3][0] == step + 1
        left, right = (corners[7][1], corners[0][1]), (corners[4][1], corners[3][1])
        (begin,) = (k for k, node in enumerate(columns[step]) if is_inside(left, node))
        (end,) = (k for k, node in enumerate(columns[step + 1]) if is_inside(right, node))
        assert band.get_facecolor()[:3] == columns[step][begin].get_facecolor()[:3]
        assert right[1] - right[0] == pytest.approx(left[1] - left[0])
        flows[step, begin, end] = left[1] - left[0]
    expected = {
        (step, *place): value / len(cases)
        for step, flow in enumerate(found.flows)
        for place, value in np.ndenumerate(flow)
    }
    assert flows == pytest.approx({key: value for key, value in expected.items() if value})
    for step, lower, upper, column in ((0, 7, 0, 0), (1, 7, 0, 1), (0, 4, 3, 1), (1, 4, 3, 2)):  # begins, then ends
        corners = [band.get_path().vertices for band in bands if int(band.get_path().vertices[0][0]) == step]
        edges = np.array(sorted((band[lower][1], band[upper][1]) for band in corners))
        assert (edges[1:, 0] - edges[:-1, 1] > -1e-9).all()
        assert np.diff(edges).sum() == pytest.approx(sum(node.get_height() for node in columns[column]))


def test_pies_and_bars_show_the_shares_of_each_range_and_cells_their_means(cases):
    found = count(cases)
    axes = pictures.draw_lengths_by_diagnosis(found).axes
    rows = [axes[place : place + 4] for place in range(0, len(axes), 4)]  # three steps, and the histograms of the rows
    assert len(rows) == 6
    edges = [1, 6, 11, 16, 21, 26, 1000]
    for column, by_answer in enumerate(found.diagnosis_words):
        for row, words in zip(rows[1:], by_answer, strict=True):
            pies = {wedge.get_facecolor(): (wedge.theta2 - wedge.theta1) / 360 for wedge in row[column].patches}
            expected = np.histogram(words, edges)[0] / words.size
            assert [pies.get(colour, 0) for colour in pictures._COLOURS] == pytest.approx(expected, abs=1e-6)
            assert row[column].get_xlabel() == f"{words.mean():.1f}"
        heights = [bar.get_height() for bar in rows[0][column].patches]
        assert heights == np.histogram(np.concatenate(by_answer), edges)[0].tolist()
    for answer, row in enumerate(rows[1:]):
        words = np.concatenate([by_answer[answer] for by_answer in found.diagnosis_words])
        assert [bar.get_width() for bar in row[-1].patches] == np.histogram(words, edges)[0].tolist()
        assert row[-1].get_xlabel() == f"{words.size:,}"


def is_inside(ends, node):
    return node.get_y() - 1e-9 <= ends[0] and ends[1] <= node.get_y() + node.get_height() + 1e-9


@pytest.mark.slow
def test_the_command_writes_everything_twice_alike(tmp_path, capsys):
    write_records(tmp_path / "root", chain=CHAIN, cases=make_cases(60))
    names = [step.name for step in CHAIN.steps]
    for folder in ("one", "two"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            flags = [f"--out={tmp_path / folder}", "--split-seed=5", "--step-names", *names]
            main(["stats", str(tmp_path / "root"), *flags])
    assert "60 cases in" in capsys.readouterr().out
    one, two = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("one", "two"))
    assert (one, len(one)) == (two, 18)
    assert "made from seed 5" in one["splits.md"].decode()
    for name, content in one.items():
        if name.endswith(".png"):
            with Image.open(io.BytesIO(content)) as image:
                assert np.asarray(image.convert("L")).std() > 10
    flow = "".join(ElementTree.fromstring(one["answer_flow.svg"]).itertext())  # noqa: S314
    for word in ("cases", "Größe", "Пневмония", "Mass|<b>", "$x_1$"):
        assert word in flow
    refuse("does not exist", main, ["stats", str(tmp_path / "nowhere"), "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_the_phantom_reproduces_the_published_proportions():
    """Diagnoses and splits of 10,068 phantom cases agree with the published counts within sampling error.

    Pearson's chi-squared stays below the 99.9th percentile of its distribution: 26.1 for nine diagnoses, 54.1 for 27
    cells of the split table. The splits are stratified, so that each diagnosis' share of each split is the published
    one but for the rounding of one case an origin.
    """
    cases = []
    for index in range(PUBLISHED_SPLITS.sum()):
        fields = {"image": f"{index}.png", "origin": "ABC"[index % 3], "reasoning": ("",) * 7}
        cases.append(Record(patient=f"P{index}", answers=draw_answers(index, seed=0), **fields))
    found = count(cases, DEFAULT_CHAIN)
    assert found.answers[-1][-1] == 0
    diagnoses = found.answers[-1][:-1]
    assert chi_squared(diagnoses, PUBLISHED_SPLITS.sum(axis=1)) < 26.1
    assert chi_squared(found.splits[:-1], PUBLISHED_SPLITS) < 54.1
    shares = PUBLISHED_SPLITS.sum(axis=0) / PUBLISHED_SPLITS.sum()
    assert np.abs(found.splits[:-1] - shares * diagnoses[:, None]).max() < 0.0015 * diagnoses.max() + 3
    assert found.splits[:-1].min() >= 1
    assert [row[0] for row in list_splits(found)[1:]] == [*DIAGNOSIS_OPTIONS, "total"]


def chi_squared(observed, published):
    expected = published / published.sum() * observed.sum()
    return float(((observed - expected) ** 2 / expected).sum())


def test_tables_of_the_real_sample(shared):
    collection = read_records(root := shared / "data" / "nih_sample")
    splits = read_splits(root, collection.cases)
    found = compute_statistics(collection.cases, collection.chain, splits, splits_source="read from tables")
    rows = {row[0]: [int(number) for number in row[1:]] for row in list_splits(found)[1:]}
    assert rows["Normal"] == [178, 52, 30, sum(case.answers[-1] == 0 for case in collection.cases)]
    assert rows["total"] == [403, 101, 85, 589]
