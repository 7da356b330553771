import base64
import io
import math
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from PIL import Image
from refusals import refuse

from stepcot_jax.pages.figures import draw_lines, draw_reliability
from stepcot_jax.pages.pictures import MAX_SIDE, write_map, write_overlay, write_picture
from stepcot_jax.tools.report.sections import write_curves

LABELS = {"title": "<t> $x_1$", "x_label": "x", "y_label": "y"}


def parse(markup):
    return ElementTree.fromstring(markup)  # noqa: S314 - our own


def points_of(figure, line):
    uses = [each for each in parse(figure).iter("use") if each.get("fill") == f"var(--line-{line})"]
    return [(float(each.get("x")), float(each.get("y"))) for each in uses if each.get("x")]


def test_a_line_is_drawn_where_its_numbers_are():
    figure = draw_lines([("one", [(1, 0.0), (2, 0.5), (3, 1.0)])], **LABELS)
    (x1, y1), (x2, y2), (x3, y3), _legend = points_of(figure, 0)
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.11)
    assert y1 > y2 > y3
    assert y1 - y2 == pytest.approx(y2 - y3, abs=0.11)


def test_numbers_that_are_not_finite_are_gaps():
    figure = draw_lines([("one", [(1, 0.1), (2, 0.2), (3, math.nan), (4, 0.3), (5, 0.4)])], **LABELS)
    assert len(points_of(figure, 0)) == 4 + 1  # plus the legend's
    (line, _legend) = [
        each.get("d")
        for each in parse(figure).iter("path")
        if each.get("stroke") == "var(--line-0)" and each.get("stroke-width") == "2"
    ]
    assert line.count("M") == 2
    assert "nan" not in figure
    assert len(points_of(draw_lines([("one", [(1, -3.0)])], **LABELS), 0)) == 1 + 1
    assert "No numbers were logged" in draw_lines([("one", [(1, math.nan)])], **LABELS)


def test_a_drawing_has_text_no_inline_style_and_the_same_bytes_each_time():
    lines = [("<one>\u202e", [(1, 0.1), (2, 0.2)]), ("$two$", [(1, 0.1234567)])]
    figure = draw_lines(lines, **LABELS)
    assert figure == draw_lines(lines, **LABELS)
    texts = ["".join(each.itertext()) for each in parse(figure).iter("text")]
    assert {"<one>[U+202E]", "$two$", "x", "y"} <= set(texts)
    assert not re.search(r"style=|<style|<metadata|#[0-9a-f]{6}\b", figure)
    ids = re.findall(r' id="([^"]*)"', figure)
    assert len(set(ids)) == len(ids)
    assert {name for pair in re.findall(r'"#([^"]*)"|url\(#([^)]*)\)', figure) for name in pair if name} <= set(ids)


def test_a_perfect_network_lies_on_the_diagonal():
    shares = [0.1, 0.5, 0.9]
    figure = draw_reliability(confidences=shares, accuracies=shares, counts=[1, 4, 100], title="t", model="teacher")
    diagonal = next(each.get("d") for each in parse(figure).iter("path") if each.get("stroke-dasharray"))
    x0, y0, x1, y1 = map(float, re.findall(r"[\d.]+", diagonal))
    points = points_of(figure, 0)
    assert len(points) == 3
    for x, y in points:
        assert (y - y0) / (y1 - y0) == pytest.approx((x - x0) / (x1 - x0), abs=0.01)
    assert "<title>100 cases: confidence 0.90, accuracy 0.90</title>" in figure


def entry(kind, epoch, **values):
    return {"kind": kind, "step": 1, "epoch": epoch, **{key.replace("__", "/"): value for key, value in values.items()}}


def charts_of(*entries):
    return re.findall("<figure>.*?</figure>", write_curves(entries).body)


