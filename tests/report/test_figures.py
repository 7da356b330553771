import math
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepcot_jax.host.errors import BadInput
from stepcot_jax.report.curves import read_metrics, write_curves
from stepcot_jax.report.figures import Line, choose_ticks, draw_lines, draw_reliability

NUMBERS = st.floats(-1e6, 1e6, allow_nan=False)


@given(NUMBERS, st.floats(1e-3, 1e6))
def test_ticks_are_few_even_and_inside(low, width):
    high = low + width
    ticks = choose_ticks(low, high)
    assert 2 <= len(ticks) <= 8
    assert low - 1e-6 * width <= ticks[0] <= ticks[-1] <= high + 1e-6 * width
    assert np.allclose(np.diff(ticks, 2), 0, atol=1e-6 * width)


def parse(markup):
    return ElementTree.fromstring(markup)  # noqa: S314 - our own


def points_of(figure, css_class):
    root = parse(figure)
    return [
        (float(each.get("cx")), float(each.get("cy"))) for each in root.iter("circle") if each.get("class") == css_class
    ]


def test_a_line_is_drawn_where_its_numbers_are():
    figure = draw_lines(
        [Line("one", [(1, 0.0), (2, 0.5), (3, 1.0)])], title="t", x_label="x", y_label="y", y_range=(0.0, 1.0)
    )
    (x1, y1), (x2, y2), (x3, y3) = points_of(figure, "dot dot-0")
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.11)
    assert y1 > y2 > y3
    assert y1 - y2 == pytest.approx(y2 - y3, abs=0.11)


def test_numbers_that_are_not_finite_are_gaps():
    line = Line("one", [(1, 0.1), (2, 0.2), (3, math.nan), (4, 0.3), (5, 0.4)])
    figure = draw_lines([line], title="t", x_label="x", y_label="y")
    assert len(points_of(figure, "dot dot-0")) == 4
    paths = [each for each in parse(figure).iter("path") if each.get("class") == "line line-0"]
    assert len(paths) == 3  # two pieces and the legend's sample
    assert "nan" not in figure


def test_without_any_number_the_chart_says_so():
    figure = draw_lines([Line("one", [(1, math.nan)])], title="t", x_label="x", y_label="y")
    assert "No numbers were logged" in figure
    assert "<svg" not in figure


@pytest.mark.parametrize("value", [0.0, -3.0, 1e9])
def test_a_single_or_constant_number_is_drawn(value):
    figure = draw_lines([Line("one", [(1, value)])], title="t", x_label="x", y_label="y")
    assert len(points_of(figure, "dot dot-0")) == 1
    assert "nan" not in figure


def test_a_perfect_network_lies_on_the_diagonal():
    figure = draw_reliability([0.1, 0.5, 0.9], [0.1, 0.5, 0.9], [1, 4, 100], title="t")
    root = parse(figure)
    diagonal = next(each for each in root.iter("path") if each.get("class") == "diagonal").get("d")
    x0, y0, x1, y1 = map(float, re.findall(r"[\d.]+", diagonal))
    for x, y in points_of(figure, "bin"):
        assert (y - y0) / (y1 - y0) == pytest.approx((x - x0) / (x1 - x0), abs=0.01)
    radii = [float(each.get("r")) for each in root.iter("circle")]
    assert radii == sorted(radii)
    assert "100 cases" in figure


def test_curves_are_means_of_each_epoch(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        '{"kind": "train", "step": 1, "epoch": 0, "teacher/total": 4.0}\n'
        '{"kind": "train", "step": 2, "epoch": 0, "teacher/total": 2.0}\n'
        '{"kind": "val", "step": 2, "epoch": 0, "teacher/mean_accuracy": 0.5}\n'
        '{"kind": "train", "step": 3, "epoch": 1, "teacher/total": 1.0, "student/total": 5.0}\n'
        '{"kind": "val", "step": 3, "epoch": 1, "teacher/mean_accuracy": null, "student/mean_accuracy": 0.25}\n'
        '{"kind": "test", "step": 3, "epoch": 1, "teacher/mean_accuracy": 0.9}\n'
    )
    accuracy, loss = parse(write_curves(read_metrics(path)))
    names = [each.text or "".join(each.itertext()) for each in loss.iter("li")]
    assert names == ["teacher", "student"]
    teacher = [float(each.get("cy")) for each in loss.iter("circle") if each.get("class") == "dot dot-0"]
    student = [float(each.get("cy")) for each in loss.iter("circle") if each.get("class") == "dot dot-1"]
    # 3 (the mean of 4 and 2), then 1; and 5: equally far apart, upwards on the page.
    assert teacher[1] - teacher[0] == pytest.approx(teacher[0] - student[0], abs=0.11)
    assert len([each for each in accuracy.iter("circle") if each.get("class") == "dot dot-0"]) == 1


@pytest.mark.parametrize(
    "line", ["[1]", "{", '{"kind": "val"}', '{"kind": "val", "epoch": 0, "x": [1]}', '{"kind": 3, "epoch": 1}']
)
def test_a_line_that_is_no_entry_is_named(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "val", "step": 1, "epoch": 0}\n' + line + "\n")
    with pytest.raises(BadInput, match=r"metrics\.jsonl: line 2: found"):
        read_metrics(path)


def test_a_missing_log_is_named(tmp_path):
    with pytest.raises(BadInput, match=r"metrics\.jsonl"):
        read_metrics(tmp_path / "metrics.jsonl")
