"""Every command that writes: to a store it writes what it writes to a folder, and a killed upload leaves nothing."""

import csv
import json

import pytest
from host.memory_store import check_same_on_store, new_address, objects, put_files
from readers.reader_samples import fill, guess

from stepcot_jax.host import leases
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import write_whole
from stepcot_jax.host.stores import StoreFolder
from stepcot_jax.tools.annotate.command import main as annotate
from stepcot_jax.tools.constrain.command import main as constrain
from stepcot_jax.tools.data.command import main as data
from stepcot_jax.tools.evaluate_replies.command import main as evaluate
from stepcot_jax.tools.features import main as import_features
from stepcot_jax.tools.readers.command import main as readers
from stepcot_jax.tools.readers.forms import read_key

REPORTS = (
    "id,report,image\n"
    "r1,Heart size is normal. The lungs are clear. No acute disease.,1.png\n"
    "r2,There is a small right pleural effusion. Heart size is normal.,2.png\n"
)


@pytest.fixture(autouse=True)
def _places(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(leases, "RENEW_SECONDS", 3600.0)


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cases") / "cases"
    data(["phantom", str(folder), "--num-cases=12", "--size=32"])
    return folder


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records") / "records"
    data(["vqa", str(folder), "--num-cases=30", "--size=48"])
    return folder


def write_replies(records, path):
    """Replies to the test records, the first of each two with the right answer."""
    found = [json.loads(line) for line in (records / "records.jsonl").read_text().splitlines()]
    lines = [
        json.dumps({"id": each["id"], "reply": f"<answer>{each['answer'] if number % 2 else 'no'}</answer>"})
        for number, each in enumerate(found)
        if each["split"] == "test"
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def put_filled_form(form, monkeypatch):
    """The address of a form in which a reviewer confirms everything."""
    rows = list(csv.reader(form.read_text(encoding="utf-8-sig").splitlines(keepends=True)))
    verdict = rows[0].index("review" if "review" in rows[0] else "verdict")
    filled = form.with_name("filled") / "form.csv"
    filled.parent.mkdir()
    with filled.open("w", newline="") as file:
        csv.writer(file).writerows([rows[0], *([*row[:verdict], "ok", *row[verdict + 1 :]] for row in rows[1:])])
    return f"{put_files(filled.parent, monkeypatch)}/form.csv"


def test_data_commands(cases, records, tmp_path, monkeypatch, capsys):
    draw = lambda folder, statistics: (write_whole(folder / "x.png", b"x") or ["x.png"], "")  # noqa: E731
    monkeypatch.setattr("stepcot_jax.tools.data.pictures.write_pictures", draw)  # takes seconds
    address = check_same_on_store(
        lambda out: data(["phantom", out, "--num-cases=3", "--size=32"]), tmp_path / "phantom", monkeypatch
    )
    assert f"3 cases in {address}" in capsys.readouterr().out
    for wrong in (["check", str(cases), "--json="], ["shards", str(cases), "--out="]):
        with pytest.raises(SystemExit):
            data(wrong)
        assert "'' names nothing; expected a path, or gs:// or s3://" in capsys.readouterr().err
    with pytest.raises(BadInput, match=rf"^DIR: {address} is not empty; a new or empty folder is required"):
        data(["phantom", address, "--num-cases=3", "--size=32"])
    for name, command in {
        "vqa": lambda out: data(["vqa", out, "--num-cases=12", "--size=48"]),
        "asked": lambda out: data(["vqa", out, f"--source={cases}"]),
        "stats": lambda out: data(["stats", str(cases), f"--out={out}"]),
        "vqa_stats": lambda out: data(["stats", str(records), f"--out={out}"]),
        "shards": lambda out: data(["shards", str(cases), f"--out={out}"]),
        "facts.json": lambda out: data(["check", str(cases), f"--json={out}"]),
    }.items():
        address = check_same_on_store(command, tmp_path / name, monkeypatch)
        assert name == "facts.json" or f" in {address}" in capsys.readouterr().out


def test_a_source_of_questions_may_be_on_a_store(cases, tmp_path, monkeypatch):
    address = put_files(cases, monkeypatch)
    data(["vqa", str(tmp_path / "here"), f"--source={cases}"])
    data(["vqa", str(tmp_path / "there"), f"--source={address}"])
    names = [(tmp_path / name / "records.jsonl").read_text() for name in ("here", "there")]
    assert names[0] == names[1]


def test_annotate_merge_compare_and_review(tmp_path, monkeypatch, capsys):
    reports = tmp_path / "reports.csv"
    reports.write_text(REPORTS)
    whole = check_same_on_store(lambda out: annotate([str(reports), f"--out={out}"]), tmp_path / "whole", monkeypatch)
    assert f"2 records in {whole}" in capsys.readouterr().out
    with pytest.raises(BadInput, match=rf"^{whole}/data\.json exists; choose another folder or pass --overwrite"):
        annotate([str(reports), f"--out={whole}"])
    before = objects(whole)
    annotate([str(reports), f"--out={whole}", "--overwrite", f"--chain={whole}"])
    assert objects(whole) == before
    shards = [f"{new_address(monkeypatch)}/s{number}" for number in range(2)]
    for number, shard in enumerate(shards):
        annotate([str(reports), f"--out={shard}", f"--shard={number}/2"])
    check_same_on_store(lambda out: annotate(["merge", *shards, f"--out={out}"]), tmp_path / "whole_2", monkeypatch)
    capsys.readouterr()
    agree = ["agree", whole, whole, "--names", "a", "b"]
    check_same_on_store(lambda out: annotate([*agree, f"--out={out}"]), tmp_path / "agreed", monkeypatch)

    form = check_same_on_store(
        lambda out: annotate(["review-out", whole, f"--out={out}"]), tmp_path / "form.csv", monkeypatch
    )
    with pytest.raises(BadInput, match=rf"^{form} exists; a filled form must not be overwritten"):
        annotate(["review-out", whole, f"--out={form}"])
    filled = put_filled_form(tmp_path / "form.csv", monkeypatch)
    reviewed = check_same_on_store(
        lambda out: annotate(["review-in", filled, whole, "--reviewer=Dr Example", f"--out={out}"]),
        tmp_path / "reviewed",
        monkeypatch,
    )
    with pytest.raises(BadInput, match=rf"^{reviewed}/data\.json exists; choose another folder"):
        annotate(["review-in", filled, whole, "--reviewer=Dr Example", f"--out={reviewed}"])


def test_reasoning_records_from_a_store(records, tmp_path, monkeypatch):
    source = put_files(records, monkeypatch)
    flags = ["--task=rmcot", "--images=none"]

    def make(out):
        annotate(["vqa", source if "://" in out else str(records), *flags, f"--out={out}"])

    made = check_same_on_store(make, tmp_path / "made", monkeypatch)
    agree = ["agree", made, made, "--names", "a", "b"]
    check_same_on_store(lambda out: annotate([*agree, f"--out={out}"]), tmp_path / "agreed", monkeypatch)
    check_same_on_store(
        lambda out: annotate(["review-out", made, f"--out={out}", "--sample=2"]), tmp_path / "form.csv", monkeypatch
    )
    filled = put_filled_form(tmp_path / "form.csv", monkeypatch)
    review = ["review-in", filled, made, "--reviewer=Dr Example", "--sample=2"]
    check_same_on_store(lambda out: annotate([*review, f"--out={out}"]), tmp_path / "reviewed", monkeypatch)


def test_replies_are_scored_and_prompts_written(records, tmp_path, monkeypatch, capsys):
    replies = write_replies(records, tmp_path / "model.jsonl")
    there = f"{put_files(records, monkeypatch)}"
    store = StoreFolder(new_address(monkeypatch))
    store.upload({"model.jsonl": replies})

    def score(out):
        given = [there, f"{store.address}/model.jsonl"] if "://" in out else [str(records), str(replies)]
        evaluate([*given, f"--out={out}", "--dialect=lvkc", "--num-resamples=20", "--without-pictures"])

    score(str(tmp_path / "scored"))
    address = f"{new_address(monkeypatch)}/scored"
    score(address)
    assert f"in {address}: metrics.json" in capsys.readouterr().out
    assert objects(address).keys() == {path.name for path in (tmp_path / "scored").iterdir()}
    check_same_on_store(
        lambda out: evaluate(["prompts", str(records), f"--out={out}"]), tmp_path / "prompts.jsonl", monkeypatch
    )
    check_same_on_store(
        lambda out: evaluate(["perturb", str(records), f"--out={out}", "--rounds=1"]), tmp_path / "rounds", monkeypatch
    )


def test_levels_are_measured(tmp_path, monkeypatch, capsys):
    flags = ["--num-cases=8", "--num-resamples=10", "--levels=0,1", "--variants=constraints", "--without-pictures"]
    address = check_same_on_store(lambda out: constrain([f"--out={out}", *flags]), tmp_path / "measured", monkeypatch)
    assert f"in {address}: " in capsys.readouterr().out


def test_readers_sample_and_score(cases, tmp_path, monkeypatch, capsys):
    def sample(out):
        readers(["sample", str(cases), "--readers=a,b", f"--out={out}", "--num-cases=4"])

    address = check_same_on_store(sample, tmp_path / "sample", monkeypatch)
    assert f"for a: {address}/a" in capsys.readouterr().out
    key = read_key(tmp_path / "sample")
    forms = [fill(next((tmp_path / "sample" / name).glob("*.csv")), key, guess(key, 1)) for name in "ab"]
    store = StoreFolder(new_address(monkeypatch))
    store.upload({f"{form.parent.name}.csv": form for form in forms})
    filled = [f"{store.address}/{name}.csv" for name in "ab"]
    check_same_on_store(
        lambda out: readers(["score", address, *filled, f"--out={out}", "--num-resamples=20"]),
        tmp_path / "scored",
        monkeypatch,
    )


def test_imported_features(cases, tmp_path, monkeypatch):
    import numpy as np

    ids = [each["image_path"] for each in json.loads((cases / "data.json").read_text())]
    np.savez(tmp_path / "features.npz", features=np.ones((len(ids), 4), np.float32), ids=np.array(ids))
    there = put_files(cases, monkeypatch)

    def bring(out):
        root = there if "://" in out else str(cases)
        import_features([str(tmp_path / "features.npz"), f"--root={root}", f"--store={out}"])

    check_same_on_store(bring, tmp_path / "store", monkeypatch)
