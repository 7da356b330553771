"""The data of a policy's run: records as tokens, pictures as network inputs, and files that describe both."""

import dataclasses
import functools
import pathlib
from collections.abc import Sequence

import jax
import numpy as np

from stepcot_jax.data.held_out import HeldOut
from stepcot_jax.data.questions.record_files import write_vqa_records
from stepcot_jax.data.questions.vqa_dataset import VqaDataset
from stepcot_jax.features.encode import ImageItem
from stepcot_jax.features.patch_input import PatchInput
from stepcot_jax.features.sharing import ALONE, Processes, encode_together
from stepcot_jax.features.store import describe_image_store
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.machine import map_in_threads
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.policies.policy_files import VOCABULARY_FILE, read_lengths, write_lengths
from stepcot_jax.policies.records import lay_out_prompts
from stepcot_jax.run.loading import load_vqa_dataset
from stepcot_jax.run.policy_tokens import TokenizedRecords, tokenize_records
from stepcot_jax.run.qwen_source import QwenSource
from stepcot_jax.run.run_store import open_run_store
from stepcot_jax.run.settings import Settings
from stepcot_jax.run.start import refuse_seen_patients, write_patients
from stepcot_jax.run.stored_policy import StoredPolicy, check_encoder
from stepcot_jax.systems.sft import See
from stepcot_jax.training.checkpoints import saved_steps
from stepcot_jax.training.processes import wait_for_all
from stepcot_jax.training.system import Batch

TEST_RECORDS = "records/test.jsonl"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyData:
    """Records and pictures of a run.

    Attributes:
      dataset: without the test split's answers and pictures.
      test: the records with both, which `open_test` returns for the final evaluation.
      source: of a Qwen2.5-VL; None for the small decoder.
      patches: of a frozen encoder; None if the network reads pictures.
    """

    workdir: pathlib.Path
    dataset: VqaDataset
    test: HeldOut[VqaDataset]
    tokens: TokenizedRecords
    source: QwenSource | None
    patches: PatchInput | None

    @property
    def see(self) -> See:
        """A function from pictures to the input that is put on the devices."""
        return self.patches or (lambda pictures: pictures)

    def make_prompts(self, indices: Sequence[int] | np.ndarray) -> Batch:
        """Return images, padded prompts and indices of some records."""
        tokens = self.tokens
        prompts = [tokens.prompts[index] for index in indices]
        laid_out = lay_out_prompts(prompts, tokens.lengths.prompt_length, pad=tokens.tokenizer.pad)
        images = self.dataset.load_images(self.dataset.image_of[np.asarray(indices, int)])
        return {"images": self.see(images), **laid_out, "index": np.asarray(indices, np.int32)}

    def open_test(self) -> "PolicyData":
        """Return this data with the test split, for the final evaluation."""
        return dataclasses.replace(self, dataset=self.test.open_test())

    def describe(self) -> str:
        """Return the numbers of questions and images, the lengths of prompts and replies, and how many are cut."""
        lengths, cut, num_cut = self.tokens.lengths, "", self.tokens.num_cut
        if num_cut:
            cut = f" (config.policy.longest_reply cuts {num_cut} of {len(self.tokens.encoded)} training replies)"
        return (
            f"questions: {len(self.dataset.records)} about {self.dataset.num_images} images; tokens: prompts up to "
            f"{lengths.prompt_length}, replies up to {lengths.reply_length}{cut}, vocabulary {lengths.num_words}"
        )

    def check_same_lengths(self) -> None:
        """Refuse records whose lengths or vocabulary size differ from the checkpoint's."""
        if read_lengths(self.workdir) != self.tokens.lengths:
            raise self._other_data()

    def check_same(self, digest: str) -> None:
        """Refuse other records, images or splits."""
        if digest != self.dataset.digest:
            raise self._other_data()

    def _other_data(self) -> BadInput:
        return BadInput(
            f"{self.workdir}: records, images or splits differ from those the run started with; use the same data or a "
            "new workdir"
        )

    def write(self) -> None:
        """Write lengths, vocabulary, the test records and the patients of each split."""
        write_lengths(self.workdir, self.tokens.lengths)
        if (vocabulary := self.tokens.tokenizer.closed) is not None:
            vocabulary.write(self.workdir / VOCABULARY_FILE)
        if self.source is not None:
            self.source.copy_files(self.workdir)
        path = self.workdir / TEST_RECORDS
        path.parent.mkdir(exist_ok=True)
        opened = self.test.open_test()  # copied, not read
        write_vqa_records(path, [opened.records[index] for index in opened.splits["test"]])
        write_patients(self.workdir, self.dataset)


def load_policy_data(
    settings: Settings,
    *,
    workdir: pathlib.Path,
    terminal: Terminal,
    source: QwenSource | None,
    start: StoredPolicy | None,
    patches: PatchInput | None,
    dataset: VqaDataset | None = None,
) -> PolicyData:
    """Return records and pictures, with the records encoded, and for a frozen encoder the pictures too.

    Args:
      dataset: of a caller; None for the one that the settings name.
    """
    encoder = "" if patches is None else patches.digest
    if saved_steps(workdir / "checkpoints"):  # before pictures are encoded
        check_encoder(workdir, read_lengths(workdir), patches)
    loaded = dataset or load_vqa_dataset(settings, progress=lambda items: terminal.watch(items, "images"))
    refuse_seen_patients(settings, loaded)
    view, test = loaded.hold_out()
    tokenizer = None if start is None else start.tokenizer
    tokens = tokenize_records(settings, view, tokenizer, source=source, image_encoder=encoder)
    if patches is not None:
        terminal.say(f"image encoder: {patches.encoder.name}, {patches.shape[0]} patches, frozen")
        processes = Processes(jax.process_index(), jax.process_count(), wait_for_all)
        patches = store_patches(patches, loaded, settings, workdir, terminal, processes=processes)
    return PolicyData(workdir=workdir, dataset=view, test=test, tokens=tokens, source=source, patches=patches)


def store_patches(
    patches: PatchInput,
    dataset: VqaDataset,
    settings: Settings,
    workdir: pathlib.Path,
    terminal: Terminal,
    *,
    processes: Processes = ALONE,
) -> PatchInput:
    """Encode each picture of a dataset once into the run's feature store; return the patches with that store."""
    if not settings.features.store:
        return patches
    num_threads = settings.data.num_threads
    indices = terminal.watch(range(dataset.num_images), "reading pictures")
    keys = map_in_threads(lambda index: patches.key(dataset.pixels[index]), indices, num_threads=num_threads)
    items = [
        ImageItem(key, functools.partial(dataset.pixels.__getitem__, index), f"picture {index}") for index, key in keys
    ]
    spec = describe_image_store(patches.encoder, patches=patches.dtype)  # type: ignore[arg-type]
    with open_run_store(settings, workdir, spec, terminal, processes) as (store, sharing):
        counts = encode_together(
            patches.encoder,
            items,
            store,
            sharing,
            say=terminal.say,
            batch_size=settings.features.batch_size,
            num_threads=num_threads,
            progress=terminal.watch,
        )
        store.refresh()
    store.check_present([item.key for item in items])
    terminal.say(counts.describe("pictures"))
    return dataclasses.replace(patches, store=store)
