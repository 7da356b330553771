"""SLAKE (Liu et al., ISBI 2021): questions about CT, MR and radiographs in English and Chinese.

Read: train.json, validation.json (older copies: validate.json), test.json, and pictures below imgs/. English rows alone
are read: the two languages are divided into splits in different ways.
"""

from pathlib import Path

from stepcot_jax.data.sources.listed import How, Source
from stepcot_jax.data.sources.question_files import Asked, Place, Row, get_text, list_tables
from stepcot_jax.data.sources.released import NotARecord

FIELDS = ("img name", "q lang")
_MODALITIES = {"X-Ray": "xray", "MRI": "MR"}


def list_slake(root: Path, how: How, files: list[Path]) -> Source:
    """List the English questions; closed answers may be other words than yes and no."""
    return list_tables(root, how, files, _read, origin="SLAKE", licence="CC BY 4.0", folders=("imgs", "."))


def _read(fields: Row, _: Place) -> Asked:
    language = get_text(fields, "q_lang")
    if language.casefold() not in ("", "en"):
        raise NotARecord(f"q_lang: {language[:20]!r}; the English rows are read")
    modality, number = get_text(fields, "modality"), get_text(fields, "qid")
    return Asked(
        image=get_text(fields, "img_name"),
        question=get_text(fields, "question"),
        answer=get_text(fields, "answer"),
        kind="closed" if get_text(fields, "answer_type").upper() == "CLOSED" else "open",
        id=number and f"slake-{number}",
        topic=get_text(fields, "content_type"),
        modality=_MODALITIES.get(modality, modality),
        organ=get_text(fields, "location").replace("_", " "),
        facts={"base_type": get_text(fields, "base_type")},
    )
