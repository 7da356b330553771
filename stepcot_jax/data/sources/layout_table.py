"""The table of layouts: settings, `--layout`, docs and messages take their names from it.

A layout is a row here and a module of its name with `list_NAME(root, how)`, which returns a `listed.Source`.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from stepcot_jax.host.errors import BadInput

AUTO = "auto"


class Layout(NamedTuple):
    """What a layout holds, by the files that it is recognised by; () where it does not hold it."""

    cases: tuple[str, ...] = ()  # images with the answers of a chain
    boxes: tuple[str, ...] = ()  # images with boxed findings, about which questions are asked
    questions: tuple[str, ...] = ()  # questions with their answers: names of tables, and columns that one must have
    where: str = ""  # in words; "" for a folder with one of the files
    looks_inside: bool = False  # whether `is_NAME(root)` of its module must agree
    own_chain: bool = False  # whether its steps may differ from the published ones
    module: str = ""  # the module, where it has another name


LAYOUTS: dict[str, Layout] = {
    "published": Layout(cases=("data.json",)),
    "chestxray8": Layout(cases=("BBox_List_2017*.csv", "Data_Entry_2017*.csv"), boxes=("BBox_List_2017*.csv",)),
    "padchest_gr": Layout(cases=("grounded_reports*.json",), boxes=("grounded_reports*.json",)),
    "iu_xray": Layout(
        cases=("*",), where="a folder or .tgz archive with the collection's XML reports", looks_inside=True
    ),
    "rad_restruct": Layout(cases=("template_final_clean.json",), own_chain=True),
    "csv": Layout(
        cases=("cases.csv", "cases.xlsx"),
        where="a folder with cases.csv or cases.xlsx, or a .csv or .xlsx file",
        module="csv_table",
        own_chain=True,
    ),
    "records": Layout(questions=("records.jsonl",)),
    "gemex": Layout(questions=("*: visual_locations", "*: thinkVG", "*: conversations, q_type")),
    "medsage": Layout(questions=("*: conversations",)),
    "vqa_rad": Layout(questions=("*.json: qid, image_name, phrase_type", "*.parquet: image, question, answer")),
    "slake": Layout(questions=("*.json: img_name, q_lang",)),
    "path_vqa": Layout(questions=("*.parquet: image, question, answer",), module="vqa_rad"),
    "pmc_vqa": Layout(questions=("train.csv: Figure_path, Choice A", "test.csv: Figure_path, Choice A")),
    "pmc_vqa_2": Layout(questions=("*_2.csv: Figure_path, Choice A",), module="pmc_vqa"),
    "omnimedvqa": Layout(questions=("*.json: gt_answer, option_A, image_path",)),
    "mmmu": Layout(questions=("*.parquet: id, question, options, answer, image_1",)),
    "question_sheet": Layout(questions=("*: image, question, answer",)),
    "vinbigdata": Layout(boxes=("train.csv",), looks_inside=True),
    "vindr_cxr": Layout(boxes=("annotations/annotations_*.csv",), module="vinbigdata"),
    "deeplesion": Layout(boxes=("DL_info.csv",)),
    "coco": Layout(boxes=("annotations/*.json", "*/_annotations.coco.json", "*.json"), looks_inside=True),
    "yolo": Layout(boxes=("data.yaml", "*.yaml", "*.yml"), looks_inside=True),
    "voc": Layout(boxes=("Annotations/*.xml", "*/*.xml"), looks_inside=True),
    "medclm_boxes": Layout(boxes=("*.json", "*.jsonl"), looks_inside=True),
    "box_table": Layout(boxes=("*.csv", "*/_annotations.csv"), looks_inside=True),
    "phantom": Layout(boxes=("boxes.csv",), looks_inside=True),
    "grounded": Layout(boxes=("grounded.jsonl",), questions=("*: image, sentence, boxes",)),
}
CASES = tuple(name for name, layout in LAYOUTS.items() if layout.cases)
BOXED = tuple(name for name, layout in LAYOUTS.items() if layout.boxes)
QUESTIONS = (
    *(name for name, layout in LAYOUTS.items() if layout.questions),
    *(name for name in BOXED if not LAYOUTS[name].questions),
    *(name for name in CASES if name not in BOXED),  # the steps of their chain
)

CaseLayout: TypeAlias = str
QuestionLayout: TypeAlias = str
if not TYPE_CHECKING:
    CaseLayout = Literal[(AUTO, *CASES)]
    QuestionLayout = Literal[(AUTO, *QUESTIONS)]


def of_layout(name: str, what: str) -> Any:
    """Return a function of a layout's module, such as `list_csv` of `csv`."""
    module = importlib.import_module(f"stepcot_jax.data.sources.{LAYOUTS[name].module or name}")
    return getattr(module, f"{what}_{name}")


def check_layout(layout: str, known: tuple[str, ...]) -> str:
    """Return a layout's name if it is known."""
    if layout not in known:
        raise BadInput(f"layout: {layout[:80]!r} is not one of {', '.join((AUTO, *known))}")
    return layout


class SeveralLayouts(BadInput):
    """A folder has files of several layouts."""


def detect_layout(root: Path, *, further: str = "") -> str:
    """Return the layout of a data root, one of `CASES`, recognised by its file names."""
    root = Path(root)
    try:
        exists = root.exists()
    except (OSError, ValueError) as error:
        raise BadInput(f"{str(root)[:200]!r}: is not a path ({error}); {_expect_cases(further)}") from None
    if not exists:
        where = "" if root.is_absolute() else f" in {Path.cwd()} (another folder than the run's?)"
        raise BadInput(f"{root}: does not exist{where}; {_expect_cases(further)}")
    return _find_one(root, {name: LAYOUTS[name].cases for name in CASES}, "layout", _expect_cases(further))


def detect_boxed_layout(root: Path) -> str:
    """Return the layout of a detection list, one of `BOXED`, recognised by its file names."""
    root = Path(root)
    patterns = {name: LAYOUTS[name].boxes for name in BOXED}
    expected = "expected " + "; ".join(f"{' or '.join(files)} ({name})" for name, files in patterns.items())
    if not root.is_dir():
        raise BadInput(f"{root}: is not a folder; {expected}")
    return _find_one(root, patterns, "detection list", expected)


def _find_one(root: Path, patterns: dict[str, tuple[str, ...]], what: str, expected: str) -> str:
    layouts = [layout for layout, files in patterns.items() if _is_there(root, layout, files)]
    if len(layouts) > 1:  # a collection's own table has columns of boxes too
        layouts = [layout for layout in layouts if layout != "box_table"]
    if len(layouts) > 1:
        raise SeveralLayouts(f"{root}: has files of the layouts {' and '.join(layouts)}; choose one as the layout")
    if not layouts:
        raise BadInput(f"{root}: has no known {what}; {expected}")
    return layouts[0]


def _expect_cases(further: str) -> str:
    described = {name: LAYOUTS[name].where or f"a folder with {' or '.join(LAYOUTS[name].cases)}" for name in CASES}
    accepted = [f"{where} ({name})" for name, where in described.items()]
    return f"expected {'; '.join([*accepted, further] if further else accepted)}"


def _is_there(root: Path, layout: str, patterns: tuple[str, ...]) -> bool:
    if LAYOUTS[layout].looks_inside and patterns == ("*",):
        return bool(of_layout(layout, "is")(root))
    if not root.is_dir():
        return layout == "csv" and root.suffix.lower() in (".csv", ".xlsx")
    if not any(next(root.glob(pattern), None) for pattern in patterns):
        return False
    return not LAYOUTS[layout].looks_inside or bool(of_layout(layout, "is")(root))
