"""Options that several commands share: the flags of a run, cases of a data root or run, and paths of this machine.

A wrong flag, key or config file ends the program with one line and exit code 2.
"""

import argparse
import ast
import contextlib
import pathlib
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stepcot_jax.host.download import PHANTOM, find_checkpoint, find_path, refuse_address
from stepcot_jax.host.errors import EXIT_BAD_INPUT, BadInput
from stepcot_jax.host.terminal import open_output

if TYPE_CHECKING:
    from stepcot_jax.annotate.llm.client import Endpoint
    from stepcot_jax.data.questions.record_files import VqaCollection
    from stepcot_jax.reading.cases import CaseSource
    from stepcot_jax.reading.question_files import Asker
    from stepcot_jax.record import Record

DIALECTS = ("gemex", "gemex_plain", "lvkc", "lvkc_released", "medclm", "plain")  # a test compares them with the room's
_OF_ENDPOINT = ("key_variable", "max_tokens", "timeout", "attempts", "temperature")
OF_READER = f"of a run or an export; or gs://, hf://OWNER/NAME; or {PHANTOM}, the shipped reader of drawn chests"
OF_RUN = "of a run of the job sft or grpo; or gs://, hf://"
PHASE = "phase whose best weights answer; default: the last"
NETWORKS = ("teacher", "student", "plain")
_CONFIG_FLAGS = ("config", "target_config")


def local_path(text: str) -> pathlib.Path:
    """Return the path that an argument names; the `type=` of argparse for every folder and file that is written."""
    try:
        refuse_address(text)
    except BadInput as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not text:
        raise argparse.ArgumentTypeError("'' names nothing; expected a path")
    return pathlib.Path(text)


def add(parser: Any, flag: str, text: str, default: Any = None, **how: Any) -> None:
    """Add an argument: "--name VALUE", "--number N", "--switch", or a positional "NAME"."""
    name, _, value = flag.partition(" ")
    how |= {"metavar": value or name} if value or name.isupper() else {}
    how |= {} if default is None else {"default": default}
    if value in ("N", "M", "T") or isinstance(default, int):
        how.setdefault("type", int)
    elif name.startswith("--") and not value and not {"action", "choices", "type"} & how.keys():
        how["action"] = "store_true"
    parser.add_argument(name.lower(), help=text, **how)


def add_network(parser: argparse.ArgumentParser) -> None:
    """Add the option that chooses one of a run's networks."""
    add(parser, "--model", "default: the run's best on validation", choices=NETWORKS)


def add_layout(parser: argparse.ArgumentParser, known: Sequence[str] = ()) -> None:
    """Add the option that chooses the layout of a folder: one of `known`, by default those of questions."""
    from stepcot_jax.data.sources.layout_table import AUTO, QUESTIONS

    add(parser, "--layout", "default: detected from the files", AUTO, choices=(AUTO, *(known or QUESTIONS)))


def add_box_size(parser: argparse.ArgumentParser) -> None:
    """Add the option of the size that a release's boxes refer to."""
    size = "pixels of the picture that boxes refer to: required for GEMeX as released"
    parser.add_argument("--box-size", type=int, nargs=2, metavar=("W", "H"), help=size)


def add_reading(parser: argparse.ArgumentParser) -> None:
    """Add the options of which questions are read, and how."""
    add_layout(parser)
    add_box_size(parser)
    add(parser, "--unseen", "leave out questions about a picture that stands in the training part too")
    parser.add_argument("--split", default="test", help="train, val, test (default) or all")
    add(parser, "--on-bad-record", "default stop", "stop", choices=("stop", "skip"))


def read_split(options: argparse.Namespace, name: str, flag: str) -> "tuple[VqaCollection, list[Record]]":
    """Return the questions that an argument names, and those of the chosen split."""
    from stepcot_jax.data.questions.question_splits import SEEN
    from stepcot_jax.data.sources.layouts import read_vqa_source
    from stepcot_jax.reading.scored_file import choose_split

    how: Any = {"on_bad_record": options.on_bad_record, "layout": options.layout, "require_images": False}
    how["box_size"] = options.box_size and tuple(options.box_size)
    collection = read_vqa_source(find_path(name, flag), **how)
    if collection.set_aside:
        what = f"{len(collection.set_aside)} bad {collection.unit}s set aside"
        print(f"{collection.path}: {what}, {collection.set_aside[0].reason}")
    chosen = choose_split(collection.records, options.split, where=str(collection.path))
    if options.unseen:
        unseen = [record for record in chosen if SEEN not in record.facts]
        print(f"--unseen: {len(unseen)} of {len(chosen)} questions; the others' pictures stand in the training part")
        chosen = choose_split(unseen, "all", where=f"{collection.path} with --unseen")
    return collection, chosen


