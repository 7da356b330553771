"""Put a large vision-language model through the steps, one more verifiable constraint at a time (paper: Section 4.2).

Pictures are sent to the endpoint that --endpoint names, and nowhere else. For research; not a medical device.
"""

import argparse
import functools
from typing import TYPE_CHECKING

from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.host.files import make_workdir
from stepcot_jax.tools.options import add, add_cases, add_model, check_numbers, local_path, open_cases, read_endpoint

if TYPE_CHECKING:
    from stepcot_jax.annotate.llm.client import Budget, Endpoint
    from stepcot_jax.annotate.llm.prompts import Prompt
    from stepcot_jax.reading.cases import CaseSource
    from stepcot_jax.reading.chat_models import Model
    from stepcot_jax.tools.constrain.asking_levels import AskedCase

_VARIANTS = ("constraints", "own", "true")  # a test compares them with those of `levels`


def main(arguments: list[str] | None = None) -> None:
    """Measure a model and write tables, figures and replies."""
    options = _parse(arguments)
    endpoint = read_endpoint(options)
    _check(options)
    from stepcot_jax.evaluation.published import FILE_NAME
    from stepcot_jax.host.files import lock_folder
    from stepcot_jax.host.own_folder import save
    from stepcot_jax.host.terminal import Terminal
    from stepcot_jax.pages.sheets import write_table
    from stepcot_jax.reasoning.levels import list_keys
    from stepcot_jax.tools.constrain.asking_levels import REPLIES_NAME, Asking, run_all, write_replies
    from stepcot_jax.tools.constrain.levels import choose_levels, write_prompt
    from stepcot_jax.tools.constrain.results import TABLE_NAMES, make_tables, summarise_levels, to_text

    source = open_cases(options)
    cases, chain = _choose_cases(source, options), source.chain
    levels = choose_levels(options.levels, chain.num_steps)
    variants = [name for name in _VARIANTS if name in options.variants.split(",")]
    num_at_once = 4 if options.concurrency is None else options.concurrency
    asking = Asking(chain, tuple(list_keys(variants, levels)), not options.open_diagnosis, num_at_once)  # type: ignore[arg-type]
    prompt = write_prompt(chain, lists_diagnoses=asking.lists_diagnoses)
    open_model = functools.partial(_open_model, options, endpoint, prompt)  # in the loop that asks
    make_workdir(options.out)
    with lock_folder(options.out):
        replies, model = run_all(cases, open_model, asking, terminal=Terminal())
        about = {"model": options.name or model.name, "about": model.about, "source": source.name}
        about |= {"prompt": prompt.digest, "lists_diagnoses": asking.lists_diagnoses}
        drawn = {"num_resamples": options.num_resamples, "seed": options.seed}
        results = summarise_levels(cases, replies, chain, about=about, **drawn)
        for table in make_tables(results):
            write_table(options.out, table)
        write_replies(options.out, cases, replies, chain)
        save(options.out / FILE_NAME, results)
    print(to_text(results))
    print(f"in {options.out}: {FILE_NAME}, {REPLIES_NAME}, {', '.join(TABLE_NAMES)}")


def _check(options: argparse.Namespace) -> None:
    if bool(options.local) == bool(options.endpoint):
        raise BadInput("either --endpoint URL with --model NAME or --local FOLDER is required")
    if options.local and options.concurrency is not None:
        raise BadInput(
            f"--concurrency: {options.concurrency} has no effect with --local, which asks one case at a time"
        )
    check_numbers(options, "num_cases", "num_resamples")
    check_numbers(options, "seed", least=0)
    unknown = [name for name in options.variants.split(",") if name not in _VARIANTS]
    if unknown:
        raise BadInput(f"--variants: {unknown[0][:80]!r} is not one of {', '.join(_VARIANTS)}")
    if not 32 <= options.image_size <= 4096:
        raise BadInput(f"--image-size: {options.image_size} is not 32 to 4096 pixels")


def _choose_cases(source: "CaseSource", options: argparse.Namespace) -> "list[AskedCase]":
    """Return the cases with a diagnosis, or a sample of them in their order."""
    import numpy as np

    from stepcot_jax.reading.chat_models import ShownImage
    from stepcot_jax.tools.constrain.asking_levels import AskedCase

    chosen = list(source.diagnosed)
    if not chosen:
        raise BadInput(f"{source.name}: no case has a diagnosis to compare with")
    if options.num_cases and options.num_cases < len(chosen):
        drawn = np.random.default_rng(options.seed).permutation(len(chosen))[: options.num_cases]
        chosen = [chosen[index] for index in sorted(drawn.tolist())]
    asked = []
    for index in chosen:
        case = source.cases[index]
        image = ShownImage(functools.partial(source.picture, index), longest_side=options.image_size)
        asked.append(AskedCase(case.image, case.patient, case.answers, image))
    return asked


def _open_model(options: argparse.Namespace, endpoint: "Endpoint | None", prompt: "Prompt") -> "tuple[Model, Budget]":
    from stepcot_jax.annotate.llm.client import Budget
    from stepcot_jax.annotate.output import LEDGER_FOLDER
    from stepcot_jax.reading.chat_models import LONGEST_REPLY, EndpointModel, LocalModel

    folder = options.out / LEDGER_FOLDER
    if endpoint is None:
        longest = options.max_answer_tokens or LONGEST_REPLY
        return LocalModel(options.local, prompt, folder=folder, longest=longest), Budget(None)
    model = EndpointModel(endpoint, prompt, folder=folder, cap=options.max_tokens)
    return model, model.budget


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="stepcot constrain",
        description="Ask a large vision-language model for diagnoses, with the first 0 to 7 steps as constraints.",
        epilog="For research; not a medical device.",
    )
    add_cases(parser)
    add(parser, "--out DIR", "folder of results and ledger", type=local_path, required=True)
    add(parser, "--num-cases N", "draw N cases; default all")
    add(parser, "--levels LIST", "such as 0,1,7; default 0 to the number of steps")
    given = f"earlier answers, a list of {', '.join(_VARIANTS)}; default all"
    add(parser, "--variants LIST", given, ",".join(_VARIANTS))
    unlisted = "do not list the diagnoses below the last level; a reply counts as the one that it mentions"
    add(parser, "--open-diagnosis", unlisted)
    add(parser, "--image-size N", "longer side of the pictures in pixels, 32 to 4096, default 512", 512)
    parser.add_argument("--name", help="of the model in tables, default its name")
    add(parser, "--num-resamples N", "of the bootstrap, default 1000", 1000)
    add(parser, "--seed", "of draws, bootstrap and decoding, default 0", 0)
    add_model(parser, units="cases", at_once="4; --local: one, always")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_tool(main)
