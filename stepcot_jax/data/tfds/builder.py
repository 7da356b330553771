"""The builder of tensorflow_datasets for a folder in the published layout.

    from stepcot_jax.data.tfds.builder import StepCot
    StepCot(data_root="FOLDER", data_dir="PREPARED").download_and_prepare()
    source = tensorflow_datasets.data_source("step_cot", split="train", data_dir="PREPARED")

Importing this module needs tensorflow_datasets and registers the dataset under the name `step_cot`. Neither it nor what
is done with it needs tensorflow.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.data.tfds.contents import (
    QUARANTINE_NAME,
    VERSION,
    digest_image,
    write_account,
    write_contents,
)
from stepcot_jax.data.tfds.examples import import_tfds, make_example, make_features
from stepcot_jax.data.tfds.preparing import Gathered, Reading, gather, identify_source
from stepcot_jax.data.tfds.source import check_prepared_from
from stepcot_jax.host.errors import BadInput

tfds = import_tfds()

_FORMAT = "array_record"
_HOMEPAGE = "https://arxiv.org/abs/2603.13878"
_CITATION = """@inproceedings{stepcot2026,
  title={Step-CoT},
  booktitle={IEEE/CVF Conference on Computer Vision and Pattern Recognition (CVPR)},
  year={2026},
  note={arXiv:2603.13878}
}"""
_DESCRIPTION = """Frontal chest radiographs, each with its report and a chain of questions, as published seven: from
detection over distribution, pattern, location, morphology and secondary effects to the diagnosis, each with an answer
and a reason. Prepared from a folder in the layout that the authors of Step-CoT publish."""


class StepCot(tfds.core.GeneratorBasedBuilder):
    """Prepares a folder in the published layout, and reads what was prepared.

    Args:
      data_root: the folder; None reads `manual_dir` (see `MANUAL_DOWNLOAD_INSTRUCTIONS`), or what is prepared already.
      reading: how it is read.
      file_format: "array_record", the one format that is read without tensorflow.
      kwargs: of `tfds.core.GeneratorBasedBuilder`, such as `data_dir`.

    Raises:
      BadInput: another format is asked for.
    """

    VERSION = tfds.core.Version(VERSION)
    RELEASE_NOTES: ClassVar = {
        "1.0.0": "First version: all fields of the published layout, images as their files have them."
    }
    MANUAL_DOWNLOAD_INSTRUCTIONS = (
        "Put the published folder (data.json, images/ and, if there are any, train.xlsx, val.xlsx and test.xlsx) into "
        "manual_dir, or name it as data_root."
    )

    def __init__(
        self,
        *,
        data_root: str | Path | None = None,
        reading: Reading | None = None,
        file_format: Any = None,
        **kwargs: Any,
    ) -> None:
        wanted = getattr(file_format, "value", file_format) or _FORMAT
        if wanted != _FORMAT:
            raise BadInput(f"file_format: found {wanted!r}, accepted is {_FORMAT!r}")
        self._root = None if data_root is None else Path(data_root)
        self._reading = reading or Reading()
        self._images: dict[int, tuple[int, str]] = {}
        super().__init__(file_format=_FORMAT, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        ours = {"data_root": self._root, "reading": self._reading}
        return {**state, "_original_state": {**state["_original_state"], **ours}}

    def _info(self) -> Any:
        return tfds.core.DatasetInfo(
            builder=self,
            description=_DESCRIPTION,
            features=make_features(),
            homepage=_HOMEPAGE,
            citation=_CITATION,
            metadata=tfds.core.MetadataDict(),
            # Record k of a split is its case k, so that the records beside the shards say what is in them.
            disable_shuffling=True,
        )

    def download_and_prepare(self, **kwargs: Any) -> None:
        """Prepares the dataset unless it is there.

        Args:
          kwargs: as of the overridden method.

        Raises:
          BadInput: the folder cannot be used, or something else is prepared already where it should go.
        """
        config = kwargs.get("download_config")
        overwrites = config is not None and config.download_mode.overwrite_dataset
        if self._root is not None and not overwrites and Path(self.data_dir).exists():
            check_prepared_from(Path(self.data_dir), self._root, self._reading)
        super().download_and_prepare(**kwargs)

    def _download_and_prepare(self, dl_manager: Any, download_config: Any) -> None:
        root = self._root or _find_manual_dir(dl_manager)
        self._gathered = gather(root, self._reading)
        source = identify_source(root, self._reading)
        folder = Path(self.data_dir)  # a temporary one, which takes its place when this returns
        write_account(folder, self._gathered)
        self._describe(self._gathered, source)
        super()._download_and_prepare(dl_manager, download_config)
        lengths = {
            name: [(Path(path).name, length) for path, length in zip(split.filepaths, split.shard_lengths, strict=True)]
            for name, split in self.info.splits.items()
        }
        write_contents(folder, self._gathered, source=source, shard_lengths=lengths, images=self._images)

    def _describe(self, gathered: Gathered, source: str) -> None:
        """What the metadata say of the data; they are written beside the shards."""
        collection = gathered.collection
        self.info.metadata.update(
            {
                "steps": [
                    {"name": step.name, "question": step.question, "options": list(step.options)}
                    for step in collection.chain.steps
                ],
                "not_annotated": NOT_ANNOTATED,
                "splits": gathered.splits_source,
                "num_set_aside": len(collection.set_aside),
                "set_aside": QUARANTINE_NAME if collection.set_aside else "",
                "source": source,
            }
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, dict[str, Any]]]]:
        del dl_manager  # nothing is downloaded
        return {name: self._generate_examples(indices) for name, indices in self._gathered.splits.by_name().items()}

    def _generate_examples(self, indices: tuple[int, ...]) -> Iterator[tuple[int, dict[str, Any]]]:
        for place, index in enumerate(indices):
            content = self._gathered.images.read(index)
            self._images[index] = digest_image(content)
            yield place, make_example(self._gathered.collection.cases[index], content)


def _find_manual_dir(dl_manager: Any) -> Path:
    try:
        return Path(dl_manager.manual_dir)
    except (AssertionError, ValueError) as error:
        raise BadInput(
            f"step_cot: found neither data_root nor anything in manual_dir ({' '.join(str(error).split())[:200]}), "
            "accepted is a folder in the published layout, named as data_root or put into manual_dir"
        ) from None