def add_model(
    parser: argparse.ArgumentParser, *, units: str, at_once: str, url: str | None = None
) -> "argparse._ArgumentGroup":
    """Add the options of a model behind an endpoint, by default `url`; without one it may be on this machine."""
    from stepcot_jax.annotate.llm.client import DEFAULT_KEY_VARIABLE

    model = parser.add_argument_group("model", "OpenAI-compatible endpoint (extra: annotate); with vision for images")
    if url is None:
        here = "a Qwen2.5-VL: folder or Hugging Face id; runs on this machine, pictures do not leave it"
        add(model, "--local FOLDER", here)
    address = f"address with version{f', default {url}' if url else ', pictures go only there'}"
    model.add_argument("--endpoint", "--base-url", default=url, metavar="URL", help=address)
    add(model, "--model NAME", "name at the endpoint")
    add(model, "--key-variable NAME", f"environment variable, default {DEFAULT_KEY_VARIABLE}")
    add(model, "--max-tokens N", "spending cap of all ledgers of --out together")
    add(model, "--max-answer-tokens N", "of one reply, default 2048")
    add(model, "--concurrency N", f"{units} at once, default {at_once}")
    add(model, "--timeout SECONDS", "of a request, default 120", type=float)
    add(model, "--attempts N", "until a request is given up, default 8")
    model.add_argument("--temperature", type=float, help="default 0")
    omit = "decoding setting that an endpoint refuses; may be repeated"
    add(model, "--omit", omit, [], choices=("temperature", "seed"), action="append")
    return model


def read_endpoint(options: argparse.Namespace) -> "Endpoint | None":
    """Return the endpoint of `add_model`'s options; None without one, which no other of its options may then need."""
    check_numbers(options, "max_tokens", "max_answer_tokens", "concurrency")
    if bool(options.endpoint) != bool(options.model):
        raise BadInput("--endpoint URL and --model NAME are required together")
    if not options.model:
        given = [name for name in _OF_ENDPOINT if getattr(options, name) is not None]
        if given or options.omit:
            raise BadInput(f"--{(*given, 'omit')[0].replace('_', '-')} requires --endpoint URL and --model NAME")
        return None
    return make_endpoint(options, options.model, options.endpoint)


def make_endpoint(options: argparse.Namespace, model: str, address: str, **changes: Any) -> "Endpoint":
    """Return an endpoint with the requests' options of `add_model`."""
    from stepcot_jax.annotate.llm.client import Endpoint

    names = ("key_variable", "max_answer_tokens", "timeout", "temperature", "seed", "attempts")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    chosen = {"num_attempts" if name == "attempts" else name: value for name, value in given.items()}
    return Endpoint(model, address, **{**chosen, **dict.fromkeys(options.omit), **changes})


def prepare_reading() -> None:
    """Use compiled programs of before, and leave out Orbax's warning of every restore without an optimizer."""
    from absl import logging

    from stepcot_jax.host.machine import use_compilation_cache

    use_compilation_cache()
    logging.set_verbosity(logging.ERROR)


def add_asker(parser: argparse.ArgumentParser) -> None:
    """Add the options of the model that answers a file of questions: a run, a Qwen2.5-VL or an endpoint."""
    add(parser, "--num-questions N", "draw N questions, default all; a rerun with more asks only the others")
    add(parser, "--dialect", "form to ask for; default: the run's own, else gemex", choices=DIALECTS)
    add(parser, "--without-thinking", "do not ask for reasoning before the answer")
    add(parser, "--image-size N", "longer side of the pictures that a large model is shown, in pixels, default 1024")
    add(parser, "--checkpoint RUN", OF_RUN)
    add(parser, "--phase", PHASE, choices=("sft", "grpo", "dpo"))
    parser.add_argument("--seed", type=int, help="of an endpoint's decoding, default 0")
    add_model(parser, units="questions", at_once="32 with --checkpoint, 8 with --local, 4 with --endpoint")


