"""Every promise of the README with the test that holds it, and its figures as kept files give them."""

import pathlib
import re

import pytest

from benchmarks.ablations import show as show_ablations
from benchmarks.help_figures import show
from benchmarks.maps import show_claims
from benchmarks.small_rivals import show as show_rivals

ROOT = pathlib.Path(__file__).parents[1]
README = " ".join((ROOT / "README.md").read_text().split())
KEPT = ROOT / "docs/results/does_it_help"

HELD = {
    "reads a chest radiograph in seven answers": "predict/test_predict.py::test_the_tool_prints_seven_answers_first",
    "**Correct** an answer and the others follow": "predict/test_predict.py::test_a_correction_is_followed",
    "see which answer is worth checking next": "predict/test_asking.py::test_the_step_that_settles_the_last_one_most",
    "**Train** on your own table": "test_notebooks.py::test_your_own_data",
    "chain of questions": "data/sources/test_csv_table.py::test_a_chain_of_ones_own",
    "VQA set": "test_end_to_end_questions.py::test_from_slake_to_scored_replies",
    "or boxes, on CPU": "test_end_to_end_questions.py::test_from_coco_to_a_curriculum",
    "on CPU, GPUs or a TPU pod": "training/test_row_order.py::test_tpu_topologies_have_rows_in_the_order",
    "GPUs or": "benchmarks/test_compiled.py::test_the_joint_step_of_a_gpu_has_no_loop",
    "a TPU pod; a killed": "run/test_two_process_run.py::test_two_processes_train_save_and_go_on_as_one_does",
    "a killed run resumes to the same bits": "run/test_training_run.py::test_a_run_goes_on_to_the_same_bits",
    "fine-tune a small policy": "run/test_policy_run.py::test_the_job_sft_equals_the_first_phase_of_grpo",
    "or a Qwen2.5-VL": "run/test_qwen_run.py::test_what_trains_moves_and_what_is_frozen_stays",
    "GRPO with verifiable rewards": "run/test_policy_run.py::test_rewards_and_losses_are_logged",
    "which also work in TRL": "rewards/test_trl.py::test_two_updates_of_the_documented_trainer",
    "verl and EasyR1": "rewards/test_adapters.py::test_records_as_columns_earn_what_the_records_earn_in_each_trainer",
    "any model's replies": "evaluation/test_field_rules.py::test_verdicts_by_hand",
    "by the field's rules": "evaluation/test_field_rules.py::test_every_verdict_of_the_suites",
    "the same question without its picture": "evaluate_replies/test_controls.py::test_what_is_shown_and_every_figure",
    "every equation has a function and a test": "test_paper_map.py::test_every_row_names_code_and_a_test",
    "numbers agree with": "conformance/test_conformance.py::test_an_independent_derivation_agrees_in_every_group",
    "the authors' PyTorch code": "conformance/test_conformance.py::test_the_authors_numbers_agree",
    "every figure stands beside its dumbest rival": "benchmarks/test_help_figures.py::test_sets_are_shown_beside",
    "![A drawn chest": "test_pictures.py::test_pictures_are_of_todays_quickstart_chests_and_pages",
    "Python 3.11 to 3.13": "test_release.py::test_the_versions_of_python_are_those_of_the_tests",
    '`".[cuda12]"`, `".[cuda13]"` or `".[tpu]"`': "test_release.py::test_extras_of_the_readme_exist",
    "an export, hf://ann/chest": "host/test_download.py::test_paths_and_hugging_face_names_are_no_addresses",
    "`--checkpoint=phantom` reads": "predict/test_phantom_reader.py::test_commands_take_the_name",
    "`stepcot` alone lists all commands": "test_tools.py::test_the_tools_are_listed_without_jax",
    "In Python:": "test_api.py::test_the_block_of_the_readme_runs_as_printed",
    "plain loses 3.4 points [2.8, 4.1]": "benchmarks/test_help_figures.py::test_the_gain_of_step_labels",
    "With 40,000 chests (five sets)": "benchmarks/test_help_figures.py::test_the_primary_figure_of_phantom",
    "A bad record stops the run with its file": "data/sources/test_csv_table.py::test_odd_rows",
    "or is set aside with the reason": "data/sources/test_csv_table.py::test_odd_rows",
    "ChestX-ray8": "data/sources/test_chestxray8.py::test_both_headers_of_the_table_of_labels",
    "IU X-Ray": "data/sources/test_iu_xray.py::test_folder_and_archives_agree",
    "PadChest-GR": "data/sources/test_padchest_gr.py::test_boxes_sentences_and_labels_of_a_study",
    "VQA-RAD": "data/sources/test_question_layouts.py::test_vqa_rad_of_osf",
    "SLAKE": "data/sources/test_question_layouts.py::test_slake_reads_english_rows",
    "COCO": "data/sources/test_box_layouts.py::test_coco_as_roboflow_exports_it",
    "YOLO": "data/sources/test_box_layouts.py::test_yolo_as_roboflow_exports_it",
    "VinDr-CXR and others are read": "data/sources/test_box_layouts.py::test_vindr_cxr_of_physionet",
    "`FOLDER` holds a `data.json` or a table": "data/checks/test_check.py::test_facts_of_a_good_folder",
    "DICOM with the extra": "data/images/test_dicom.py::test_lossless_compression",
    "--config=small_data": "run/test_documented_commands.py::test_every_command_is_accepted",
    "A policy that answers questions with boxes": "run/test_documented_commands.py::test_every_command_is_accepted",
    "| I want to | page |": "test_release.py::test_no_link_of_the_long_description_is_relative",
    "Notebooks:": "test_notebooks.py::test_all_notebooks_are_tested",
}
"""Words of the README, and the test; a test may be named by its beginning."""

