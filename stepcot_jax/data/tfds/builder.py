"""The tensorflow_datasets builder for a folder of cases in any layout.

    from stepcot_jax.data.tfds.builder import StepCot
    StepCot(data_root="FOLDER", data_dir="PREPARED").download_and_prepare()
    source = tensorflow_datasets.data_source("step_cot", split="train", data_dir="PREPARED")

Importing this module requires tensorflow_datasets and registers the dataset as `step_cot`. Nothing needs tensorflow.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.data.splits.splits import SPLIT_NAMES
from stepcot_jax.data.tfds import source as prepared
from stepcot_jax.data.tfds.source import QUARANTINE_NAME, VERSION, Reading, Shard, check_prepared_from, import_tfds
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import make_workdir

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
    """Prepares a folder of cases and reads a prepared dataset."""

    VERSION = tfds.core.Version(VERSION)
    RELEASE_NOTES: ClassVar = {
        "1.0.0": "First version: all fields of the published layout, images as their files have them.",
        "1.1.0": "Marks of uncertain answers.",
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
            raise BadInput(f"file_format: {wanted!r} is not {_FORMAT!r}")
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
            features=prepared.make_features(),
            homepage=_HOMEPAGE,
            citation=_CITATION,
            metadata=tfds.core.MetadataDict(),
            # Record k of a split is its case k: `Contents` relies on the order.
            disable_shuffling=True,
        )

    def download_and_prepare(self, **kwargs: Any) -> None:
        """Prepare the dataset unless it is prepared already."""
        config = kwargs.get("download_config")
        overwrites = config is not None and config.download_mode.overwrite_dataset
        if self._root is not None and not overwrites and Path(self.data_dir).exists():
            check_prepared_from(Path(self.data_dir), self._root, self._reading)
        super().download_and_prepare(**kwargs)

    def _download_and_prepare(self, dl_manager: Any, download_config: Any) -> None:
        root = self._root or _find_manual_dir(dl_manager)
        self._gathered = prepared.gather(root, self._reading)
        source, collection = prepared.identify_source(root, self._reading), self._gathered.collection
        # tensorflow_datasets writes the metadata beside the shards.
        self.info.metadata.update(
            {
                "steps": [
                    {"name": step.name, "question": step.question, "options": list(step.options)}
                    for step in collection.chain.steps
                ],
                "not_annotated": NOT_ANNOTATED,
                "splits": self._gathered.splits_source,
                "num_set_aside": len(collection.set_aside),
                "set_aside": QUARANTINE_NAME if collection.set_aside else "",
                "source": source,
            }
        )
        super()._download_and_prepare(dl_manager, download_config)
        folder = Path(self.data_dir)  # a temporary one, renamed when this returns
        shards = []
        for split in (self.info.splits[name] for name in SPLIT_NAMES):
            for path, length in zip(split.filepaths, split.shard_lengths, strict=True):
                file = folder / Path(path).name
                num_bytes = file.stat().st_size
                shards.append(Shard(file=file.name, split=split.name, num_bytes=num_bytes, num_records=length))
        prepared.write_contents(folder, self._gathered, source=source, shards=shards, images=self._images)

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, dict[str, Any]]]]:
        del dl_manager  # nothing is downloaded
        return {name: self._generate_examples(indices) for name, indices in self._gathered.splits.by_name().items()}

    def _generate_examples(self, indices: tuple[int, ...]) -> Iterator[tuple[int, dict[str, Any]]]:
        for position, index in enumerate(indices):
            content = self._gathered.images.read(index)
            self._images[index] = len(content), hashlib.sha256(content).hexdigest()
            yield position, prepared.make_example(self._gathered.collection.cases[index], content)


def _find_manual_dir(dl_manager: Any) -> Path:
    try:
        return Path(dl_manager.manual_dir)
    except (AssertionError, ValueError) as error:
        raise BadInput(
            f"step_cot: data_root or a filled manual_dir is required ({' '.join(str(error).split())[:200]}): "
            "a folder in the published layout"
        ) from None


def prepare(root: Path, data_dir: Path, reading: Reading | None = None) -> Path:
    """Prepare a folder of cases, unless it is prepared; return `step_cot/1.1.0` in `data_dir`."""
    make_workdir(Path(data_dir))
    builder = StepCot(data_root=root, reading=reading, data_dir=data_dir)
    builder.download_and_prepare()
    return Path(builder.data_dir)
