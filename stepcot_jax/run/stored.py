"""A stored run: its settings as values for readers and exports, the files of its results, and its policy.

`reading/chain.json` has the steps, a vector for each prompt unless the teacher has no text, and the digest of the
frozen encoder. `reading/shapes.json` has the shapes of all parameters.
"""

import collections
import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jaxtyping import Array, Float32, UInt8

from stepcot_jax.chain import Chain
from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.encoders.resnet import make_resnet
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.exported_files import is_export
from stepcot_jax.host.files import digest_file, read_json, write_whole
from stepcot_jax.host.own_folder import check_digests, load, load_arrays, save, save_arrays, write_digests
from stepcot_jax.host.text import escape_markdown
from stepcot_jax.run import networks
from stepcot_jax.run.settings import PATH_KEYS, Settings, make_settings, read_run_settings, write_settings
from stepcot_jax.training.checkpoints import MOST_BYTES, read_best, restore_params
from stepcot_jax.training.state import Params, refuse_misfit

if TYPE_CHECKING:
    from stepcot_jax.data.dataset import Dataset
    from stepcot_jax.data.phantom.phantom import PhantomCase
    from stepcot_jax.data.questions.vqa_dataset import VqaDataset
    from stepcot_jax.features.patch_input import PatchInput
    from stepcot_jax.features.store import FrozenImageEncoder
    from stepcot_jax.policies.policy import AnyPolicy
    from stepcot_jax.policies.policy_files import AnyTokenizer, PolicyLengths
    from stepcot_jax.run.qwen_source import QwenSource
    from stepcot_jax.systems.networks import Networks

CALIBRATION_FILE, PAIRS_FILE, STATISTICS_FILE = "calibration.json", "pairs.json", "statistics.json"
GATE_FILE, JOINT_FILE, NORMAL_FILE = "gate.npz", "joint.json", "normal_picture.npz"
POINTS_FILE = "points.json"
"""Files that a finished run leaves in its workdir."""

CONVERTED_FILE = "converted.json"
"""File of a workdir whose networks were converted from another package's file, with that file's name."""

FOLDER = "reading"
CHAIN_FILE = f"{FOLDER}/chain.json"
SHAPES_FILE = f"{FOLDER}/shapes.json"

RESULT_FILES = (CALIBRATION_FILE, GATE_FILE, JOINT_FILE, NORMAL_FILE, PAIRS_FILE, POINTS_FILE, STATISTICS_FILE)

_MOST_FILE_BYTES = 2**28
_WAY_OUT = "running main again with the same --config and --workdir writes it"


def seal(workdir: pathlib.Path, names: Iterable[str]) -> None:
    """Write the digests of files that a run has written for readers; a name without a file has none."""
    write_digests(workdir, names, way_out=_WAY_OUT)


def check_sealed(workdir: pathlib.Path) -> None:
    """Refuse files that differ from those that the run wrote."""
    check_digests(workdir, way_out=_WAY_OUT)


