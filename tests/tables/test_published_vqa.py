"""Published figures of GEMeX-RMCoT and MEDSAGE: those of the facts file, each mean, gap and deviation recomputed."""

import math
import re

import numpy as np
import pytest

from stepcot_jax.evaluation import published
from stepcot_jax.tools.tables import command as making


@pytest.fixture(scope="module")
def facts(shared):
    return (shared / "design" / "facts_siblings.md").read_text(encoding="utf-8")


def rows_below(facts, heading):
    """Cells of the rows of the first table after a heading, without its header."""
    lines = facts[facts.index(heading) :].splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith("|---"))
    rows = []
    for line in lines[start + 1 :]:
        if not line.startswith("|"):
            return rows
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def numbers(cells):
    return [float(cell) for cell in cells if cell != "-"]


def percent(shares):
    return [round(100 * share, 6) for share in shares]


def test_table_4_of_gemex_is_as_in_the_facts(facts):
    rows = rows_below(facts, "**Table 4**, Qwen2.5-VL-7B")
    assert len(rows) == len(published.A_SCORES) == 5
    for row, (name, answers) in zip(rows, published.A_SCORES.items(), strict=True):
        interleaved = [
            score for pair in zip(answers.values(), published.V_SCORES[name].values(), strict=True) for score in pair
        ]
        assert percent([*interleaved, published.A_AVERAGE[name]]) == numbers(row[4:])
        assert row[0] == "zero-shot" or name.startswith(f"{row[1]}, SFT")
        assert name.endswith("RFT") == (row[3] == "yes")
        assert list(answers) == ["open", "closed", "single", "multi"]


def test_all_five_averages_of_gemex_are_unweighted_means():
    counts = published.NUM_QUESTIONS["GEMeX test"]
    for name, answers in published.A_SCORES.items():
        assert 100 * np.mean(list(answers.values())) == pytest.approx(100 * published.A_AVERAGE[name], abs=0.0051)
        for kind in ("closed", "single", "multi"):  # shares of whole questions
            assert abs(round(answers[kind] * counts[kind]) / counts[kind] - answers[kind]) < 1e-4
    weighted = [
        100 * np.average(list(row.values()), weights=list(counts.values())) for row in published.A_SCORES.values()
    ]
    assert np.round(weighted, 2).tolist() == [47.80, 84.98, 80.29, 82.84, 85.56]


def test_table_5_of_gemex_and_its_deviations(facts):
    rows = rows_below(facts, "**Table 5**, A-score under perturbation")
    unrounded = []
    for row, ((kind, training), figures) in zip(rows, published.PERTURBED.items(), strict=True):
        assert row[0] == kind
        assert training == f"GEMeX-{row[1]}, SFT"
        assert percent([*figures.values(), published.PERTURBED_STD[kind, training]]) == numbers(row[2:])
        assert figures["original"] == published.A_SCORES[training][kind]
        rounds = np.array(list(figures.values())[1:]) * 100
        assert 100 * published.recompute_std(figures) == pytest.approx(np.std(rounds, ddof=0))
        unrounded.append(np.std(rounds, ddof=0))
        assert abs(unrounded[-1] - 100 * published.PERTURBED_STD[kind, training]) < 0.001
        from_original = math.sqrt(np.mean((rounds - 100 * figures["original"]) ** 2))
        assert abs(from_original - 100 * published.PERTURBED_STD[kind, training]) > 0.04
    assert np.round(unrounded, 4).tolist() == [3.2136, 0.7522, 0.7239, 0.1915]


def test_counts_of_questions(facts):
    counted = [f"{number:,}" for number in published.NUM_QUESTIONS["GEMeX-RMCoT"].values()]
    assert "open-ended {}, closed-ended {}, single-choice {}, multi-choice {}; total 202,384".format(*counted) in facts
    assert [sum(counts.values()) for counts in published.NUM_QUESTIONS.values()] == [202_384, 3_960]
    assert list(published.NUM_QUESTIONS["GEMeX test"].values()) == [1144, 543, 1300, 973]
    assert "1,144 open + 543 closed + 1,300 single + 973 multi" in facts