def check_asker(options: argparse.Namespace) -> "Endpoint | None":
    """Check the options of `add_asker`, which name one model, or REPLIES where a command takes them."""
    replies = getattr(options, "replies", None)
    if sum(map(bool, (replies, options.checkpoint, options.local, options.endpoint or options.model))) != 1:
        models = "--checkpoint RUN, --local FOLDER, and --endpoint URL with --model NAME"
        raise BadInput(f"one of {models} is required{', or REPLIES alone' * ('replies' in options)}")
    check_numbers(options, "num_questions")
    check_numbers(options, "image_size", least=32)
    for name, kind in (("phase", "checkpoint"), ("seed", "endpoint")):
        if getattr(options, name) is not None and not getattr(options, kind):
            raise BadInput(f"--{name} requires --{kind}")
    if options.checkpoint and (options.image_size or options.max_answer_tokens):
        raise BadInput("--image-size and --max-answer-tokens have no effect with --checkpoint; those of the run apply")
    if replies and (options.image_size or options.max_answer_tokens or options.concurrency):
        raise BadInput("--image-size, --max-answer-tokens and --concurrency have no effect with REPLIES")
    return read_endpoint(options)


def open_asker(
    options: argparse.Namespace, endpoint: "Endpoint | None", ledger: pathlib.Path
) -> "tuple[Asker, str, bool]":
    """Return the model, the dialect to ask it in, and whether to ask for reasoning."""
    from stepcot_jax.reading.askers import endpoint_asker, local_asker, run_asker
    from stepcot_jax.reading.chat_models import LONGEST_REPLY
    from stepcot_jax.reading.policy_reader import load_reader

    with_thinking = not options.without_thinking
    at_once = {} if options.concurrency is None else {"num_at_once": options.concurrency}
    dialect, side = options.dialect or DIALECTS[0], options.image_size or 1024
    if endpoint is not None:
        how = {"folder": ledger, "cap": options.max_tokens}
        return endpoint_asker(endpoint, **how, longest_side=side, **at_once), dialect, with_thinking
    prepare_reading()
    if options.local:
        longest = options.max_answer_tokens or LONGEST_REPLY
        return local_asker(options.local, longest=longest, longest_side=side, **at_once), dialect, with_thinking
    reader = load_reader(find_checkpoint(options.checkpoint), phase=options.phase)
    run, dialect = reader.trained.run, options.dialect or reader.trained.run.dialect
    if dialect not in DIALECTS:
        raise BadInput(f"--dialect is required: the run writes {dialect}, which stepcot constrain asks for")
    return run_asker(reader, **at_once), dialect, run.with_thinking and with_thinking


def check_numbers(options: argparse.Namespace, *names: str, least: int = 1) -> None:
    """Refuse numbers below the least."""
    for name in names:
        value = getattr(options, name)
        if value is not None and value < least:
            raise BadInput(f"--{name.replace('_', '-')}: {value} must be at least {least}")


class ReadStepNames(argparse.Action):
    """Take step names as words, as one word with commas, or as the Python tuple that `config.data.step_names` is."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: Any) -> None:
        """Store the names."""
        if len(values) == 1 and values[0].lstrip()[:1] in ("(", "["):
            try:
                values = tuple(map(str, ast.literal_eval(values[0])))
            except (SyntaxError, TypeError, ValueError):
                parser.error(f"--step-names: {values[0][:80]!r} is not a list of names; expected words or ('A', 'B')")
        elif len(values) == 1:  # "A,B": two names
            values = [name.strip() for name in values[0].split(",")]
        setattr(namespace, self.dest, tuple(values))


def add_cases(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `open_cases`."""
    add(parser, "DATA", "a data root in any layout; or gs://", nargs="?")
    add(parser, "--workdir RUN", "cases that a finished run has predicted; DATA overrides its data root")
    add(parser, "--split", "of --workdir, default test", choices=("val", "test"))
    parser.add_argument("--layout", help="of DATA without --workdir; default: recognised by the files")


