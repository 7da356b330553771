"""Write the README of an export."""

import json
from collections.abc import Mapping
from typing import Any

from stepcot_jax.predict.trained_model import Trained

_RESIZE = {
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

_TEXT = """\
# Step-CoT, exported

**Not a medical device.** Intended use, training data and limits: [MODEL_CARD.md](MODEL_CARD.md).

Needs only Python 3.11 or later and `pip install jax numpy`. Images are uint8 or normalised float32, see
`preprocessing.json`.

```python
from load import load  # from inside this folder

model = load("."{argument})
answers, probabilities = model(images)[{step}]
logits = model.logits(images)  # float32 [case, step, answer]
```

Any number of images works; each number is compiled once, so keep it constant. To preprocess an 8-bit grey PNG or JPEG
(with `pip install pillow`):

```python
import numpy as np
from PIL import Image, ImageOps

SIZE = {size}


def read(path):
    picture = ImageOps.exif_transpose(Image.open(path)).convert("L")
{resize}
```

`python load.py` checks that this machine computes the same logits as the machine of the export.

| file | content |
|---|---|
{files}

`jax.export` (jax {jax}) wrote the `.stablehlo` files, for {platforms}; `model.stablehlo()` returns the program as text.
JAX reads them for at least six months after that version; the tensors stay readable as safetensors. The loader refuses
files that differ from `SHA256SUMS`, and programs with custom calls. Use exports only from sources whose programs you
would run.
"""


def write_instructions(trained: Trained, manifest: Mapping[str, Any], *, torch_names: bool) -> str:
    """Return the README as Markdown.

    Args:
      trained: the run.
      manifest: content of export.json.
      torch_names: whether the export has a file with the authors' names.
    """
    models = manifest["models"]
    tensors = sorted({file for model in models.values() for file in model["tensors"]})
    files = {
        "load.py": "the loader",
        **{model["program"]: f"the {name}, image encoder included" for name, model in models.items()},
        **dict.fromkeys(tensors, "parameters"),
        **({"torch_names.safetensors": "parameters under the authors' PyTorch names"} if torch_names else {}),
        "labels.json": "questions and answers, in the order of the logits",
        "preprocessing.json": "from an image file to the model's input",
        "export.json": "the files of each model, temperatures, versions",
        "check.safetensors": "two images of noise and their logits, for `python load.py`",
        "SHA256SUMS": "digests of all files (`sha256sum -c SHA256SUMS`)",
    }
    others = list(models)[1:]
    return _TEXT.format(
        argument="" if not others else f', "{next(iter(models))}"',
        step=json.dumps(trained.chain.steps[-1].name, ensure_ascii=False),
        size=trained.preprocessing.size,
        resize=_RESIZE[trained.preprocessing.fit],
        files="\n".join(f"| `{name}` | {what} |" for name, what in files.items()),
        jax=manifest["made_with"]["jax"],
        platforms=", ".join(manifest["platforms"]),
    )
