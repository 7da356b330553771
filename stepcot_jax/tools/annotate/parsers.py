"""Flags of the annotator's commands."""

import argparse

from stepcot_jax.annotate.llm.client import DEFAULT_BASE_URL, DEFAULT_KEY_VARIABLE
from stepcot_jax.tools.options import local_path

_OUT = "folder of result and ledgers"

VOTER_FIELDS = ("base-url", "key-variable")
TASK_FLAGS = {"lvkc": ("num_regions", "num_templates"), "medclm": ("host_organ", "masks")}
"""Flags of `annotate vqa` that only one task uses."""


def annotate_parser() -> argparse.ArgumentParser:
    """Return the parser of `annotate REPORTS`."""
    prog = "stepcot annotate"
    others = "vqa, requests, replies, merge, agree, review-out, review-in"
    also = f"Also the commands {others}; each has a --help."
    parser = argparse.ArgumentParser(prog=prog, description="Make chains from reports.", epilog=also)
    reports = "IU X-Ray, published layout, .csv or .jsonl; also on gs:// or s3://"
    parser.add_argument("reports", metavar="REPORTS", help=reports)
    parser.add_argument(
        "--chain", metavar="DATA", help="folder whose data.json has the chain to answer; or gs://, s3://"
    )
    shard = "annotate only part I of N of the reports (I from 0), by a hash of the id; see merge"
    parser.add_argument("--shard", metavar="I/N", help=shard)
    ray = parser.add_argument_group("Ray", "The rules on several processes or machines (extra: ray).")
    engine = "what annotates: this process, or a Ray cluster; default local"
    ray.add_argument("--engine", choices=("local", "ray"), default="local", help=engine)
    address = "of the cluster; default RAY_ADDRESS, or else one on this machine"
    ray.add_argument("--ray-address", default="", metavar="ADDRESS", help=address)
    ray.add_argument("--ray-workers", type=int, default=2, metavar="N", help="processes, default 2")
    _add_run_flags(parser)
    return parser


def merge_parser() -> argparse.ArgumentParser:
    """Return the parser of `annotate merge`."""
    prog = "stepcot annotate merge"
    parser = argparse.ArgumentParser(prog=prog, description="Merge the folders of all shards into one result.")
    parser.add_argument("shards", nargs="+", metavar="SHARD", help="folder of a run with --shard; or gs://, s3://")
    parser.add_argument("--out", type=local_path, required=True, metavar="DIR", help=_OUT)
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier result in DIR")
    return parser


def add_batch_flags(parser: argparse.ArgumentParser, command: str) -> argparse.ArgumentParser:
    """Return the parser of an annotating command as that of `annotate requests`, with the flags of batch files."""
    parser.prog = f"stepcot annotate {command}"
    parser.description = "Write the requests of one round to batch files (JSON Lines) instead of sending them."
    parser.set_defaults(annotator="llm")
    batch = parser.add_argument_group("batch files", "In DIR/batch; `annotate replies` adds the replies.")
    batch.add_argument("--max-requests", type=int, default=50_000, metavar="N", help="of a file, default 50000")
    batch.add_argument("--max-megabytes", type=int, default=200, metavar="N", help="of a file, default 200")
    again = "write requests without an answer again: outstanding, given up or refused"
    batch.add_argument("--again", action="store_true", help=again)
    return parser


def replies_parser() -> argparse.ArgumentParser:
    """Return the parser of `annotate replies`."""
    prog = "stepcot annotate replies"
    parser = argparse.ArgumentParser(prog=prog, description="Add the replies of a batch to the ledgers.")
    out = "folder that `requests` was given as --out"
    parser.add_argument("out", type=local_path, metavar="DIR", help=out)
    files = "output or error file of a batch; or gs://, s3://"
    parser.add_argument("files", nargs="+", metavar="FILE", help=files)
    return parser


def vqa_parser() -> argparse.ArgumentParser:
    """Return the parser of `annotate vqa SOURCE`."""
    prog = "stepcot annotate vqa"
    parser = argparse.ArgumentParser(prog=prog, description="Make reasoning records from questions or boxes.")
    source = "reasoning records, GEMeX, MEDSAGE, ChestX-ray8 boxes, PadChest-GR, VinBigData, or a phantom folder"
    parser.add_argument("source", metavar="SOURCE", help=f"{source}; also on gs:// or s3://")
    tasks = "rmcot: thinking with regions; lvkc: four stages; medclm: easy, medium and hard views"
    parser.add_argument("--task", choices=("rmcot", "lvkc", "medclm"), required=True, help=tasks)
    parser.add_argument(
        "--box-size", type=int, nargs=2, metavar=("WIDTH", "HEIGHT"), help="GEMeX, MEDSAGE: of the boxes"
    )
    parser.add_argument("--question-seed", type=int, default=0, metavar="N", help="of questions and boxes, default 0")
    normal = "also ask about images of a detection list that have no box because the source denies findings"
    parser.add_argument("--with-normal", action="store_true", help=normal)
    parser.add_argument("--num-regions", type=int, metavar="M", help="lvkc: box variants, 0 to 4, default 1")
    parser.add_argument("--num-templates", type=int, metavar="T", help="lvkc: wordings, 1 to 3, default 1")
    hosts = "medclm: how the host organ is found, default coverage"
    parser.add_argument("--host-organ", choices=("coverage", "iou_mask", "iou_box"), help=hosts)
    masks = "medclm: organ masks, default SOURCE/masks; or gs://, s3://"
    parser.add_argument("--masks", metavar="DIR", help=masks)
    sends = "lvkc, medclm: show models the pictures, at most 768 pixels a side"
    parser.add_argument("--send-images", action="store_true", help=sends)
    regenerate = "with --voter: write anew what a voter does not call correct, default 0"
    parser.add_argument("--regenerate", type=int, default=0, metavar="N", help=regenerate)
    _add_run_flags(parser)
    return parser