def test_curves_are_means_of_each_epoch():
    accuracy, loss = charts_of(
        entry("train", 0, teacher__total=4.0),
        entry("train", 0, teacher__total=2.0),
        entry("val", 0, teacher__mean_accuracy=0.5),
        entry("train", 1, teacher__total=1.0, student__total=5.0),
        entry("val", 1, teacher__mean_accuracy=None, student__mean_accuracy=0.25),
        entry("test", 1, teacher__mean_accuracy=0.9),
    )
    assert [text for text in ("teacher", "student") if f">{text}</text>" in loss] == ["teacher", "student"]
    *teacher, _legend = [y for _, y in points_of(loss, 0)]
    *student, _legend = [y for _, y in points_of(loss, 1)]
    # 3 (the mean of 4 and 2), 1 and 5: equally spaced, larger values higher on the page.
    assert teacher[1] - teacher[0] == pytest.approx(teacher[0] - student[0], abs=0.21)
    assert len(points_of(accuracy, 0)) == 1 + 1
    (text,) = charts_of(entry("val", 0, teacher__mean_accuracy_own_and_given=0.5))[:1]
    assert "mean of own answers and true ones given" in text
    assert ">teacher</text>" in text


def test_the_plain_network_has_a_loss_of_its_own():
    parts = {"teacher__total": 5.0, "teacher__hard_label": 2.0, "teacher__plain": 3.0, "student__total": 2.0}
    _, loss = charts_of(entry("train", 0, **parts), entry("train", 1, **parts))
    teacher, student, plain = ([y for _, y in points_of(loss, line)] for line in range(3))
    assert [text for text in ("teacher", "student", "plain") if f">{text}</text>" in loss] == [
        "teacher",
        "student",
        "plain",
    ]
    assert teacher[:2] == student[:2] != plain[:2]


def decode(uri):
    kind, content = uri.split(",")
    assert kind == "data:image/jpeg;base64"
    return Image.open(io.BytesIO(base64.b64decode(content)))


def grey(size, value=128):
    return np.full((size, size, 3), value, np.uint8)


def test_a_picture_keeps_its_look_and_is_small():
    pixels = np.repeat(np.linspace(0, 255, 1000).astype(np.uint8)[None, :, None], 600, axis=0).repeat(3, axis=2)
    shown = decode(write_picture(pixels))
    assert shown.mode == "L"
    assert max(shown.size) == MAX_SIDE
    assert shown.width / shown.height == pytest.approx(1000 / 600, abs=0.02)
    row = np.asarray(shown)[0].astype(float)
    assert abs(row - np.linspace(0, 255, shown.width)).max() < 6
    coloured = grey(20)
    coloured[..., 0] = 200
    assert decode(write_picture(coloured)).mode == "RGB"


def cells(found):
    return np.frombuffer(base64.b64decode(found["bytes"]), np.uint8).reshape(found["height"], found["width"])


def test_a_map_runs_from_its_lowest_to_its_highest_and_a_fine_one_is_averaged():
    assert cells(write_map(np.array([[0.2, 0.2, 0.6], [0.36, 0.2, 0.2]]))).tolist() == [[0, 0, 255], [102, 0, 0]]
    values = np.zeros((96, 48))
    values[:48] = 1
    found = cells(write_map(values))
    assert found.shape == (24, 12)
    assert (found[:11] == 255).all()
    assert not found[13:].any()
    for bad in (np.nan, -1.0, np.inf):
        refuse("finite and not negative", write_map, np.array([[0.0, bad]]), error=ValueError)


def test_an_overlay_is_bright_where_the_map_is_and_an_even_map_shows_nothing():
    for value in (0.0, 1 / 49, 1e-12):
        assert not cells(write_map(np.full((7, 7), value))).any()
        assert write_overlay(grey(14), np.full((7, 7), value)) == write_picture(grey(14))
    values = np.zeros((4, 4))
    values[0, 3] = 1
    shown = np.asarray(decode(write_overlay(grey(64, 60), values)).convert("RGB")).astype(int)
    assert shown[4, 60, 0] > 150
    assert abs(shown[50, 10] - 60).max() < 8
