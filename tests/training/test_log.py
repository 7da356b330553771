import errno
import io
import json
import math

import pytest
from PIL import Image

from stepcot_jax.host.errors import RunStopped
from stepcot_jax.training.log import Means, MetricsLog


def read(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def read_events(workdir):
    """Events of the board's only file."""
    from tensorboardX.proto.event_pb2 import Event

    (path,) = (workdir / "tensorboard").iterdir()
    content, place, events = path.read_bytes(), 0, []
    while place < len(content):
        size = int.from_bytes(content[place : place + 8], "little")
        events.append(Event.FromString(content[place + 12 : place + 12 + size]))
        place += size + 16
    return events


def test_entries_go_to_both_and_those_after_the_first_step_are_removed(tmp_path):
    log = MetricsLog(tmp_path, first_step=0)
    for step in (1, 2, 3):
        log.write("train", step=step, epoch=0, numbers={"teacher/total loss": step / 2})
    log.write("test", step=2, epoch=0, numbers={"teacher": float("nan")})
    log.close()
    events = read_events(tmp_path)
    assert [event.step for event in events if event.HasField("session_log")] == [1]  # hides older ones from there on
    numbers = [(one.tag, event.step, one.simple_value) for event in events for one in event.summary.value]
    assert numbers[:3] == [("train/teacher/total_loss", step, step / 2) for step in (1, 2, 3)]
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')  # truncated by a kill
    MetricsLog(tmp_path, first_step=2).close()
    assert [(entry["kind"], entry["step"]) for entry in read(tmp_path)] == [("train", 1), ("train", 2)]


def test_a_log_that_was_removed_is_begun_anew_with_a_note(tmp_path, capsys):
    MetricsLog(tmp_path, first_step=0).close()
    MetricsLog(tmp_path, first_step=7).close()
    assert capsys.readouterr().err == ""
    (tmp_path / "metrics.jsonl").unlink()
    MetricsLog(tmp_path, first_step=7, silent=True).close()
    MetricsLog(tmp_path, first_step=7).close()
    assert capsys.readouterr().err == f"note: {tmp_path}/metrics.jsonl is missing; it begins anew after update 7\n"


def test_a_picture_goes_to_the_board_alone(tmp_path):
    file = io.BytesIO()
    Image.new("RGB", (7, 5)).save(file, "png")
    log = MetricsLog(tmp_path, first_step=0)
    log.write_picture("examples", file.getvalue(), step=4)
    log.close()
    ((step, one),) = [(event.step, one) for event in read_events(tmp_path) for one in event.summary.value]
    assert (one.tag, step, one.image.width, one.image.height) == ("examples", 4, 7, 5)
    assert one.image.encoded_image_string == file.getvalue()
    assert read(tmp_path) == []
    silent = MetricsLog(tmp_path / "silent", first_step=0, silent=True)
    silent.write_picture("examples", file.getvalue(), step=4)
    silent.write("train", step=1, epoch=0, numbers={"a": 1.0})
    silent.close()
    assert not (tmp_path / "silent").exists()


def test_a_full_disk_stops_the_run_at_once(tmp_path, monkeypatch):
    (tmp_path / "other" / "metrics.jsonl").mkdir(parents=True)
    with pytest.raises(RunStopped, match=r"metrics\.jsonl: metrics cannot be written \(Is a directory\)"):
        MetricsLog(tmp_path / "other", first_step=0)
    log = MetricsLog(tmp_path, first_step=0)

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    writer = log._board._writer
    monkeypatch.setattr(writer, "write_event", fail)
    for step in range(1, 30):  # tensorboardX's own writer would block forever at the eleventh scalar
        with pytest.raises(RunStopped, match=r"metrics\.jsonl: metrics cannot be written \(No space left on device\)"):
            log.write("train", step=step, epoch=0, numbers={"a": 1.0})
    monkeypatch.setattr(writer, "close", fail)
    log.close()


def test_means_leave_nan_out_and_go_on_from_a_saved_state():
    means = Means()
    means.add({"reward": 1.0, "judge": math.nan})
    means.add({"reward": math.nan, "judge": math.nan})
    means = Means(json.loads(json.dumps(means.get_state())))
    means.add({"reward": 2.0, "length": 7})
    found = means.pop()
    assert (found["reward"], found["length"]) == (1.5, 7.0)
    assert math.isnan(found["judge"])
    assert means.pop() == {}