def _add_run_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=local_path, required=True, metavar="DIR", help=_OUT)
    parser.add_argument("--annotator", choices=("rules", "llm"), default="rules", help="default rules (offline)")
    parser.add_argument("--images", choices=("link", "none"), default="link", help="whether to link images into DIR")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier result in DIR")
    model = parser.add_argument_group("language models", "Any OpenAI-compatible endpoint (extra: annotate).")
    model.add_argument("--model", metavar="NAME", help="name at the endpoint")
    model.add_argument("--base-url", default=DEFAULT_BASE_URL, metavar="URL", help=f"default {DEFAULT_BASE_URL}")
    model.add_argument("--key-variable", default=DEFAULT_KEY_VARIABLE, metavar="NAME", help="environment variable")
    model.add_argument("--max-tokens", type=int, metavar="N", help="spending cap of all ledgers in DIR together")
    model.add_argument("--max-answer-tokens", type=int, default=2048, metavar="N", help="of one answer, default 2048")
    model.add_argument("--concurrency", type=int, default=4, metavar="N", help="reports at once, default 4")
    model.add_argument("--timeout", type=float, default=120.0, metavar="SECONDS", help="of a request, default 120")
    model.add_argument("--attempts", type=int, default=8, metavar="N", help="until a request is given up, default 8")
    model.add_argument("--repairs", type=int, default=2, metavar="N", help="of an unreadable answer, default 2")
    model.add_argument("--temperature", type=float, default=0.0, help="default 0")
    model.add_argument("--seed", type=int, default=0, help="default 0")
    omit = "decoding setting that an endpoint refuses; may be repeated"
    model.add_argument("--omit", choices=("temperature", "seed"), action="append", default=[], help=omit)
    model.add_argument("--trust", action="store_true", help="keep only chains that the annotator trusts when asked")
    voter = f"further model that must vote 'correct'; NAME[,{'=...,'.join(VOTER_FIELDS)}=...]; may be repeated"
    model.add_argument("--voter", action="append", default=[], metavar="NAME", help=voter)
    failure = "for reports whose request was given up, default stop"
    model.add_argument("--on-failure", choices=("stop", "set-aside"), default="stop", help=failure)


def comparison_parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of `agree`, `review-out` or `review-in`."""
    description, metavar, written = {
        "agree": (
            "Compare annotators on the same reports, step by step, or on the same questions (reasoning records).",
            "DIR",
            "agreement.json and .md; of chains also disagreements.html",
        ),
        "review-out": (
            "Write a form (CSV): a reviewer confirms or corrects chains, and confirms or rejects reasoning records.",
            "FORM.csv",
            "a new file",
        ),
        "review-in": (
            "Apply a filled form; the records say who changed what.",
            "DIR",
            "a folder without data.json and records.jsonl",
        ),
    }[command]
    holder = "folder with data.json (chains) or records.jsonl (reasoning), or such a file; or gs://, s3://"
    is_review = command != "agree"
    parser = argparse.ArgumentParser(prog=f"stepcot annotate {command}", description=description)
    if command == "review-in":
        parser.add_argument("form", metavar="FORM.csv")
        parser.add_argument("--reviewer", required=True, metavar="NAME", help="kept in the records")
    parser.add_argument("annotators", nargs="+", metavar="A", help=holder)
    parser.add_argument("--names", nargs="+", metavar="NAME", help="of the annotators; default the folders' names")
    if is_review:
        parser.add_argument("--all", action="store_true", help="chains: all cases, not only disagreements")
        sample = "reasoning records: most of each kind, default 200"
        parser.add_argument("--sample", type=int, default=200, metavar="N", help=sample)
        parser.add_argument("--seed", type=int, default=0, help="reasoning records: of the sample, default 0")
    parser.add_argument("--out", type=local_path, required=is_review, metavar=metavar, help=written)
    return parser
