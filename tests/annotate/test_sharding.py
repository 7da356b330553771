"""Shards of a run, annotated apart and merged: the same files as one run; gaps, doubles and strangers by name."""

import json

import pytest
from annotate.answer_files import read_rows
from annotate.misbehaving_server import MisbehavingServer, read_data
from annotate.test_pipeline import command, read_funnel
from PIL import Image
from refusals import refuse

from stepcot_jax.annotate import runner
from stepcot_jax.annotate.output import Shard, read_shard
from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.tools.annotate.command import main

TEXTS = (
    "FINDINGS: The lungs are clear. IMPRESSION: No acute disease.",
    "FINDINGS: There is a small right pleural effusion. IMPRESSION: Effusion.",
    *("FINDINGS: The heart is enlarged. IMPRESSION: Cardiomegaly.", ""),
    "FINDINGS: A 2 cm nodule in the left upper lobe. IMPRESSION: Nodule.",
    "FINDINGS: Emphysema. IMPRESSION: Emphysema.",
)


def write_source(folder, *, number=40):
    """Reports of all kinds, two of them repeated, some with two images."""
    (folder / "images").mkdir(parents=True)
    rows = []
    for index in range(number):
        names = [f"images/{index}.png"] + ([f"images/{index}b.png"] if index % 7 == 0 else [])
        for name in names:
            Image.new("L", (4, 4), index).save(folder / name)
        rows.append({"id": f"r{index}", "report": TEXTS[index % len(TEXTS)], "image": names, "patient_id": f"p{index}"})
    rows += [{**rows[3], "report": "again"}, {**rows[8], "report": "again"}]
    (folder / "reports.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder / "reports.jsonl"


@pytest.fixture
def source(tmp_path):
    return write_source(tmp_path / "source")


def annotate_shards(source, out, *more, count=5):
    folders = [out / str(index) for index in range(count)]
    for index, folder in enumerate(folders):
        main([str(source), f"--out={folder}", f"--shard={index}/{count}", *more])
    return folders


def merge(folders, out, *more):
    main(["merge", *map(str, folders), f"--out={out}", *more])


def files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock" and "ledger" not in path.parts
    }


def test_merged_shards_are_the_files_of_one_run(tmp_path, source):
    main([str(source), f"--out={tmp_path / 'whole'}"])
    folders = annotate_shards(source, tmp_path / "shards", count=50)  # some are empty
    merge(folders[::-1], tmp_path / "merged")
    assert files(tmp_path / "merged") == files(tmp_path / "whole")
    assert "images/7b.png" in files(tmp_path / "merged")
    assert {row[1]: row[2] for row in read_funnel(tmp_path / "merged")}["no report"] == 7
    for name in ("whole", "merged"):
        main(["review-out", str(tmp_path / name), f"--out={tmp_path / name}.csv", "--names=rules"])
    assert (tmp_path / "merged.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_a_shard_depends_on_the_id_alone_and_other_flags_are_refused():
    names = [f"CXR{number}" for number in range(3000)]
    shards = [[name for name in names if Shard(index, 7).has(name)] for index in range(7)]
    assert sorted(name for shard in shards for name in shard) == sorted(names)
    assert all(350 < len(shard) < 510 for shard in shards)
    # Fixed forever: a shard of an older run must stay that shard.
    assert [next(i for i in range(7) if Shard(i, 7).has(name)) for name in names[:8]] == [0, 5, 0, 6, 5, 2, 1, 4]
    for written in ("", "3", "4/4", "-1/4", "1/0", "a/b", "1/2/3"):
        refuse(r"--shard: .* is not I/N", read_shard, written)


def test_gaps_doubles_and_strangers_are_refused_by_name(tmp_path, source):
    folders = annotate_shards(source, tmp_path / "shards", "--images=none")
    out, strange = (tmp_path / name for name in ("out", "strange"))
    main([str(source), f"--out={tmp_path / 'four'}", "--shard=3/4", "--images=none"])
    other = write_source(tmp_path / "other", number=39)
    main([str(other), f"--out={strange}", "--shard=4/5", "--images=none"])
    for given, words in (
        ([folders[0], folders[2], folders[4]], r"2 of 5 shards are missing: 1/5, 3/5; pass all folders"),
        ([*folders, folders[3]], r"shard 3/5 is in \S*shards/3 and in \S*shards/3; pass each shard once"),
        ([*folders, source.parent], r"source has no shard.json: expected the folder of a complete run with --shard"),
        ([*folders[:4], tmp_path / "four"], r"four/shard.json: is one of 4 shards, \S*shards/0 one of 5"),
        ([*folders[:4], strange], r"strange/shard.json: was made from another source than \S*shards/0"),
    ):
        refuse(words, merge, given, out)
    assert not out.exists()
    merge(folders, out)
    refuse(r"out/data.json exists; choose another folder or pass --overwrite", merge, folders, out)
    before = files(folders[0])
    refuse(r"shards/0 is one of the shards; choose another folder", merge, folders, folders[0] / ".", "--overwrite")
    assert files(folders[0]) == before


def test_a_report_in_two_shards_or_none_and_a_changed_shard_are_refused(tmp_path, source):
    folders = annotate_shards(source, tmp_path / "shards", "--images=none")
    path = folders[2] / "shard.json"
    shard = json.loads(path.read_text())
    (_, number), *others = shard["annotated"]
    first = json.loads((folders[0] / "shard.json").read_text())["annotated"][0][0]
    for annotated in (others, [[first, number], *others]):
        path.write_text(json.dumps({**shard, "annotated": annotated}))
        refuse("the shards do not hold each of 42 reports once", merge, folders, tmp_path / "out")
    path.write_text(json.dumps(shard))
    records = folders[1] / "data.json"
    records.write_text(json.dumps(json.loads(records.read_text())[1:]))
    refuse(r"shards/1/data.json holds \d+; its shard.json says \d+", merge, folders, tmp_path / "out")


def test_a_folder_holds_one_shard_and_one_killed_while_it_is_replaced_is_not_merged(tmp_path, source, monkeypatch):
    main([str(source), f"--out={tmp_path / 'a'}", "--shard=0/5"])
    with pytest.raises(BadInput, match=r"a holds shard 0/5, expected 1/5; each shard needs its own folder"):
        main([str(source), f"--out={tmp_path / 'a'}", "--shard=1/5", "--overwrite"])
    refuse(r"a/data.json exists", main, [str(source), f"--out={tmp_path / 'a'}", "--shard=0/5"])
    folders = annotate_shards(source, tmp_path / "shards", count=2)

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "write_records", stop)
    with pytest.raises(KeyboardInterrupt):
        main([str(source), f"--out={folders[0]}", "--shard=0/2", "--overwrite"])
    refuse(r"shard 0/2 is not complete \(data\.json is missing\)", merge, folders, tmp_path / "merged")


