"""A small folder of cases with hostile words in it, samples of it, and forms filled by functions."""

import csv
import io

import numpy as np
from evaluation.small_splits import of_arrays
from PIL import Image, PngImagePlugin

from configs import quickstart
from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED, Chain, Step
from stepcot_jax.data.records.records import write_records
from stepcot_jax.evaluation.predictions import write_predictions
from stepcot_jax.reading.cases import open_data
from stepcot_jax.record import Record
from stepcot_jax.run.settings import make_settings, write_settings
from stepcot_jax.tools.readers.forms import write_sample

SECRETS = ("PATIENT", "SECRETREPORT", "SECRETREASON", "SECRETORIGIN", "SECRETNAME", "SECRETTEXT")
HOSTILE = '</script><script>alert("1")</script>, "quoted"; Größe?'
CHAIN = Chain(
    (
        Step(DEFAULT_CHAIN.steps[0].name, HOSTILE, DEFAULT_CHAIN.steps[0].options),
        *DEFAULT_CHAIN.steps[1:6],
        Step("Diagnosis", "=What is it?", DEFAULT_CHAIN.steps[6].options),
    )
)
DIAGNOSES = (0,) * 12 + (1,) * 8 + (7,) * 4 + (NOT_ANNOTATED,) * 2


def make_cases(diagnoses=DIAGNOSES):
    rng = np.random.default_rng(0)
    cases = []
    for number, diagnosis in enumerate(diagnoses):
        labels = [int(rng.integers(step.num_answers)) for step in CHAIN.steps[:6]]
        if number % 5 == 0:
            labels[2] = NOT_ANNOTATED
        cases.append(
            Record(
                patient=f"PATIENT{number // 2}",
                image=f"images/SECRETNAME_{number}.png",
                origin="SECRETORIGIN",
                report=f"SECRETREPORT {number}",
                answers=(*labels, diagnosis),
                reasoning=("SECRETREASON",) * 7,
            )
        )
    return cases


def write_folder(root, cases=None):
    cases = make_cases() if cases is None else cases
    (root / "images").mkdir(parents=True)
    rng = np.random.default_rng(1)
    for case in cases:
        text = PngImagePlugin.PngInfo()
        text.add_text("Comment", "SECRETTEXT")
        pixels = rng.integers(0, 256, (12, 10), dtype=np.uint8)
        Image.fromarray(pixels).save(root / case.image, format="PNG", pnginfo=text, icc_profile=b"SECRETTEXT")
    write_records(root, chain=CHAIN, cases=cases)
    return root


def write_run(workdir, cases, **changes):
    """What a run leaves of itself, as far as a sample needs it."""
    config = quickstart.get_config()
    config.update_from_flattened_dict({name.replace("__", "."): value for name, value in changes.items()})
    (workdir / "predictions").mkdir(parents=True)
    write_settings(workdir / "settings.json", make_settings(config))
    chain = DEFAULT_CHAIN if "data__root" not in changes else CHAIN
    labels = np.array([case.answers for case in cases], np.int32)
    logits = {"teacher": np.zeros((*labels.shape, 9), np.float32)}
    paths, patients = [case.image for case in cases], [case.patient for case in cases]
    split = of_arrays(labels, logits, case_id=paths, image_path=paths, patient_id=patients)
    write_predictions(workdir / "predictions" / "test.npz", split, chain)
    return workdir


def make_sample(folder, root, *, readers=("Ann", "Bo"), num_cases=12, **options):
    source = open_data(root, max_pixels=10_000)
    return write_sample(folder, source, readers=readers, num_cases=num_cases, **options)


def read_cells(path):
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig"), newline="")))


def write_cells(path, rows, **format_of):
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), **format_of)
    writer.writeheader()
    writer.writerows(rows)
    path.write_text(text.getvalue(), encoding="utf-8", newline="")
    return path


def fill(path, key, labels, *, out=None, change=lambda rows: None):
    """Fill a CSV form with labels [case, step] in the key's order and then with `change`."""
    rows = read_cells(path)
    for row in rows:
        place = int(row["step"].removeprefix("Step ")) - 1
        row["answer"] = key.chain.steps[place].written(int(labels[int(row["case"]) - 1][place]))
    change(rows)
    return write_cells(out or path, rows)


def guess(key, seed):
    """Answers [case, step] of someone who guesses half of the questions."""
    rng = np.random.default_rng(seed)
    guesses = np.stack([rng.integers(number, size=len(key.cases)) for number in key.chain.answers_per_step], axis=1)
    truth = np.array([case.labels for case in key.cases])
    return np.where((rng.random(truth.shape) < 0.5) & (truth != NOT_ANNOTATED), truth, guesses)
