"""Peak memory of a run at the published sizes: encoding, and training from stored features. Needs the extra `torch`.

Random weights of CLIP ViT-B/32 and BERT-base are written to a temporary folder, like a user's files. Then the user's
commands run on phantoms at 224 px, each in its own process.
"""

import importlib.util
import json
import pathlib
import string
import subprocess
import sys
import tempfile

NUM_CASES = 200
_CHILD = """
import runpy, sys
from benchmarks.measure import peak_megabytes
sys.argv = sys.argv[1:]
try:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
except SystemExit as stop:
    if stop.code:
        raise
print(peak_megabytes())
"""


def measure_memory(rounds: int) -> dict[str, float]:  # noqa: ARG001 - one run is enough: memory varies little
    """Return the largest resident memory in MB of encoding, and of two epochs of training on the features."""
    if importlib.util.find_spec("torch") is None:
        print("memory: skipped, because it needs torch; pip install -e '.[torch]'")
        return {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_weights(folder)
        arguments = [
            "--config=configs/paper.py",
            f"--config.image_encoder.weights={folder / 'clip'}",
            f"--config.prompts.weights={folder / 'bert'}",
            "--config.data.source=phantom",
            f"--config.phantom.num_cases={NUM_CASES}",
            "--config.phantom.image_size=224",
            "--config.training.teacher_epochs=1",
            "--config.training.joint_epochs=1",
            f"--config.features.folder={folder / 'features'}",
        ]
        encode = _peak_of("stepcot_jax", ["features", *arguments, f"--workdir={folder / 'ahead'}"])
        train = _peak_of("stepcot_jax.main", [*arguments, f"--workdir={folder / 'run'}"])
    return {"encode_peak_megabytes": encode, "train_peak_megabytes": train}


def _peak_of(module: str, arguments: list[str]) -> float:
    command = [sys.executable, "-c", _CHILD, module, *arguments]
    found = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    return float(found.stdout.splitlines()[-1])


def write_weights(folder: pathlib.Path) -> None:
    """Write random weights of CLIP ViT-B/32 and BERT-base at the published sizes, and a small tokenizer."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    transformers.CLIPModel(transformers.CLIPConfig()).save_pretrained(folder / "clip")
    transformers.BertModel(transformers.BertConfig()).save_pretrained(folder / "bert")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *string.punctuation]
    words += [prefix + letter for prefix in ("", "##") for letter in string.ascii_lowercase + string.digits]
    words += [f"[unused{number}]" for number in range(30522 - len(words))]
    (folder / "bert" / "vocab.txt").write_text("\n".join(words) + "\n")
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    (folder / "bert" / "tokenizer_config.json").write_text(json.dumps(settings))