def entries(folder):
    """Ledger entries without what differs between equal runs: order, duration, time."""
    assert (folder / "ledger" / "answers.sqlite").stat().st_mode & 0o077 == 0
    return sorted(
        json.dumps([fields, {name: value for name, value in entry.items() if name not in ("seconds", "time")}])
        for fields, entry in read_rows(folder)
        if entry.get("is_final", True)  # a busy machine loses an attempt now and then
    )


def test_blocks_of_an_engine_are_kept_for_a_rerun(tmp_path, source, monkeypatch):
    monkeypatch.setattr(runner, "BLOCK_SIZE", 8)
    annotated = []

    def map_blocks(parts, factory):
        annotate = factory()
        for index in reversed(range(len(parts))):
            annotated.append(len(parts[index]))
            yield index, annotate(parts[index])
            if stops:
                raise KeyboardInterrupt

    def run():
        plan = runner.Plan(None, (), False, None, 1, 2, "stop", "link", False, map_blocks=map_blocks)
        runner.annotate_source(source, tmp_path / "blocks", plan, Terminal(silent=True), chain=DEFAULT_CHAIN)

    stops = True
    with pytest.raises(KeyboardInterrupt):
        run()
    stops = False
    run()
    assert annotated == [8] * 5  # each block once
    main([str(source), f"--out={tmp_path / 'local'}"])
    assert files(tmp_path / "blocks") == files(tmp_path / "local")


def test_merged_shards_of_a_language_model_have_the_ledger_of_one_run(tmp_path, source):
    pytest.importorskip("openai", reason="the extra annotate")

    def behave(request, number):
        """Answers that depend on the report: a third is bad at first."""
        is_first = len(request["messages"]) == 2
        return ("answer", "no") if is_first and "effusion" in json.dumps(read_data(request)) else None

    more = ["--trust", "--voter=v"]
    with MisbehavingServer(behave) as server:
        main(command(source, tmp_path / "whole", server, *more))
        folders = [tmp_path / "shards" / str(index) for index in range(3)]
        for index, folder in enumerate(folders):
            main(command(source, folder, server, *more, f"--shard={index}/3"))
        num_paid = len(server.paid)
        merge(folders, tmp_path / "merged")
        assert files(tmp_path / "merged") == files(tmp_path / "whole")
        assert entries(tmp_path / "merged") == entries(tmp_path / "whole")
        main(command(source, tmp_path / "merged", server, *more, "--overwrite"))  # asks nothing again
        assert len(server.paid) == num_paid
    merge(folders, tmp_path / "merged", "--overwrite")
    assert entries(tmp_path / "merged") == entries(tmp_path / "whole")
    with MisbehavingServer() as server:
        main(command(source, folders[2], server, *more, "--shard=2/3", "--repairs=1", "--overwrite"))
    refuse(r"was made with other settings \(repairs: 1 instead of 2\)", merge, folders, tmp_path / "other")
