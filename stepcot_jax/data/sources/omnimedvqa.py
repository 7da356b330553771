"""OmniMedVQA (Hu et al., CVPR 2024): QA_information/Open-access/*.json, two to four options, no splits."""

from pathlib import Path

from stepcot_jax.data.sources.listed import How, Source
from stepcot_jax.data.sources.question_files import Asked, Place, Row, get_text, list_tables

_LICENCE = "of each of its 42 collections"


def list_omnimedvqa(root: Path, how: How, files: list[Path]) -> Source:
    """List the questions of all files; `dataset` is kept as a fact."""
    return list_tables(root, how, files, _read, origin="OmniMedVQA", licence=_LICENCE, folders=(".", "Images"))


def _read(fields: Row, _: Place) -> Asked:
    return Asked(
        image=get_text(fields, "image_path"),
        question=get_text(fields, "question"),
        answer=get_text(fields, "gt_answer"),
        options=[get_text(fields, f"option_{letter}") for letter in "ABCD"],
        kind="single",
        id=get_text(fields, "question_id"),
        topic=get_text(fields, "question_type"),
        modality=get_text(fields, "modality_type", "modality"),
        facts={"dataset": get_text(fields, "dataset")},
    )