def open_cases(options: argparse.Namespace) -> "CaseSource":
    """Open a data root, or a split of a finished run."""
    from stepcot_jax.data.images.image_decoding import MAX_PIXELS
    from stepcot_jax.reading.cases import open_data, open_run

    data = None if options.data is None else find_path(options.data, "DATA")
    if options.workdir is not None:
        if options.layout is not None:
            raise BadInput("--layout is accepted only without --workdir; the settings of the run apply")
        return open_run(find_path(options.workdir, "--workdir"), options.split or "test", root=data)
    if options.split is not None:
        raise BadInput("--split is accepted only with --workdir (a finished run)")
    if data is None:
        raise BadInput("DATA (a data root) or --workdir (a finished run) is required")
    return open_data(data, max_pixels=MAX_PIXELS, **({"layout": options.layout} if options.layout else {}))


def define_flags() -> None:
    """Define the flags of a run: `--config`, one flag for each of its keys, `--workdir` and the process flags."""
    from absl import flags  # here, as below, so that --help of commands without these flags is fast
    from ml_collections import config_flags

    config_flags.DEFINE_config_file("config", None, "Name of a shipped config, such as quickstart, or path of a file.")
    flags.DEFINE_string("workdir", None, "Folder for checkpoints, logs and the report; or gs://.")
    flags.DEFINE_string("coordinator", None, "HOST:PORT of process 0; needed where the platform does not provide it.")
    flags.DEFINE_integer("num_processes", None, "Number of processes; checked where the platform provides it.")
    flags.DEFINE_integer("process_id", None, "Index of this process, from 0; needed where the platform has none.")
    flags.mark_flags_as_required(["config", "workdir"])


def parse(arguments: list[str], *, example: str = "quickstart") -> list[str]:
    """Parse the command line with absl and return the positional arguments, program name first."""
    from absl import flags

    from stepcot_jax.run.configs import configs_importable, find_config
    from stepcot_jax.run.fields import describe_key
    from stepcot_jax.run.settings import Settings

    open_output()  # this runs before `run_tool`
    accepted: dict[str, tuple[str, str]] = {}
    try:
        for argument in arguments[1:]:
            if match := re.match(r"--?(?:no)?(config\.[\w.]+)(?:=(.*))?", argument, re.S):
                accepted[match[1]] = (match[2], describe_key(Settings, match[1]))
        arguments = _resolve_configs(arguments)
        paths = [find_config(path.split(":", 1)[0]) for _, path in _find_configs(arguments)]
        with configs_importable(*paths) if paths else contextlib.nullcontext():
            return flags.FLAGS(arguments)
    except SystemExit:  # --help, which absl ends with 1
        sys.exit(0)
    except BadInput as error:
        message = str(error)
    except flags.IllegalFlagValueError as error:
        flag = re.match(r"flag --([\w.]+)=", str(error))
        message = str(error)
        if flag and flag[1] in accepted:
            value, expected = accepted[flag[1]]
            message = f"{flag[1]}: {value!r} is not {expected}"
        elif missing := re.match(r"flag --(\w+)=None", message):
            config = f"a shipped config such as {example}, or the path of a file"
            message = f"--{missing[1]} is required ({config if missing[1] == 'config' else 'a writable folder'})"
    except flags.Error as error:
        message = f"{error} (try --help)"
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(EXIT_BAD_INPUT)


def _find_configs(arguments: list[str]) -> list[tuple[int, str]]:
    configs = []
    for position, argument in enumerate(arguments[1:], start=1):
        flag, separator, value = argument.lstrip("-").partition("=")
        if argument.startswith("-") and flag in _CONFIG_FLAGS:
            at = position + (not separator)  # the value may be the next word
            configs += [(at, value if separator else arguments[at])] if at < len(arguments) else []
    return configs


def _resolve_configs(arguments: list[str]) -> list[str]:
    from stepcot_jax.run.configs import find_config, load_config

    resolved = list(arguments)
    for position, value in _find_configs(arguments):
        load_config(value)
        name, *argument = value.split(":", 1)
        flag = arguments[position].partition("=")[0] + "=" if arguments[position].startswith("-") else ""
        resolved[position] = flag + ":".join([str(find_config(name)), *argument])
    return resolved
