"""Controls on a SLAKE-shaped miniature and a fake endpoint: what is shown, asked, counted and concluded."""

import collections
import contextlib
import hashlib
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from annotate.misbehaving_server import MisbehavingServer, open_url, text_of
from answer.test_answer_file import KILLED
from evaluate_replies.asked import write_folder
from PIL import Image
from policies.policy_workdir import make_policy_workdir
from policies.qwen.tiny_qwen import write_reader
from refusals import refuse

from stepcot_jax.data.questions.variants import swap_pictures
from stepcot_jax.evaluation.controls import ANOTHER, MAJORITY, OWN, WITHOUT, compare_controls, conclude
from stepcot_jax.evaluation.replies import ReplyScore
from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.policies.qwen_chat import QwenReader
from stepcot_jax.reading.policy_reader import PolicyReader
from stepcot_jax.reasoning.endings import Unsaid
from stepcot_jax.record import Record
from stepcot_jax.tools.evaluate_replies.command import main

pytest.importorskip("openai", reason="the extra annotate")

PLACES = [(modality, organ) for modality in ("CT", "MRI", "X-Ray") for organ in ("Lung", "Abdomen")]
NUM_TRAIN, NUM_TEST = 10, 12
ASKED = ("Is there a lesion in {}?", "What is seen in {}?")


def truth(patient):
    """What the patient's picture shows."""
    return ("Yes", "nodule") if patient % 8 in (1, 2, 4) else ("No", "mass" if patient % 8 < 6 else "scar")


def write_slake(folder):
    """Two questions about each of `NUM_TRAIN + NUM_TEST` pictures, whose first pixel is the patient's number."""
    rows = collections.defaultdict(list)
    for patient in range(NUM_TRAIN + NUM_TEST):
        name, (modality, organ) = f"xmlab{patient}/source.png", PLACES[patient % len(PLACES)]
        (folder / "imgs" / name).parent.mkdir(parents=True)
        Image.fromarray(np.full((16, 16), patient, np.uint8)).save(folder / "imgs" / name)
        for part, (question, answer) in enumerate(zip(ASKED, truth(patient), strict=True)):
            row = {"img_name": name, "question": question.format(patient), "answer": answer, "qid": 2 * patient + part}
            row |= {"q_lang": "en", "modality": modality, "location": organ, "answer_type": ("CLOSED", "OPEN")[part]}
            rows["train" if patient < NUM_TRAIN else "test"].append({**row, "content_type": "Abnormality"})
    for split, of_split in rows.items():
        (folder / f"{split}.json").write_text(json.dumps(of_split))
    return folder


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-marker-0123456789")
    return write_slake(tmp_path / "slake")


def see(request):
    """Return the part and the patient that are asked for, and the patient whose picture is shown, None without one."""
    content, text = request["messages"][-1]["content"], text_of(request)
    shown = None if isinstance(content, str) else open_url(content[0]["image_url"]["url"]).getpixel((0, 0))
    return int("What" in text), int(re.search(r"in (\d+)\?", text)[1]), shown


def look(part, patient):
    """A model that reads its picture, but for every fifth; without one it gives the answer of few."""
    return ("Yes", "scar")[part] if patient is None or patient % 5 == 0 else truth(patient)[part]


def reply_by(model):
    return lambda request, number: ("answer", model(*see(request)[::2]))


def command(folder, server, *more):
    model = [f"--endpoint={server.base_url}", "--model=m", "--dialect=plain", "--attempts=2", "--timeout=5"]
    return ["--controls", str(folder), f"--out={folder.parent / 'out'}", *model, *more]


def read_results(folder):
    return json.loads((folder.parent / "out" / "controls.json").read_text())


