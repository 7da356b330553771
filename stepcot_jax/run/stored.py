"""A stored run as values: those that readers and exports need from its settings.json."""

import collections
import dataclasses
import pathlib
from typing import TYPE_CHECKING

import jax

from stepcot_jax.chain import Chain
from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.encoders.resnet import make_resnet
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import escape_markdown
from stepcot_jax.run.networks import load_frozen_encoder, make_networks, trained_preprocessing
from stepcot_jax.run.settings import PATH_KEYS, Settings, make_settings, read_run_settings, write_settings
from stepcot_jax.systems.networks import Networks
from stepcot_jax.training.state import Params

if TYPE_CHECKING:
    from stepcot_jax.data.dataset import Dataset
    from stepcot_jax.data.phantom.phantom import PhantomCase
    from stepcot_jax.features.store import FrozenImageEncoder


_FRONTAL = frozenset({"AP", "PA"})
_MOST_ORIGINS = 3


def describe_source(settings: Settings) -> str:
    """Return the kind of images that settings name, with the number of cases if they name it.

    >>> from stepcot_jax.run.settings import load_settings
    >>> describe_source(load_settings("quickstart"))
    'phantoms (drawn images), 10,000 cases'
    """
    if settings.data.source == "phantom":
        return f"phantoms (drawn images), {settings.phantom.num_cases:,} cases"
    if settings.data.source == "given":
        return "radiographs that a caller passed to sc.fit"
    return f"radiographs of {pathlib.PurePath(settings.data.root).name or settings.data.root}"


def describe_cases(settings: Settings, dataset: "Dataset") -> str:
    """Return the kind of images of a run, the number of its training cases, their origins and views."""
    train = [dataset.cases[index] for index in dataset.splits.train]
    if settings.data.source == "phantom":
        return f"phantoms (drawn images), {len(train):,} training cases of {settings.phantom.num_cases:,}"
    origins = collections.Counter(case.origin for case in train if case.origin)
    named = ", ".join(origin for origin, _ in origins.most_common(_MOST_ORIGINS))
    more = f" and {len(origins) - _MOST_ORIGINS} more" if len(origins) > _MOST_ORIGINS else ""
    named = f" ({named}{more})" if named else ""
    views = _describe_views([case.view.upper() for case in train])
    return f"{describe_source(settings)}, {len(train):,} training cases{named}, {views}"


def _describe_views(views: list[str]) -> str:
    counts = collections.Counter(views)
    unknown = counts.pop("", 0)
    if not counts:
        return "views not recorded"
    shares = ", ".join(f"{view} {100 * count / len(views):.0f} %" for view, count in counts.most_common(4))
    kind = "frontal" if counts.keys() <= _FRONTAL and not unknown else "views"
    return f"{kind} ({shares}{', others not recorded' if unknown else ''})"


StoredSettings = Settings
"""All settings of a stored run, for tools; readers and exports take the values of `StoredRun`."""

SETTINGS_FILE = "settings.json"
_REMOVED_URL = "https://removed.invalid"


