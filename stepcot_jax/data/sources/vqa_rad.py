"""VQA-RAD (Lau et al., Scientific Data 2018), as on OSF and on the Hugging Face hub.

OSF: "VQA_RAD Dataset Public.json" and the folder "VQA_RAD Image Folder"; test rows by `phrase_type`. The hub's copy is
Parquet with image, question and answer; PathVQA's has the same columns.
"""

from pathlib import Path

from stepcot_jax.data.sources.listed import How, Source
from stepcot_jax.data.sources.question_files import Asked, Place, Row, get_text, list_tables

_LICENCE = "CC0 1.0"
_FOLDERS = ("VQA_RAD Image Folder", "images", ".")


def list_vqa_rad(root: Path, how: How, files: list[Path]) -> Source:
    """List the questions; pictures stand in the training and in the test part, as the authors divided them."""
    return list_tables(root, how, files, _read, origin="VQA-RAD", licence=_LICENCE, folders=_FOLDERS)


def list_path_vqa(root: Path, how: How, files: list[Path]) -> Source:
    """List PathVQA's questions (He et al., 2020) of the hub's Parquet."""
    return list_tables(root, how, files, _read_slide, origin="PathVQA", licence="MIT", folders=("images", "."))


def _read(fields: Row, _: Place) -> Asked:
    phrase, number = get_text(fields, "phrase_type"), get_text(fields, "qid")
    closed = {"CLOSED": "closed", "OPEN": "open"}.get(get_text(fields, "answer_type").upper())
    return Asked(
        image=get_text(fields, "image_name", "image"),
        question=get_text(fields, "question"),
        answer=get_text(fields, "answer"),
        kind=closed,  # type: ignore[arg-type]
        id=number and f"vqa-rad-{number}",
        split=("test" if phrase.casefold().startswith("test") else "train") if phrase else None,
        topic=get_text(fields, "question_type"),
        organ=get_text(fields, "image_organ").casefold(),
    )


def _read_slide(fields: Row, _: Place) -> Asked:
    asked = get_text(fields, "image"), get_text(fields, "question"), get_text(fields, "answer")
    return Asked(image=asked[0], question=asked[1], answer=asked[2], modality="pathology")