def test_table_1_of_medsage_is_as_in_the_facts(facts):
    rows = rows_below(facts, "**Table 1** (average and gap to MEDSAGE as printed)")
    assert len(rows) == len(published.BENCHMARK_ACCURACY) == 18
    for row, (method, found) in zip(rows, published.BENCHMARK_ACCURACY.items(), strict=True):
        assert row[:2] == [published.BENCHMARK_GROUPS[method], method]
        assert percent([*found.values(), *published.BENCHMARK_AVERAGE[method]]) == numbers(row[2:])


def test_four_averages_of_table_1_do_not_fit_and_all_others_do():
    wrong = {}
    for method, row in published.BENCHMARK_ACCURACY.items():
        mean = 100 * sum(row.values()) / len(row)
        assert 100 * published.recompute_mean(row) == pytest.approx(mean)
        average, gap = percent(published.BENCHMARK_AVERAGE[method])
        if abs(mean - average) > 0.0501:
            wrong[method] = round(mean, 2)
        assert gap == pytest.approx(average - 69.8)
        assert 100 * published.recompute_gap(method) == pytest.approx(mean - 68.2)
    assert wrong == {"MEDSAGE": 68.2, "LLaVA-Next-7B": 45.4, "LLaVA-Next-13B": 48.5, "Med-R1": 48.56}
    own = {method: published.recompute_mean(row) for method, row in published.BENCHMARK_ACCURACY.items()}
    assert max(own, key=own.get) == "ViTAR"


def test_table_2_of_medsage_and_its_averages(facts):
    rows = rows_below(facts, "**Table 2**, stage scores 1-5")
    means = []
    for row, ((model, data), scores) in zip(rows, published.STAGE_SCORES.items(), strict=True):
        assert [row[0].replace("+", " and "), row[1]] == [model, data]
        assert [*scores.values(), published.STAGE_AVERAGE[model, data]] == numbers(row[2:])
        means.append(float(np.mean(list(scores.values()))))
        assert published.recompute_mean(scores) == pytest.approx(means[-1])
        assert abs(means[-1] - published.STAGE_AVERAGE[model, data]) > 0.05
    recomputed = [2.677, 2.900, 2.601, 3.141, 3.269, 3.186, 3.440, 3.500, 3.596]
    assert means == pytest.approx(recomputed, abs=0.00051)


def test_tables_3_to_5_of_medsage_and_their_averages(facts):
    rows = rows_below(facts, "**Table 3**, path augmentation")
    weights = {f"alpha {alpha:.2f}": found for alpha, found in published.SELF_CHECK_WEIGHT.items()}
    tables = {"3": published.PATH_AUGMENTATION, "4": weights, "5": published.PARTS}
    found = [(table, *place) for table, of_table in tables.items() for place in of_table.items()]
    for (number, name, *cells), (table, method, (row, overall)) in zip(rows, found, strict=True):
        assert number == table
        assert name.replace(" ", "") == method.replace(" ", "") or name == "base only, alpha 0"
        assert percent([*row.values(), overall]) == numbers(cells)
        assert 100 * np.mean(list(row.values())) == pytest.approx(100 * overall, abs=0.0501)
    assert list(published.PARTS["SFT + RL"][0].values()) == list(published.PATH_AUGMENTATION["RPA-sft+RL"][0].values())


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published")
    return folder, making.make_tables(making.list_names("printed"), None, command=["python"], folder=folder)


def test_published_figures_have_the_papers_digits_in_the_files(written, shared):
    papers = {name: (shared / "papers" / f"{name}.txt").read_text("utf-8") for name in ("gemex_rmcot", "medsage")}
    assert len(written[1]) == 24
    num_checked = 0
    for path in sorted(written[0].glob("*.md")):
        lines = [line for line in path.read_text().splitlines() if "|" in line]
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        paper = papers["gemex_rmcot" if path.stem in ("vqa", "robustness", "vqa_questions") else "medsage"]
        for index, heading in enumerate(rows[0]):
            cells = [row[index] for row in rows[2:] if row[index] != "-"]
            if heading.startswith(("published: ", "recomputed: ")):
                assert len({len(cell.partition(".")[2]) for cell in cells}) == 1, (path, heading)
            if heading.startswith("published: "):
                found = [re.search(rf"(?<![\d.]){re.escape(cell.lstrip('+-'))}(?!\d)", paper) for cell in cells]
                assert all(found), (path, heading)
                num_checked += len(cells)
    assert num_checked == 5 * 9 + 2 * 4 + 4 * 5 + 9 * 5 + 18 * 7 - 1 + 6 * 4 + 4 * 4 + 3 * 4