@dataclasses.dataclass(frozen=True)
class StoredRun:
    """The settings of a run, and values derived from them."""

    settings: Settings

    @property
    def names(self) -> tuple[str, ...]:
        """The networks, or phases of a policy, that it trained, in order."""
        return self.settings.trains.names

    @property
    def trains_policy(self) -> bool:
        """Whether it trained a policy, which answers questions."""
        return self.settings.trains_policy

    @property
    def reads_steps(self) -> bool:
        """Whether its networks read the steps of images."""
        return self.problem == ""

    @property
    def problem(self) -> str:
        """The reason why its networks read no steps, or no images; "" if they do."""
        if self.trains_policy:
            return (
                f"{self.settings.named_job} trains a policy, which answers questions and reads no steps; ask it "
                "with stepcot answer"
            )
        if self.settings.job == "baseline" and not self.settings.reads_alone:
            expected = "'teacher', 'distill', or config.baseline.form='heads' or 'student'"
            return f"{self.settings.named_job} of prompts cannot be loaded here; expected {expected}"
        if self.settings.image_encoder.name == "imported":
            return (
                "with config.image_encoder.name='imported' the run cannot read images, as its features were computed "
                "elsewhere; train with the same encoder as 'pretrained' instead (docs/encoders.md lists them)"
            )
        return ""

    @property
    def max_pixels(self) -> int:
        """Largest accepted width times height of an image."""
        return self.settings.data.max_pixels

    @property
    def num_threads(self) -> int:
        """Images decoded at a time."""
        return self.settings.data.decoding_threads

    @property
    def step_costs(self) -> tuple[float, ...]:
        """Costs of asking for each step's answer; () for equal costs."""
        return self.settings.evaluation.step_costs

    @property
    def least_gain(self) -> float:
        """Expected accuracy from which a question is worth asking, 0 to 1."""
        return self.settings.evaluation.least_gain

    @property
    def memory(self) -> tuple[bool, bool]:
        """Whether the teacher has a memory, and whether answers are written back to it."""
        return self.settings.teacher.memory, self.settings.teacher.write_back

    @property
    def dialect(self) -> str:
        """The format of a policy's prompts and replies."""
        return self.settings.vqa.dialect

    @property
    def with_thinking(self) -> bool:
        """Whether a policy's replies have reasoning before the answer."""
        return self.settings.vqa.with_thinking

    @property
    def preprocessing(self) -> Preprocessing:
        """The preprocessing of images for a trained encoder."""
        return trained_preprocessing(self.settings)

    def make_networks(self, chain: Chain, *, trains_encoder: bool) -> Networks:
        """Return the modules of its networks."""
        image_encoder = make_resnet(self.settings.image_encoder.name) if trains_encoder else None
        return make_networks(self.settings, chain, image_encoder)

    def load_frozen(self, workdir: pathlib.Path, digest: str) -> "FrozenImageEncoder | None":
        """Return its frozen encoder, which must have this digest unless it is ""; None if it has none."""
        if not self.settings.image_encoder.is_frozen:
            return None
        frozen = load_frozen_encoder(self.settings)
        if digest and frozen.digest != digest:
            raise BadInput(
                f"{self.settings.image_encoder.weights} has the digest {frozen.digest[:12]}; {workdir} was trained on "
                f"weights with the digest {digest[:12]}"
            )
        return frozen

    def draw(self, number: int) -> "PhantomCase":
        """Return one of its phantoms, drawn again."""
        from stepcot_jax.data.phantom.phantom import draw_case

        phantom = self.settings.phantom
        return draw_case(number, **phantom.drawing)

    @property
    def data_source(self) -> str:
        """The source of its cases, for a model card."""
        settings = self.settings
        if settings.data.source == "phantom":
            phantom = settings.phantom
            return (
                f"{phantom.num_cases:,} drawn chest phantoms, {phantom.prevalence} prevalence, seed {phantom.seed}: no "
                "patients, and no evidence about patients"
            )
        # Only the name: the full path would disclose the layout of a disk.
        root = escape_markdown(pathlib.PurePath(settings.data.root).name)
        return f"{settings.data.source} {root!r}, layout {settings.data.layout}"

    @property
    def prompt_source(self) -> str:
        """The source of the vectors of the teacher's prompts, for a model card; "" without text."""
        prompts = self.settings.prompts
        if not self.settings.teacher.text:
            return ""
        known = {"pretrained": f"encoded by {escape_markdown(prompts.weights)}", "hashed": "fixed random vectors"}
        return known.get(prompts.encoder, "encoded elsewhere")

    def write_shared(self, path: pathlib.Path) -> None:
        """Write the settings without details of its machine: folders become names, the judge's address is removed."""
        values = dataclasses.asdict(self.settings)
        for key in PATH_KEYS:
            section, _, name = key.partition(".")
            if values[section][name]:
                values[section][name] = hide_folder(values[section][name])
        if values["rewards"]["judge_url"]:
            values["rewards"]["judge_url"] = _REMOVED_URL
        write_settings(path, make_settings(values))


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredParts:
    """The networks of a run or of an export, with what they need."""

    chain: Chain
    text_features: jax.Array | None  # float32 [step, width]; None without text
    frozen: "FrozenImageEncoder | None"  # the frozen image encoder; None if the parameters hold one
    preprocessing: Preprocessing  # of the encoder
    params: dict[str, Params]  # by network, its parameter tree
    best_steps: dict[str, int]  # the update of each network's weights
    trained_on: str = ""  # the training data in a few words


def read_stored(workdir: pathlib.Path) -> StoredRun:
    """Return the stored run of a workdir or of an export."""
    if workdir.is_file():
        raise BadInput(
            f"{workdir} is a file; expected the workdir of a run (stepcot convert FILE FOLDER --to jax makes one from "
            "the authors' PyTorch checkpoint)"
        )
    return StoredRun(read_run_settings(workdir))


def hide_folder(source: str) -> str:
    """Return the last part of a path on this machine; a Hugging Face id stays as it is.

    >>> hide_folder("/home/ann/clip"), hide_folder("openai/clip-vit-base-patch32")
    ('clip', 'openai/clip-vit-base-patch32')
    """
    prefix, colon, location = source.rpartition(":")
    path = pathlib.PurePath(location)
    on_disk = (
        path.is_absolute() or location.startswith((".", "~")) or len(path.parts) != 2 or pathlib.Path(location).exists()
    )
    return f"{prefix}{colon}{path.name}" if on_disk else source
