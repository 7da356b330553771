"""Reports in other languages are set aside; English ones are not, however short."""

import contextlib
import csv

import pytest

from stepcot_jax.annotate.annotation import CannotAnnotate, Reason
from stepcot_jax.annotate.rules.annotator import annotate_report
from stepcot_jax.annotate.rules.language import find_foreign_words
from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.tools.annotate.coding import read_coded_reports


@pytest.mark.parametrize(
    "text",
    [
        *("Derrame pleural izquierdo. No se observa neumotorax.", "Sin hallazgos.", "Silueta cardíaca normal."),
        *("Pleuraerguss links, kein Pneumothorax. Infiltrat rechts.", "Herz normal groß.", "Poumons clairs."),
        *("Épanchement pleural gauche. Pas de pneumothorax.", "Sem derrame pleural.", "Geen pleuravocht."),
        *("Versamento pleurico sinistro.", "\u53cc\u80ba\u7eb9\u7406\u589e\u591a\uff0c\u672a\u89c1\u5b9e\u53d8\u3002"),
        *("Hjertet normalt. Ingen effusion.", "F\u0103r\u0103 leziuni. Cord normal.", "Tidak tampak pneumothorax."),
        *("Silhouette cardiom\u00e9diastinale normal.", "Normal heart. Pas de pneumothorax.", "Befund: normal."),
        "\u041b\u0451\u0433\u043a\u0438\u0435 \u0431\u0435\u0437 \u0442\u0435\u043d\u0435\u0439.",
    ],
)  # fmt: skip
def test_a_report_in_another_language_is_set_aside(text):
    with pytest.raises(CannotAnnotate) as caught:
        annotate_report(text)
    assert caught.value.reason == Reason.NOT_ENGLISH


@pytest.mark.parametrize(
    "text",
    [
        "Lungs clear.",
        "Status post CABG, Dr. del Rosario. No effusion.",
        "Nodule in situ, per se unchanged.",
        "Sj\u00f6gren's.",
    ],
)
def test_a_report_in_english_is_not(text):
    assert not find_foreign_words(text)


def test_no_report_of_a_collection_in_english_is(shared):
    archive = shared / "data" / "iu_xray" / "NLMCXR_reports_sample.tgz"
    assert [report.id for report, _ in read_coded_reports(archive) if find_foreign_words(report.text)] == []


def test_reports_of_first_contact(shared):
    with (shared / "data" / "first_contact" / "reports_hand_out.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        expected = row["expected"].partition(" (")[0]
        annotation = None
        with contextlib.suppress(CannotAnnotate):
            annotation = annotate_report(row["report"])
        if annotation is None:
            assert "aside" in expected, row
            continue
        named = DEFAULT_CHAIN.steps[-1].options[annotation.labels[-1]]
        doubtful = bool(annotation.uncertain) and annotation.uncertain[-1]
        assert expected.split()[0] == named, row
        assert ("uncertain" in expected) == doubtful, row
