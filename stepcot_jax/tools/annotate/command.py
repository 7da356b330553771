"""Make chains from radiology reports and reasoning from boxes, compare annotators, and review the records.

Also the commands vqa, merge, agree, review-out, review-in and coding, each with a --help.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stepcot_jax.annotate.llm.client import DEFAULT_BASE_URL, Endpoint
from stepcot_jax.host.download import find_path
from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.tools.options import add, add_layout, add_model, local_path, make_endpoint, read_endpoint

if TYPE_CHECKING:
    from stepcot_jax.annotate.agreement import Aligned
    from stepcot_jax.annotate.runner import Plan
    from stepcot_jax.host.extras import MapBlocks

_OUT = "folder of result and ledgers"

VOTER_FIELDS = ("base-url", "key-variable")
_LVKC_FLAGS = ("num_regions", "num_templates", "knowledge", "region_passes", "region_share")
TASK_FLAGS = {
    "lvkc": (*_LVKC_FLAGS, "instructions", "rl_sample", "rl_balance"),
    "medclm": ("host_organ", "masks", "organ_prior"),
    "rmcot": ("grounded",),
}
"""Flags of `annotate vqa` that only one task uses."""


def _annotate_parser() -> argparse.ArgumentParser:
    prog = "stepcot annotate"
    others = "vqa, merge, agree, review-out, review-in, coding"
    also = f"Also the commands {others}; each has a --help."
    parser = argparse.ArgumentParser(prog=prog, description="Make chains from reports.", epilog=also)
    add(parser, "REPORTS", "IU X-Ray, published layout, .csv or .jsonl; also on gs://")
    add(parser, "--chain DATA", "folder whose data.json has the chain to answer; or gs://")
    add(parser, "--shard I/N", "annotate only part I of N of the reports (I from 0), by a hash of the id; see merge")
    ray = parser.add_argument_group("Ray", "The rules on several processes or machines (extra: ray).")
    engine = "what annotates: this process, or a Ray cluster; default local"
    add(ray, "--engine", engine, "local", choices=("local", "ray"))
    add(ray, "--ray-address ADDRESS", "of the cluster; default RAY_ADDRESS, or else one on this machine", "")
    add(ray, "--ray-workers N", "processes, default 2", 2)
    _add_run_flags(parser)
    return parser


def _merge_parser() -> argparse.ArgumentParser:
    prog = "stepcot annotate merge"
    parser = argparse.ArgumentParser(prog=prog, description="Merge the folders of all shards into one result.")
    parser.add_argument("shards", nargs="+", metavar="SHARD", help="folder of a run with --shard; or gs://")
    add(parser, "--out DIR", _OUT, type=local_path, required=True)
    add(parser, "--overwrite", "replace an earlier result in DIR")
    return parser


def _vqa_parser() -> argparse.ArgumentParser:
    prog = "stepcot annotate vqa"
    parser = argparse.ArgumentParser(prog=prog, description="Make reasoning records from questions or boxes.")
    add(parser, "SOURCE", "questions, boxes or grounded reports in any layout of docs/sources.md; also on gs://")
    tasks = "rmcot: thinking with regions; lvkc: four stages; medclm: easy, medium and hard views"
    add(parser, "--task", tasks, choices=("rmcot", "lvkc", "medclm"), required=True)
    add_layout(parser)
    size = ("WIDTH", "HEIGHT")
    parser.add_argument("--box-size", type=int, nargs=2, metavar=size, help="GEMeX, MEDSAGE: of the boxes")
    add(parser, "--question-seed N", "of questions and boxes, default 0", 0)
    normal = "also ask about images of a detection list that have no box because the source denies findings"
    add(parser, "--with-normal", normal)
    add(parser, "--grounded FILE", "rmcot: JSON lines of the grounded reports of SOURCE's images; or gs://")
    add(parser, "--num-regions M", "lvkc: box variants, 0 to 4, default 1")
    add(parser, "--num-templates T", "lvkc: wordings, 1 to 3, default 1")
    knowledge = "lvkc: table of finding, statement and source, before the package's own entries; or gs://"
    add(parser, "--knowledge TABLE", knowledge)
    passes = (
        "lvkc with --send-images, of a picture without a region: votes of each verifier, default 3; 0: whole picture"
    )
    add(parser, "--region-passes N", passes)
    add(parser, "--region-share S", "lvkc: share of votes that keeps a proposed region, default 0.5", type=float)
    instructions = "lvkc: write questions as instructions of their task, default none"
    add(parser, "--instructions", instructions, choices=("none", "by-task"))
    add(parser, "--rl-sample N", "lvkc: questions of the balanced sample rl_records.jsonl, default 0 (none)")
    balance = "lvkc: what it balances: instruction, modality, difficulty or several, default instruction"
    add(parser, "--rl-balance NAME", balance, nargs="+")
    hosts = "medclm: how the host organ is found, default coverage"
    add(parser, "--host-organ", hosts, choices=("coverage", "iou_mask", "iou_box"))
    add(parser, "--masks DIR", "medclm: organ masks, or CheXmask's table (.csv), default SOURCE/masks; or gs://")
    prior = "medclm: what names the organ in a radiograph without masks, default atlas"
    add(parser, "--organ-prior", prior, choices=("atlas", "none"))
    add(parser, "--send-images", "lvkc, medclm: show models the pictures, at most 768 pixels a side")
    regenerate = "write anew what a voter does not call correct, lvkc: or whose stages contradict; default 0"
    add(parser, "--regenerate N", regenerate, 0)
    _add_run_flags(parser)
    return parser


def _add_run_flags(parser: argparse.ArgumentParser) -> None:
    add(parser, "--out DIR", _OUT, type=local_path, required=True)
    add(parser, "--annotator", "default rules (offline)", "rules", choices=("rules", "llm"))
    add(parser, "--images", "whether to link images into DIR", "link", choices=("link", "none"))
    add(parser, "--overwrite", "replace an earlier result in DIR")
    model = add_model(parser, units="reports or questions", at_once="4", url=DEFAULT_BASE_URL)
    add(model, "--repairs N", "of an unreadable answer, default 2", 2)
    add(model, "--seed", "of decoding, default 0", 0)
    add(model, "--trust", "keep only chains that the annotator trusts when asked")
    voter = f"further model that must vote 'correct'; NAME[,{'=...,'.join(VOTER_FIELDS)}=...]; may be repeated"
    add(model, "--voter NAME", voter, [], action="append")
    failure = "for reports whose request was given up, default stop"
    add(model, "--on-failure", failure, "stop", choices=("stop", "set-aside"))


COMPARISONS = {
    "agree": (
        *("Compare annotators on the same reports, step by step.", "DIR"),
        "agreement.json, agreement.md and disagreements.html",
    ),
    "review-out": (
        "Write a form (CSV): a reviewer confirms or corrects chains, and confirms or rejects reasoning records.",
        *("FORM.csv", "a new file"),
    ),
    "review-in": (
        *("Apply a filled form; the records say who changed what.", "DIR"),
        "a folder without data.json and records.jsonl",
    ),
}
"""Commands: what each does, and what it writes."""


def _comparison_parser(command: str) -> argparse.ArgumentParser:
    description, metavar, written = COMPARISONS[command]
    holder = "folder with data.json (chains) or records.jsonl (reasoning; review only), or such a file; or gs://"
    is_review = command != "agree"
    parser = argparse.ArgumentParser(prog=f"stepcot annotate {command}", description=description)
    if command == "review-in":
        parser.add_argument("form", metavar="FORM.csv")
        add(parser, "--reviewer NAME", "kept in the records", required=True)
    parser.add_argument("annotators", nargs="+", metavar="A", help=holder)
    add(parser, "--names NAME", "of the annotators; default the folders' names", nargs="+")
    if is_review:
        add(parser, "--all", "chains: all cases, not only disagreements")
        add(parser, "--sample N", "reasoning records: most of each kind, default 200", 200)
        add(parser, "--seed", "reasoning records: of the sample, default 0", 0)
    parser.add_argument("--out", type=local_path, required=is_review, metavar=metavar, help=written)
    return parser


def run_comparison(command: str, arguments: Sequence[str]) -> None:
    """Run one of `COMPARISONS`; a review is of chains or of reasoning records, whichever the inputs hold."""
    from stepcot_jax.annotate.agreement import align
    from stepcot_jax.data.questions.record_files import holds_records

    options = _comparison_parser(command).parse_args(arguments)
    options.annotators = [find_path(annotator, "A") for annotator in options.annotators]
    source, *others = options.annotators
    if command == "review-in":
        options.form = find_path(options.form, "FORM.csv")
    if not holds_records(source):
        aligned = align(options.annotators, names=options.names)
        _agree(options, aligned) if command == "agree" else _review(options, aligned)
    elif command == "agree":
        raise BadInput(f"{source} holds reasoning records; expected folders with data.json")
    elif others or options.all or options.names:
        raise BadInput(f"{source} holds reasoning records; expected one folder, without --all and --names")
    else:
        _review_records(options, source)


def _agree(options: argparse.Namespace, aligned: "Aligned") -> None:
    from stepcot_jax.annotate.agreement import as_markdown, compare, write_agreement

    comparison = compare(aligned)
    print(as_markdown(comparison), end="")
    for name, num_missing in zip(aligned.names, aligned.num_missing, strict=True):
        if num_missing:
            print(f"{name} lacks {num_missing} records that another has; these are not compared")
    if options.out is not None:
        write_agreement(options.out, aligned, comparison)
        print(f"side by side: {options.out / 'disagreements.html'}")


def _review(options: argparse.Namespace, aligned: "Aligned") -> None:
    from stepcot_jax.annotate.review import apply_review, write_review

    if "form" not in options:
        print(f"{write_review(options.out, aligned, every=options.all)} cases to review in {options.out}")
        return
    how = {"every": options.all, "reviewer": options.reviewer, "folder": options.out}
    cases, answers, corrected = apply_review(options.form, aligned, **how)
    print(f"{cases} cases reviewed, {answers} answers corrected in {corrected} of them")
    print(f"{len(aligned.collections[0].cases)} records in {options.out}")


def _review_records(options: argparse.Namespace, source: Path) -> None:
    from stepcot_jax.annotate.review import apply_record_review, write_record_review

    chosen = {"sample": options.sample, "seed": options.seed}
    if "form" not in options:
        print(f"{write_record_review(options.out, source, **chosen)} records to review in {options.out}")
        return
    how = {"reviewer": options.reviewer, "folder": options.out}
    reviewed, rejected, written = apply_record_review(options.form, source, **chosen, **how)
    print(f"{reviewed} records reviewed, {rejected} rejected")
    print(f"{written} records in {options.out}")


def annotate(options: argparse.Namespace) -> None:
    """Annotate a source of reports."""
    from stepcot_jax.annotate.agreement import read_annotator
    from stepcot_jax.annotate.output import read_shard
    from stepcot_jax.annotate.runner import annotate_source
    from stepcot_jax.chain import DEFAULT_CHAIN
    from stepcot_jax.host.terminal import Terminal

    shard = None if options.shard is None else read_shard(options.shard)
    chain = read_annotator(find_path(options.chain, "--chain")).chain if options.chain else DEFAULT_CHAIN
    plan = _make_plan(options)
    reports = find_path(options.reports, "REPORTS")
    result = annotate_source(reports, options.out, plan, Terminal(), chain=chain, shard=shard)
    print(result.describe(), end="")
    print(f"{len(result.records)} records in {options.out}" + (f", shard {shard}" if shard else ""))


def merge(options: argparse.Namespace) -> None:
    """Merge the folders of all shards."""
    from stepcot_jax.annotate.output import merge_shards

    shards = [find_path(shard, "SHARD") for shard in options.shards]
    result = merge_shards(shards, options.out, overwrite=options.overwrite)
    print(result.describe(), end="")
    print(f"{len(result.records)} records of {len(shards)} shards in {options.out}")


def _annotate_vqa(options: argparse.Namespace) -> None:
    from stepcot_jax.annotate.recipes.items import TaskSettings
    from stepcot_jax.annotate.runner import annotate_questions
    from stepcot_jax.host.terminal import Terminal

    given = vars(options)
    for task, names in TASK_FLAGS.items():
        unused = [f"--{name.replace('_', '-')}" for name in names if given[name] is not None and options.task != task]
        if unused:
            raise BadInput(f"{', '.join(unused)} requires --task={task}; got --task={options.task}")
    if options.grounded is not None:
        given["grounded"] = find_path(options.grounded, "--grounded")
    if options.masks is not None:
        given["masks"] = find_path(options.masks, "--masks")
        if not (given["masks"].is_dir() or given["masks"].suffix.lower() == ".csv"):
            raise BadInput(f"--masks: {options.masks} is no folder of organ masks and no .csv table of CheXmask")
    if options.knowledge is not None:
        from stepcot_jax.annotate.recipes.knowledge import read_knowledge

        given["knowledge"] = read_knowledge(find_path(options.knowledge, "--knowledge"))
    plan, source = _make_plan(options), find_path(options.source, "SOURCE")
    of_task = {name: value for names in TASK_FLAGS.values() for name in names if (value := given[name]) is not None}
    settings = TaskSettings(
        root=source,
        folder=options.out,
        seed=options.question_seed,
        layout=options.layout,
        box_size=options.box_size and tuple(options.box_size),
        with_normal=options.with_normal,
        sends_pictures=options.send_images,
        **of_task,
    )
    how = {"task": options.task, "settings": settings, "num_regenerations": options.regenerate}
    result = annotate_questions(source, plan, Terminal(), **how)
    print(result.describe(), end="")
    print(f"{len(result.records)} records in {options.out}")


def main(arguments: list[str] | None = None) -> None:
    """Run a command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    # `annotate REPORTS` has no subcommand name; pass a file called "agree" as "./agree".
    if arguments[:1] == ["coding"]:
        from stepcot_jax.tools.annotate.coding import main as compare_coding

        compare_coding(arguments[1:])
    elif arguments[:1] == ["vqa"]:
        _annotate_vqa(_vqa_parser().parse_args(arguments[1:]))
    elif arguments[:1] == ["merge"]:
        merge(_merge_parser().parse_args(arguments[1:]))
    elif arguments and arguments[0] in COMPARISONS:
        run_comparison(arguments[0], arguments[1:])
    else:
        annotate(_annotate_parser().parse_args(arguments))