_SETS = "docs/results/does_it_help.md"
QUOTED = {
    "the teacher has +0.5 [0.1, 0.9] after two": (
        _SETS,
        "less plain | **diagnosis after two answers** | 0.5 [0.1, 0.9]",
    ),
    "the student -0.5 [-0.9, -0.1] of the steps": (_SETS, "| student less plain | steps | -0.5 [-0.9, -0.1] |"),
    "naive Bayes gets 84.8 after two": (
        _SETS,
        "| teacher less plain x naive Bayes | diagnosis after two answers | 85.2 / 84.8 |",
    ),
    "from which the teacher is not shown to differ": (
        _SETS,
        "| 85.2 / 84.8 | 0.4 [-0.0, 0.8] | 0.050 | no difference shown |",
    ),
    "the teacher has +0.6 [-0.1, 1.4] whole": (
        _SETS,
        "less plain, settled | whole chains | 29.5 / 28.8 | 0.6 [-0.1, 1.4] |",
    ),
    "2.3 [0.7, 3.9] more normal": (_SETS, "| normal called abnormal, by diagnosis | 12.6 / 10.3 | 2.3 [0.7, 3.9] |"),
    "without the picture | - | 11.2 [10.8, 11.5] | 69.1 [67.9, 70.2]": (
        _SETS,
        "without the picture | 11.2 [10.8, 11.5] | 42.3 [41.7, 43.0] | 69.1 [67.9, 70.2] |",
    ),
    "linear heads on the same features get 80.9 % right": ("docs/results/small_data.md", "same features | 80.9 ["),
    "the teacher 79.0, an": ("docs/results/small_data.md", "| teacher | 79.0 ["),
    "an 8 x 8 thumbnail 70.0": ("docs/results/small_data.md", "| 8 x 8 thumbnail | 70.0 ["),
    "the most frequent answer 53.3": ("docs/results/small_data.md", "| most frequent answer | 53.3 ["),
    "right answers +0.2 [-2.6, +3.1] points, boxes' overlap +1.0 [+0.5, +1.6]": (
        "docs/results/origin_gains.md",
        "+0.2 ± 1.1 [-2.6, +3.1] | +1.0 ± 0.2 [+0.5, +1.6]",
    ),
    "diagnosis falls by 41.9 points": ("docs/results/explanations.md", "| brightest tenth .*| 41.9 ["),
    "for a fixed tenth by 29.0 (teacher": ("docs/results/explanations.md", "| a fixed tenth .*| 29.0 ["),
    "(teacher 42.1,": ("docs/results/explanations.md", "| brightest tenth .*| 42.1 ["),
    "32.2; five sets": ("docs/results/explanations.md", "| a fixed tenth .*| 32.2 ["),
}
"""Figures and their table: of the kept sets, which the command prints, or of trainings that are not kept."""


@pytest.mark.parametrize("words", HELD)
def test_a_promise_is_made_and_held_by_a_test(words):
    file, _, test = HELD[words].partition("::")
    assert words in README
    assert f"def {test}" in (ROOT / "tests" / file).read_text()


@pytest.mark.parametrize("words", QUOTED)
def test_a_figure_that_is_not_recomputed_stands_in_its_table(words):
    page, cells = QUOTED[words]
    assert words in README
    assert re.search(".*".join(map(re.escape, cells.split(".*"))), (ROOT / page).read_text())


@pytest.mark.slow
def test_the_tables_are_what_the_command_prints():
    """README's cells too, network by network; its other figures of the ten sets are in these tables."""
    page, whole = ((ROOT / "docs" / name).read_text() for name in ("does_it_help.md", "results/does_it_help.md"))
    texts = {config: show(KEPT, config) for config in ("quickstart", "phantom")}
    explained = (ROOT / "docs/results/explanations.md").read_text()
    claims = [show_claims(KEPT / f"maps_{name}.npz").split("**claims**")[-1] for name in ("student", "teacher")]
    assert all(table.strip() in explained for table in claims)  # over the sets, with the network's name
    assert show_rivals(KEPT / "nih.npz") in (ROOT / "docs/results/small_data.md").read_text()
    assert show_ablations(KEPT).strip() in (ROOT / "docs/results/ablations.md").read_text()
    printed = {config: text.splitlines() for config, text in texts.items()}
    for config, part in zip(printed, page.split("## At the size of `phantom`"), strict=True):
        assert texts[config].strip() in whole
        rows = [line for line in part.splitlines() if re.match(r"\|.*\d \[.*\]", line)]
        assert len(rows) > 15
        assert not [row for row in rows if row not in printed[config]]
    (header,) = (line.split(" | ") for line in printed["quickstart"] if line.startswith("| network | steps"))
    shown = [header.index(name) for name in ("steps", "diagnosis", "diagnosis after two answers |", "whole chains")]
    quoted = dict(
        re.findall(
            r"^\| \**(plain|teacher|student)(?: network\*\*)? \| (.*) \|$",
            (ROOT / "README.md").read_text(),
            re.MULTILINE,
        )
    )
    assert len(quoted) == 3
    for name, cells in quoted.items():
        (row,) = (line for line in printed["quickstart"] if line.startswith(f"| {name} | ") and line.count("|") == 10)
        found = row.removesuffix(" |").split(" | ")
        assert cells.split(" | ") == [found[index] for index in shown]
