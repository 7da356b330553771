"""Put a large vision-language model through the steps, one more verifiable constraint at a time (paper: Section 4.2).

python -m stepcot_jax.constrain --out DIR                        a simulated model reads phantoms, offline
python -m stepcot_jax.constrain DATA --endpoint URL --model NAME --out DIR
python -m stepcot_jax.constrain DATA --local FOLDER --out DIR    a Qwen2.5-VL on this machine
python -m stepcot_jax.constrain --workdir RUN --split test --endpoint URL --model NAME --out DIR

Pictures are sent to the endpoint that --endpoint names, and nowhere else. For research; not a medical device.
"""

import argparse
from typing import TYPE_CHECKING

from stepcot_jax.annotate.llm.endpoint import Endpoint
from stepcot_jax.host.files import make_workdir

if TYPE_CHECKING:
    from stepcot_jax.readers.reader_cases import CaseSource

_PROGRAM = "python -m stepcot_jax.constrain"
_VARIANTS = ("constraints", "own", "true")  # a test compares them with those of `levels`
_OF_ENDPOINT = ("key_variable", "max_tokens", "max_answer_tokens", "timeout", "attempts", "temperature")
_MAX_MEGAPIXELS = 64.0
_NUM_PHANTOMS = 300


def main(arguments: list[str] | None = None) -> None:
    """Measure a model and write tables, page and replies."""
    options = _parse(arguments)
    endpoint = _make_endpoint(options)
    _check(options)
    # Imported here, as below, so that --help and a wrong flag are fast.
    from stepcot_jax.annotate.output import PAID_FOLDERS
    from stepcot_jax.constrain.asking_levels import REPLIES_NAME
    from stepcot_jax.constrain.level_page import PAGE_NAME
    from stepcot_jax.constrain.level_tables import TABLE_NAMES
    from stepcot_jax.host.outputs import resuming_folder
    from stepcot_jax.tables.constrained_models import FILE_NAME

    source = _open_cases(options)
    with resuming_folder(options.out, paid=PAID_FOLDERS) as out:
        options.out = out.path
        text, size = _measure(options, endpoint, source)
    print(text)
    names = f"{FILE_NAME}, {PAGE_NAME} ({size / 1e6:.1f} MB), {REPLIES_NAME}, {', '.join(TABLE_NAMES)}"
    print(f"in {out.name}: {names}")


def _measure(options: argparse.Namespace, endpoint: Endpoint | None, source: "CaseSource") -> tuple[str, int]:
    """Ask the model and write the results; return the tables as text and the size of the page in bytes."""
    from stepcot_jax.constrain.asking_levels import Asking, run_all, write_replies
    from stepcot_jax.constrain.dialogue_prompts import write_prompt
    from stepcot_jax.constrain.level_page import write_level_page
    from stepcot_jax.constrain.level_results import summarise_levels
    from stepcot_jax.constrain.level_tables import make_tables, to_text
    from stepcot_jax.constrain.levels import choose_levels, list_keys
    from stepcot_jax.constrain.simulated_model import SimulatedModel
    from stepcot_jax.host.locks import lock_folder
    from stepcot_jax.host.terminal import Terminal
    from stepcot_jax.tables.constrained_models import write_constrained
    from stepcot_jax.tables.writing import write_table

    cases, chain = _choose_cases(source, options), source.chain
    levels = choose_levels(options.levels, chain.num_steps)
    variants = [name for name in _VARIANTS if name in options.variants.split(",")]
    num_at_once = 4 if options.concurrency is None else options.concurrency
    asking = Asking(chain, tuple(list_keys(variants, levels)), not options.open_diagnosis, num_at_once)  # type: ignore[arg-type]
    make_workdir(options.out)
    with lock_folder(options.out):
        open_model = _model_opener(options, endpoint, cases, chain)
        replies, model = run_all(cases, open_model, asking, terminal=Terminal())
        about = {
            "model": options.name or model.name,
            "about": model.about,
            "source": source.name,
            "prompt": write_prompt(chain, lists_diagnoses=asking.lists_diagnoses).digest,
            "lists_diagnoses": asking.lists_diagnoses,
        }
        expected = model.expected_accuracy if isinstance(model, SimulatedModel) else None
        drawn = {"num_resamples": options.num_resamples, "seed": options.seed}
        found = summarise_levels(cases, replies, chain, about=about, expected=expected, **drawn)
        tables = make_tables(found)
        for table in tables:
            write_table(options.out, table)
        write_replies(options.out, cases, replies, chain)
        shown = {"num_shown": options.num_shown, "with_pictures": not options.without_pictures}
        size = write_level_page(options.out, found, tables, cases, replies, chain, **shown)
        write_constrained(options.out, found)
    return to_text(found), size