def _make_plan(options: argparse.Namespace) -> "Plan":
    from stepcot_jax.annotate.runner import Plan

    if options.annotator == "llm" and not options.model:
        raise BadInput("--model is required with --annotator=llm (the name of a model)")
    if options.annotator == "rules" and options.model:
        raise BadInput(f"--model={options.model!r} requires --annotator=llm")
    return Plan(
        annotator=read_endpoint(options) if options.annotator == "llm" else None,
        voters=tuple(_read_voter(options, voter) for voter in options.voter),
        asks_trust=options.trust,
        cap=options.max_tokens,
        concurrency=4 if options.concurrency is None else options.concurrency,
        num_repairs=options.repairs,
        on_failure=options.on_failure,
        images=options.images,
        overwrite=options.overwrite,
        map_blocks=_find_engine(options),
    )


def _find_engine(options: argparse.Namespace) -> "MapBlocks | None":
    from stepcot_jax.host.extras import find_extra

    if getattr(options, "engine", "local") == "local":
        return None
    make_engine = find_extra("engine", options.engine, packages="ray")
    return make_engine(address=options.ray_address, num_workers=options.ray_workers)


def _read_voter(options: argparse.Namespace, text: str) -> Endpoint:
    model, *changes = text.split(",")
    fields = dict(change.partition("=")[::2] for change in changes)
    unknown = [change for change in changes if "=" not in change or change.partition("=")[0] not in VOTER_FIELDS]
    if unknown:
        expected = f"expected NAME[,{'=...][,'.join(VOTER_FIELDS)}=...]"
        raise BadInput(f"--voter {model[:80]!r}: {unknown[0][:80]!r} is not a setting; {expected}")
    address, key_variable = fields.get("base-url", options.endpoint), fields.get("key-variable", "")
    try:
        voter = make_endpoint(options, model, address, key_variable=key_variable)
        inherits = "key-variable" not in fields and voter.origin == Endpoint("-", options.endpoint).origin
    except BadInput as error:
        raise BadInput(f"--voter {model[:80]!r}: {error}") from None
    # The annotator's key goes to voters of the same origin only, unless key-variable= names it.
    return make_endpoint(options, model, address) if inherits else voter


if __name__ == "__main__":
    run_tool(main)
