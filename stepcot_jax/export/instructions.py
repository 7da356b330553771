"""Write the part of an export's README on its use, with a table of its files."""

import json
import pathlib
from collections.abc import Collection, Mapping
from typing import Any

from stepcot_jax.reading.trained_model import Trained
from stepcot_jax.run.stored_reading import CALIBRATION_FILE, CONVERTED_FILE, GATE_FILE, PAIRS_FILE, STATISTICS_FILE

_HERE = pathlib.Path(__file__).parent

RESIZE = {
    "crop": """\
    longest = 4 * min(picture.size)
    if max(picture.size) > longest:
        left, top = (max(0, side - longest) // 2 for side in picture.size)
        width, height = (min(side, longest) for side in picture.size)
        picture = picture.crop((left, top, left + width, top + height))
    width, height = (SIZE * side // min(picture.size) for side in picture.size)
    picture = picture.resize((width, height), Image.Resampling.BICUBIC)
    left, top = (width - SIZE) // 2, (height - SIZE) // 2
    return np.array(picture.crop((left, top, left + SIZE, top + SIZE)))[None]""",
    "pad": """\
    width, height = (max(1, round(side * SIZE / max(picture.size))) for side in picture.size)
    padded = Image.new("L", (SIZE, SIZE))
    padded.paste(picture.resize((width, height), Image.Resampling.BICUBIC), ((SIZE - width) // 2, (SIZE - height) // 2))
    return np.array(padded)[None]""",
    "stretch": """\
    return np.array(picture.resize((SIZE, SIZE), Image.Resampling.BICUBIC))[None]""",
}

_OPTIONAL = {
    "torch_names.safetensors": "parameters under the authors' PyTorch names",
    CALIBRATION_FILE: "temperatures and answer sets, fitted on the validation cases",
    STATISTICS_FILE: "operating points with their figures, and how far answers follow given ones",
    PAIRS_FILE: "counted pairs of answers, for `sc.load(FOLDER, pairs=True)`",
    GATE_FILE: "the gates, for `sc.load`",
    CONVERTED_FILE: "the checkpoint that the run was converted from",
}
"""Files that some exports have."""


def write_instructions(trained: Trained, manifest: Mapping[str, Any], *, written: Collection[str]) -> str:
    """Return this part of the README; `_OPTIONAL` files are listed if they are among those written."""
    models = manifest["models"]
    tensors = sorted({file for model in models.values() for file in model["tensors"]})
    gates = {name: model["gate"] for name, model in models.items() if model.get("gate")}
    files = {
        "load.py": "the loader",
        "exported_files.py": "reads files for the loader",
        "exported_models.py": "reads and checks models for the loader",
        "exported_programs.py": "reads programs for the loader",
        **{model["program"]: f"the {name}, image encoder included" for name, model in models.items()},
        **dict.fromkeys(tensors, "parameters"),
        **{gate["program"]: f"the gate of the {name}: `gate_scores`" for name, gate in gates.items()},
        **{gate["tensors"]: f"parameters of the {name}'s gate" for name, gate in gates.items()},
        **{name: what for name, what in _OPTIONAL.items() if name in written},
        "labels.json": "questions and answers, in the order of the logits",
        "settings.json": "the run's settings; with it `sc.load` reads this folder",
        "preprocessing.json": "from an image file to the model's input",
        "export.json": "the files of each model, versions",
        "check.safetensors": "two images of noise and their logits, for `python load.py`",
        "SHA256SUMS": "digests of all files (`sha256sum -c SHA256SUMS`)",
    }
    others = list(models)[1:]
    return (
        (_HERE / "readme.txt")
        .read_text(encoding="utf-8")
        .format(
            argument="" if not others else f', "{next(iter(models))}"',
            step=json.dumps(trained.chain.steps[-1].name, ensure_ascii=False),
            size=trained.preprocessing.size,
            resize=RESIZE[trained.preprocessing.fit],
            files="\n".join(f"| `{name}` | {what} |" for name, what in files.items()),
            platforms=", ".join(manifest["platforms"]),
        )
    )