def test_what_is_shown_and_every_figure_by_hand(folder, capsys):
    with MisbehavingServer(reply_by(look)) as server:
        for _ in range(2):  # the second asks nothing
            main(command(folder, server))
    tests, shown = range(NUM_TRAIN, NUM_TRAIN + NUM_TEST), collections.Counter(map(see, server.requests))
    another = {(part, at): picture for part, at, picture in shown if picture not in (None, at)}
    assert len(another) == len(server.requests) / 3 == 2 * NUM_TEST
    assert shown == collections.Counter((k, p, at) for p in tests for k in (0, 1) for at in (p, None, another[k, p]))
    assert "image_url" not in json.dumps([request for request in server.requests if see(request)[2] is None])
    assert all(patient % len(PLACES) == other % len(PLACES) for (_, patient), other in another.items())
    assert sorted(set(another.values())) == list(tests)  # each picture stands in for one other

    replies, out = {}, folder.parent / "out"
    for name in ("own", "without", "another"):
        lines = map(json.loads, (out / f"{name}.jsonl").read_text().splitlines())
        replies[name] = {int(line["id"].removeprefix("slake-")): line["reply"] for line in lines}
    assert replies["own"] == {2 * at + part: look(part, at) for at in tests for part in (0, 1)}
    assert replies["another"] == {2 * at + part: look(part, other) for (part, at), other in another.items()}
    assert replies["without"] == {2 * at + part: look(part, None) for at in tests for part in (0, 1)}

    # Answers of another row are right by hand; by patient, modality, organ and kind.
    train = [truth(patient) for patient in range(NUM_TRAIN)]
    most = [collections.Counter(answers).most_common(1)[0][0] for answers in zip(*train, strict=True)]
    right = {name: {q: float(text == truth(q // 2)[q % 2]) for q, text in of.items()} for name, of in replies.items()}
    right["majority"] = {q: float(most[q % 2] == truth(q // 2)[q % 2]) for q in right["own"]}
    names = dict(zip(right, ("own picture", "without the picture", "another patient's picture", "most frequent answer"),
                     strict=True))  # fmt: skip
    groups = {"all": lambda q: True, "kind: open": lambda q: q % 2 == 1, "kind: closed": lambda q: q % 2 == 0}
    called = {"MRI": "MR", "X-Ray": "xray"}
    for modality, organ in PLACES:
        groups[f"modality: {called.get(modality, modality)}"] = lambda q, m=modality: PLACES[q // 2 % 6][0] == m
        groups[f"organ: {organ}"] = lambda q, o=organ: PLACES[q // 2 % 6][1] == o
    figures = read_results(folder)["figures"]
    assert set(figures) == set(groups)
    for group, holds in groups.items():
        for name, heading in names.items():
            mean = np.mean([value for q, value in right[name].items() if holds(q)])
            assert figures[group][heading]["A"]["value"] == pytest.approx(mean)

    # The bootstrap by patient again, from lists of drawn patients; their names are digests of their pictures.
    files = {p: (folder / f"imgs/xmlab{p}/source.png").read_bytes() for p in tests}
    named = sorted(tests, key=lambda p: hashlib.sha256(files[p]).hexdigest())
    less = {p: [right["own"][2 * p + k] - right["another"][2 * p + k] for k in (0, 1)] for p in tests}
    counts = np.random.default_rng(0).multinomial(NUM_TEST, np.full(NUM_TEST, 1 / NUM_TEST), size=1000)
    drawn = [np.concatenate([less[p] * n for p, n in zip(named, row, strict=True)]).mean() for row in counts.tolist()]
    expected = (np.mean([*less.values()]), *np.quantile(drawn, [0.025, 0.975]))
    found = figures["all"]["another patient's picture"]["less"]
    assert (found["value"], found["low"], found["high"]) == pytest.approx(expected)
    said, printed = read_results(folder)["said"], capsys.readouterr().out
    mean = np.mean(list(right["own"].values()))
    assert said[0].startswith(f"The picture is shown to matter. With its picture the model has {100 * mean:.1f} [")
    assert said[0] in (out / "controls.html").read_text().replace("&#39;", "'")
    assert printed.count(said[0]) == 2


def test_no_copy_stands_in_and_another_modality_only_without_one_of_the_same():
    records = [
        Record(id=str(at), image=f"{at}.png", patient=f"p{at // 2}", question="?", answer="No", modality=modality)
        for at, modality in enumerate(("CT", "CT", "CT", "CT", "MR", "MR"))
    ]
    content = {"2.png": "0.png"}  # the second patient has a copy of the first one's picture
    swapped = [int(each.image[0]) for each in swap_pictures(records, records, lambda image: content.get(image, image))]
    assert swapped[0] == 3
    assert {at // 2 for at in swapped[4:]} <= {0, 1}  # no other patient has an MR
    assert swap_pictures(records[:2], records[:2], str) == []


def conclude_from(num_patients, *shares):
    """What is said of rows with these shares of right answers; None: every reply is a refusal; ...: no such row."""
    records = [Record(id=f"{at}", image="a", patient=f"{at}", question="?", answer="a") for at in range(num_patients)]
    order, nothing = np.random.default_rng(0), (np.nan, np.nan, np.nan)
    scores = {
        name: [
            ReplyScore("", "", "", (), float(place < (share or 0) * num_patients), *nothing, unread_answer=why)
            for place in order.permutation(num_patients)
            for why in ["" if share is not None else str(Unsaid.REFUSED)]
        ]
        for name, share in zip((OWN, WITHOUT, ANOTHER, MAJORITY), shares, strict=True)
        if share is not ...
    }
    return conclude(compare_controls(records, scores))


_MATTERS, _NOT = "The picture is shown to matter.", "The picture is not shown to matter."
_MISLED = "Another patient's picture misleads the model, but the own picture is not shown to help it."
_BEATS, _NOT_BETTER = (
    "The most frequent answer beats the model. ",
    "The model is not shown to beat the most frequent answer. ",
)


@pytest.mark.parametrize(
    ("own", "without", "another", "majority", "first"),
    [
        (0.8, 0.3, 0.3, 0.3, _MATTERS),
        (0.8, None, 0.3, 0.3, _MATTERS),
        (0.5, 0.5, 0.5, 0.5, f"{_NOT_BETTER}{_NOT}"),
        (0.5, None, 0.5, 0.1, _NOT),
        (0.5, 0.1, 0.5, 0.9, f"{_BEATS}A picture is shown to matter, but not that it is the patient's own."),
        (0.5, 0.5, 0.1, 0.1, _MISLED),
        (0.1, 0.8, 0.1, 0.0, "The model is right more often without the picture."),
    ],
)  # fmt: skip
def test_the_page_says_what_the_controls_allow(own, without, another, majority, first):
    lead, *apart = conclude_from(200, own, without, another, majority)
    assert lead.startswith(f"{first} With its picture the model has {100 * own:.1f} [".lstrip())
    told = "Without the picture: 200 refused and 0 unread count as wrong"
    assert [line.startswith(told) for line in apart] == [True] * (without is None)
    no_verdict = "No conclusion: fewer than 10 patients, or no reply that can be read."
    assert conclude_from(9, own, without, another, majority)[0].startswith(no_verdict)
    lead, *apart = conclude_from(200, own, without, ..., majority)
    assert "another patient" not in lead
    assert apart[-1].startswith("No question was asked with another patient's picture")


def test_refusals_failures_and_missing_pictures_are_apart(folder):
    declined = {"choices": [{"message": {"content": None, "refusal": "No picture."}, "finish_reason": "stop"}]}
    (folder / "imgs" / "xmlab12" / "source.png").unlink()
    fails = [True]

    def refuse_without(request, number):
        part, _, patient = see(request)
        if patient is None:
            return "body", json.dumps(declined).encode()
        return ("status", (500, {}, {})) if patient == 13 and fails[0] else ("answer", look(part, patient))

    with MisbehavingServer(refuse_without) as server:
        refuse("4 requests were given up", main, command(folder, server), error=RunStopped)
        given_up = read_results(folder)
        fails[0] = False
        before = len(server.requests)
        main(command(folder, server))
        assert {see(request)[2] for request in server.requests[before:]} == {13}
    results = read_results(folder)
    counts = {name: row["replies"] for name, row in results["figures"]["all"].items() if "replies" in row}
    number = 2 * NUM_TEST
    assert counts["own picture"] == {"read": number - 2, "unread": 0, "refused": 0, "no reply": 2}
    assert counts["another patient's picture"] == counts["own picture"]
    assert counts["without the picture"] == {"read": 0, "unread": 0, "refused": number, "no reply": 0}
    assert given_up["figures"]["all"]["own picture"]["replies"]["no reply"] == 4
    assert any(f"2 of {number} records have no reply (2 failed: picture 2)" in note for note in results["notes"])
    # All rows are of the same questions; without a reply that can be read the sentence rests on the other picture.
    lead, *apart = results["said"]
    assert lead.startswith("The picture is shown to matter.")
    assert apart == [f"Without the picture: {number} refused and 0 unread count as wrong."]


def test_a_file_of_replies_has_the_most_frequent_answer_beside_it(folder, tmp_path, capsys):
    out, path = tmp_path / "out", tmp_path / "mine.jsonl"
    (folder / "train.json").unlink()  # so that the questions' own most frequent answers stand in
    tests = range(NUM_TRAIN, NUM_TRAIN + NUM_TEST)
    lines = [json.dumps({"id": f"slake-{2 * p + k}", "reply": truth(p)[k]}) for p in tests for k in (0, 1)]
    path.write_text("\n".join(lines))
    main([str(folder), "--controls", f"--out={out}", "--dialect=plain", str(path)])
    results = read_results(folder)
    assert results["figures"]["all"]["own picture"]["A"]["value"] == 1
    most = [collections.Counter(answers).most_common(1)[0][1] for answers in zip(*map(truth, tests), strict=True)]
    assert results["figures"]["all"]["most frequent answer"]["A"]["value"] == sum(most) / (2 * NUM_TEST)
    notes = " ".join(results["notes"])
    assert f"of the {2 * NUM_TEST} evaluated questions of a kind that training lacks" in notes
    assert f"evaluate_replies audit questions {folder} --split=test" in capsys.readouterr().out
    alone = ["--controls", str(folder), str(path), f"--out={out}"]
    refuse("or REPLIES alone", main, [*alone, "--local=x"])
    refuse("have no effect with REPLIES", main, [*alone, "--concurrency=2"])


@pytest.mark.slow
def test_a_run_sees_one_grey_and_a_local_model_no_picture(tmp_path, monkeypatch):
    _, records, _ = make_policy_workdir(tmp_path / "run")
    drawn = np.random.default_rng(0)
    pictures = {record.image: drawn.integers(0, 256, (32, 32), np.uint8) for record in records}
    folder = write_folder(tmp_path / "questions", records, pictures)
    write_reader(tmp_path / "qwen")
    seen = {PolicyReader: [], QwenReader: []}
    for reader, given in seen.items():

        def watched(self, asked, *, kept=given, answer=reader.answer_prompts, **how):
            kept.extend(asked)
            return answer(self, asked, **how)

        monkeypatch.setattr(reader, "answer_prompts", watched)
    for name, path in (("checkpoint", "run"), ("local", "qwen")):
        how = ["--num-questions=4", "--concurrency=4"] + ["--max-answer-tokens=4"] * (name == "local")
        with contextlib.suppress(BadInput):  # an untrained model writes nothing that can be read
            main(["--controls", str(folder), f"--{name}={tmp_path / path}", f"--out={tmp_path / name}", *how])
        assert (tmp_path / name / "controls.html").exists()
    own, without, another = ([pixels for pixels, _ in seen[PolicyReader][at : at + 4]] for at in (0, 4, 8))
    assert np.unique(without).size == 1
    assert min(pixels.std() for pixels in [*own, *another]) > 0
    assert [len(prompt.images) for prompt in seen[QwenReader]] == [1] * 4 + [0] * 4 + [1] * 4


@pytest.mark.slow
def test_a_killed_command_resumes_and_pays_nothing_twice(folder):
    program = KILLED.replace("tools.answer", "tools.evaluate_replies.command")
    with MisbehavingServer(reply_by(look)) as server:
        asked = command(folder, server, "--concurrency=1", "--num-questions=10")
        for at in (4, 12):  # in the first file, then in the second
            ended = subprocess.run([sys.executable, "-c", program, str(at), *asked], capture_output=True, text=True)
            assert ended.returncode == -9, ended.stderr
        main(asked)
        assert len(server.paid) == len(server.requests) == 30