Shapes = Mapping[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class StoredReading:
    """The questions and prompt vectors of a run."""

    chain: Chain
    text_features: Float32[np.ndarray, "step width"] | None
    encoder_digest: str = ""  # of the frozen image encoder that the networks were trained on; "" without one
    trained_on: str = ""  # the training data in a few words


def write_reading(
    workdir: pathlib.Path, chain: Chain, text_features: Any, *, encoder_digest: str = "", trained_on: str = ""
) -> None:
    """Write what the networks are read with, and its digest."""
    text = None if text_features is None else np.asarray(text_features, np.float32)
    save(workdir / CHAIN_FILE, StoredReading(chain, text, encoder_digest, trained_on))
    seal(workdir, [CHAIN_FILE])


def read_reading(workdir: pathlib.Path) -> StoredReading:
    """Return the questions and prompt vectors that `write_reading` wrote."""
    return load(workdir / CHAIN_FILE, StoredReading, max_bytes=_MOST_FILE_BYTES)


@dataclasses.dataclass(frozen=True)
class _StoredShapes:
    networks: str
    shapes: Shapes


def write_shapes(workdir: pathlib.Path, shapes: Shapes, *, inputs: Sequence[int]) -> None:
    """Write the shapes of a run's parameters, so that readers can check parameters without tracing the networks."""
    save(workdir / SHAPES_FILE, _StoredShapes(_digest_networks(workdir, inputs), shapes))


def read_shapes(workdir: pathlib.Path, *, inputs: Sequence[int]) -> Shapes | None:
    """Return the shapes that `write_shapes` wrote; None without the file or for other settings, questions or inputs."""
    path = workdir / SHAPES_FILE
    if not path.exists():
        return None
    stored = load(path, _StoredShapes)
    return stored.shapes if stored.networks == _digest_networks(workdir, inputs) else None


def _digest_networks(workdir: pathlib.Path, inputs: Sequence[int]) -> str:
    """Return a digest of everything that determines the shapes of parameters."""
    digests = [digest_file(path)[1] for path in (workdir / "settings.json", workdir / CHAIN_FILE)]
    return hashlib.sha256(f"{digests} {list(inputs)}".encode()).hexdigest()


# The mean picture of normal training cases, which maps put in place of parts of a picture (`reading.explain`).


MIN_CASES, MAX_CASES = 30, 500
"""Fewer pictures could be recognised in their mean; of more, the first are taken."""

_NORMAL = "normal"


@dataclasses.dataclass(frozen=True)
class NormalPicture:
    """A mean of pictures at the encoder's size."""

    pixels: UInt8[np.ndarray, "size size 3"]
    num_cases: Annotated[int, msgspec.Meta(ge=MIN_CASES)]


def write_normal_picture(path: pathlib.Path, picture: NormalPicture) -> None:
    """Write a mean picture, atomically."""
    save_arrays(path, {_NORMAL: picture})


def read_normal_picture(path: pathlib.Path, *, size: int) -> NormalPicture | None:
    """Read the mean picture of a run whose encoder takes pictures of `size`; None if the run stored none."""
    picture = load_arrays(path, _NORMAL, NormalPicture)
    if picture is not None and picture.pixels.shape != (size, size, 3):
        raise BadInput(f"{path}: a picture of shape {picture.pixels.shape}; expected {(size, size, 3)}")
    return picture


# The settings of a run as values.


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
        return networks.trained_preprocessing(self.settings)

    def make_networks(self, chain: Chain, *, trains_encoder: bool) -> "Networks":
        """Return the modules of its networks."""
        image_encoder = make_resnet(self.settings.image_encoder.name) if trains_encoder else None
        return networks.make_networks(self.settings, chain, image_encoder)

    def load_frozen(self, workdir: pathlib.Path, digest: str) -> "FrozenImageEncoder | None":
        """Return its frozen encoder, which must have this digest unless it is ""; None if it has none."""
        if not self.settings.image_encoder.is_frozen:
            return None
        frozen = networks.load_frozen_encoder(self.settings)
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


# The policy of a run.


PATIENTS_FILE, TEST_RECORDS = "records/patients.json", "records/test.jsonl"
"""Patients of each split of a policy's run, and its test questions."""

_PHASES = ("dpo", "grpo", "sft")
"""Phases of a run, the last first."""


def write_patients(workdir: pathlib.Path, dataset: "VqaDataset") -> None:
    """Write the patients of each split, for runs that start from this one."""
    patients = {
        split: sorted({dataset.records[index].patient for index in indices})
        for split, indices in dataset.splits.by_name().items()
    }
    path = workdir / PATIENTS_FILE
    path.parent.mkdir(exist_ok=True)
    write_whole(path, f"{json.dumps(patients, ensure_ascii=False)}\n".encode())


def read_patients(workdir: pathlib.Path) -> dict[str, list[str]]:
    """Return the patients of each split of a policy's run."""
    accepted = "expected the patients of a run"
    return read_json(workdir / PATIENTS_FILE, dict[str, list[str]], accepted=accepted, max_bytes=_MOST_FILE_BYTES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredPolicy:
    """The trained policy of a run."""

    workdir: pathlib.Path
    run: StoredRun
    network: Any  # an `AnyPolicy`; that of a Qwen2.5-VL has more, such as `merge`
    params: Params  # as `network.apply` takes them: float32, matrices of a Qwen2.5-VL in its compute dtype
    source: "QwenSource | None"  # of the Qwen2.5-VL that the run started from
    patches: "PatchInput | None"  # of the frozen encoder that the network reads; None if it reads pictures
    tokenizer: "AnyTokenizer"
    lengths: "PolicyLengths"
    phase: str  # of these weights, "sft", "grpo" or "dpo"
    step: int

    @property
    def preprocessing(self) -> Preprocessing:
        """Preprocessing of pictures; boxes of replies refer to the stretched picture."""
        preprocessing = self.run.preprocessing if self.patches is None else self.patches.encoder.preprocessing
        return dataclasses.replace(preprocessing, fit="stretch")

    def see(self, pictures: UInt8[np.ndarray, "case size size 3"]) -> Array:
        """Return pictures, stretched to the policy's size, as the network's input on the default device."""
        given = pictures if self.patches is None else self.patches(pictures)
        return networks.make_normalise(self.run.settings)(jnp.asarray(given))


def read_policy(
    workdir: pathlib.Path,
    *,
    phase: str | None = None,
    for_training: bool = False,
    patches: "PatchInput | None" = None,
) -> StoredPolicy:
    """Return the policy of a run, with the best weights of a phase, by default the last one's.

    `for_training` keeps the parameters as saved, as NumPy arrays, and takes the `patches` of the new run.
    """
    from stepcot_jax.policies.policy_files import read_lengths  # readers of chains need no policy

    settings = read_run_settings(workdir)
    if not settings.trains_policy:
        raise BadInput(
            f"{workdir}: {settings.named_job} trains no policy that answers questions; expected a run of the "
            f"job 'sft', 'grpo' or 'dpo' (stepcot predict reads radiographs with this one)"
        )
    if is_export(workdir):  # its settings would name files of this machine
        raise BadInput(f"{workdir}: an export; a policy is read from the workdir of its run")
    check_sealed(workdir)
    lengths = read_lengths(workdir)
    tokenizer = networks.read_tokenizer(workdir, settings)
    if tokenizer.num_words != lengths.num_words:
        raise BadInput(
            f"{workdir}: the tokenizer has {tokenizer.num_words} words, policy.json {lengths.num_words}; the files "
            "must be of one run"
        )
    source = networks.find_qwen(settings, workdir=workdir)
    network = networks.choose_policy(settings, tokenizer, source)
    if not for_training:
        patches = _load_patches(workdir, settings)
    check_encoder(workdir, lengths, patches)
    expected = _expected_shapes(network, settings, patches)
    phase, step = _find_step(workdir / "checkpoints", phase)
    params = _read_saved(workdir / "checkpoints", step, expected)
    refuse_misfit(f"{workdir}, weights of the policy", params, expected, source="settings.json")
    return StoredPolicy(
        workdir=workdir,
        run=StoredRun(settings),
        network=network,
        params=params if for_training else _put_for_replies(network, params),
        source=source,
        patches=patches,
        tokenizer=tokenizer,
        lengths=lengths,
        phase=phase,
        step=step,
    )


def _load_patches(workdir: pathlib.Path, settings: Settings) -> "PatchInput | None":
    """Return the patches of the run's frozen encoder, if it has one."""
    if not settings.image_encoder.is_frozen:
        return None
    try:
        return networks.load_patches(settings)
    except BadInput as error:
        raise BadInput(f"{workdir / 'settings.json'}: {error}") from None


def check_encoder(workdir: pathlib.Path, lengths: "PolicyLengths", patches: "PatchInput | None") -> None:
    """Refuse a frozen encoder other than the one that a policy was trained on."""
    digest = "" if patches is None else patches.digest
    if digest != lengths.image_encoder:
        from stepcot_jax.policies.policy_files import LENGTHS_FILE

        expected = f"digest {lengths.image_encoder[:12]}" if lengths.image_encoder else "none"
        named = f"{patches.encoder.name}, digest {digest[:12]}" if patches else "none"
        raise BadInput(
            f"{workdir / LENGTHS_FILE}: the frozen encoder that the policy reads is another ({expected}) than that of "
            f"config.image_encoder ({named}); weights, preprocessing, dtype and features.patches must be the same"
        )


def _find_step(folder: pathlib.Path, phase: str | None) -> tuple[str, int]:
    """Return the phase and the update of its best weights; the latest update if nothing was validated."""
    latest, best = read_best(folder)
    if phase is None:
        phase = next((name for name in _PHASES if name in best), _PHASES[-1])
        return phase, best[phase].step if phase in best else latest
    if phase not in best:
        raise BadInput(f"{folder}: no best weights of the phase {phase!r}; found {', '.join(sorted(best)) or 'none'}")
    return phase, best[phase].step


def _read_saved(folder: pathlib.Path, step: int, expected: Any) -> Params:
    """Return the parameters of a checkpoint; a large network may take as many bytes as `expected`."""
    from stepcot_jax.policies.policy import policy_params, split_parts

    most = max(MOST_BYTES, sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(expected)))
    params = restore_params(folder, step, parts=tuple(split_parts(expected, "policy")), most_bytes=most)
    return policy_params(params, "policy")


def _put_for_replies(network: "AnyPolicy", params: Params) -> Params:
    """Return float32 arrays on the default device; matrices of a Qwen2.5-VL in its compute dtype."""

    def put(leaf: Any) -> Any:
        is_rounded = network.is_large and leaf.ndim > 1
        return jnp.asarray(leaf, network.dtype if is_rounded else jnp.float32)

    return jax.tree.map(put, params)


def _expected_shapes(network: "AnyPolicy", settings: Settings, patches: "PatchInput | None") -> Any:
    side = settings.image_encoder.image_size
    images = jnp.zeros((1, side, side, 3) if patches is None else (1, *patches.shape))
    tokens = jnp.zeros((1, 1), jnp.int32)
    return jax.eval_shape(lambda: network.init(jax.random.key(0), images, tokens, tokens[0] + 1, tokens))["params"]
