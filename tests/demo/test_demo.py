import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import numpy as np
import pytest
from PIL import Image
from policies.policy_workdir import make_policy_workdir
from refusals import edit_json, refuse
from report.browser import Watched, find_violations, open_browser, open_demo, upload_to_demo
from trained_workdir import make_trained_workdir, tiny_encoder

from stepcot_jax.box import Box
from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.data.phantom.phantom import draw_case
from stepcot_jax.extras.demo.command import import_gradio, main
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reading.corrections import read_corrections
from stepcot_jax.reading.policy_reader import Answered
from stepcot_jax.reasoning.replies import Reply

pytestmark = pytest.mark.slow
ROOT = pathlib.Path(__file__).parents[2]
TINY_DEMO = """
import sys
from trained_workdir import tiny_encoder
from stepcot_jax.extras.demo.command import main
from stepcot_jax.host.errors import run_tool
with tiny_encoder():
    run_tool(lambda: main(sys.argv[1:]))
"""


@pytest.fixture(autouse=True)
def take_back(monkeypatch):
    """What a command that is called here changes in this process is taken back."""
    monkeypatch.setattr("signal.signal", lambda *_: None)
    for name in ("GRADIO_TEMP_DIR", "no_proxy"):
        monkeypatch.setenv(name, "")


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "run"
    make_trained_workdir(folder)
    edit_json(folder / "settings.json", lambda found: found["evaluation"].update(least_gain=0.0))  # random networks
    # The page marks a step as worth checking only if the run measured that later answers follow.
    follows = {name: {"mean_movement": 0.2} for name in ("teacher", "student", "plain")}  # whichever is read
    (folder / "statistics.json").write_text(json.dumps({"reliance": follows}))
    return folder


class Served:
    def __init__(self, workdir, temporary):
        self.temporary = temporary
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "TMPDIR": str(temporary)}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
        self.process = subprocess.Popen(
            [sys.executable, "-c", TINY_DEMO, f"--checkpoint={workdir}", "--port=0"],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        line = self.process.stdout.readline()
        assert line.startswith("http://127.0.0.1:"), self.process.stderr.read()
        self.url = line.split()[0]
        self.port = int(self.url.rpartition(":")[2])

    def stop(self):
        """Interrupt the server; it must leave neither files nor a traceback."""
        self.process.send_signal(signal.SIGINT)
        _, errors = self.process.communicate(timeout=30)
        assert self.process.returncode == 130
        assert "Traceback" not in errors
        assert not list(self.temporary.glob("stepcot-demo-*"))

    def kept(self):
        files = [path for path in self.temporary.rglob("*") if path.is_file()]
        return [path for path in files if path.stat().st_size and not path.name.endswith(".lock")]


@pytest.fixture(scope="module")
def served(workdir, tmp_path_factory):
    pytest.importorskip("gradio", reason="needs gradio (the extra demo)")
    server = Served(workdir, tmp_path_factory.mktemp("temporary"))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def browser(served):
    with open_browser() as opened:
        yield opened


@pytest.fixture
def page(browser, served):
    watched = Watched(browser)
    open_demo(watched, served.url, "#radiograph input[type=file]")
    yield watched
    watched.close()
    assert not [url for url in watched.requests if not url.startswith((served.url, "data:", "blob:"))]


@pytest.fixture(scope="module")
def radiograph(tmp_path_factory):
    path = tmp_path_factory.mktemp("image") / "patient_name.png"
    Image.fromarray(draw_case(3, seed=5, size=48).image).save(path)
    return path


def read_panels(tab):
    tab.wait_for_selector("#view .panels figure")
    return tab.locator("#view .panels figcaption").all_inner_texts()[1:]


def wait_for_another(tab, shown):
    tab.wait_for_function("(old) => document.querySelector('#view .panels img')?.src !== old", arg=shown)


def is_in_sight(tab, part):
    box = part.bounding_box()
    return box["y"] >= 0 and box["y"] + box["height"] <= tab.viewport_size["height"]


def test_a_radiograph_is_read_corrected_and_saved(page, served, radiograph, tmp_path):
    tab = page.tab
    assert tab.locator("#examples input").count() == 6
    assert len(read_panels(tab)) == 7  # of the first example, when the page opens
    example = tab.locator("#view .panels img").first.get_attribute("src")
    tab.set_input_files("#radiograph input[type=file]", radiograph)
    wait_for_another(tab, example)
    before = read_panels(tab)
    assert tab.locator("#view meter").count() == 14
    for step, text in zip(DEFAULT_CHAIN.steps, before, strict=True):
        assert step.name in text
        assert "%" in text
    maps = tab.locator("#view .panels img").evaluate_all("images => images.map(image => image.src)")
    assert len(set(maps)) > 4
    steps = tab.locator("fieldset:not(#examples)")
    wrong = steps.first.locator("label:has(input:not(:checked))").first
    named = wrong.inner_text().partition(" (")[0]
    wrong.click()
    tab.wait_for_selector("#view figure.given")
    assert "(given)" in read_panels(tab)[0]
    assert steps.first.locator("label:has(input:checked)").inner_text() == f"{named} (corrected)"
    assert "correction" in tab.locator("#effect .changes").inner_text()
    assert tab.locator("#view .panels img").nth(1).get_attribute("src") != maps[1]  # it explains the given answer
    assert tab.get_by_text("Detection (corrected)").count() == 1
    assert tab.locator("#view figure.worth").count() == tab.get_by_text("(worth checking)").count() == 1
    assert all("→" in line for line in tab.locator("#view .asked li").all_inner_texts())
    with tab.expect_download() as saved:
        tab.click("a.save")
    saved.value.save_as(tmp_path / saved.value.suggested_filename)
    assert list(read_corrections([str(tmp_path / "reading.json")])) == [DEFAULT_CHAIN.steps[0].name]
    assert find_violations(tab) == []
    assert page.overflow <= 0
    for width in (1280, 390):  # the effect stays in sight of a click anywhere
        tab.set_viewport_size({"width": width, "height": 900})
        last = steps.last.locator("label:has(input:not(:checked))").first
        last.click()
        tab.wait_for_function("() => document.querySelector('#effect .effect').innerText.includes('(corrected)')")
        assert is_in_sight(tab, tab.locator("#effect"))
        assert is_in_sight(tab, steps.last.locator("label:has(input:checked)"))
        assert page.overflow <= 0
    tab.locator("#undo").click()
    tab.wait_for_selector("#view figure.given", state="detached")
    assert read_panels(tab) == before
    tab.locator("#examples input").nth(1).click()
    wait_for_another(tab, maps[0])
    assert served.kept() == []


def test_a_policy_is_asked_about_a_radiograph(browser, radiograph, tmp_path):
    make_policy_workdir(tmp_path / "run")
    (tmp_path / "temporary").mkdir()
    server, watched = Served(tmp_path / "run", tmp_path / "temporary"), Watched(browser)
    open_demo(watched, server.url, "#asked-radiograph input[type=file]")
    tab = watched.tab
    upload_to_demo(watched, "#asked-radiograph input[type=file]", radiograph)
    question = tab.locator("#question input, #question textarea").first
    question.fill("Is there a mass?")
    question.press("Tab")
    tab.click("#ask")
    tab.wait_for_selector("#answer img")
    assert server.kept() == []
    watched.close()
    server.stop()


def test_a_file_that_is_no_image_is_refused_and_deleted(page, served, tmp_path):
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"<script>no image</script>")
    page.tab.set_input_files("#radiograph input[type=file]", bad)
    page.tab.wait_for_selector("#view .problem")
    assert page.tab.get_by_text("expected a PNG").count() == 1  # one sentence, not one on each part of the page
    assert page.tab.locator("#view .panels, #view script").count() == 0
    assert served.kept() == []


def test_replies_are_escaped_and_boxes_listed():
    pytest.importorskip("gradio", reason="needs gradio (the extra demo)")
    from stepcot_jax.extras.demo.page import write_answer

    about = {"question": "?", "kind": "closed", "choices": (), "text": "<script>alert(1)</script>", "answer": "Yes"}
    boxes = (Box("<i>lung</i>", (1.2, 2.0, 30.0, 39.6)),)
    seen = {"image_size": (50, 40), "picture": np.zeros((40, 50, 3), np.uint8), "notes": ("misses <the> pixels",)}
    reply = Reply("gemex", answer="<b>Yes</b>", problems=("<think> is missing",))
    page = write_answer(Answered(**about, reply=reply, boxes=boxes, **seen))
    assert "<script>" not in page
    assert "&lt;i&gt;lung&lt;/i&gt;: 1, 2, 30, 40 in pixels of 50 x 40" in page
    assert "Not well formed: &lt;think&gt; is missing." in page
    assert "Note: misses &lt;the&gt; pixels." in page


# What visitors may not do.


def test_the_server_tells_browsers_to_ask_no_one_else_and_keep_nothing(served):
    with urllib.request.urlopen(served.url) as answer:  # noqa: S310
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'self'" in policy
        assert "http" not in policy
        assert answer.headers["Cache-Control"] == "no-store"
    for path in ("/docs", "/openapi.json"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(served.url + path)  # noqa: S310


def send(url, content, **headers):
    request = urllib.request.Request(url, data=content, headers=headers)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def upload(served, content):
    part = b'--xx\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
    body = part + content + b"\r\n--xx--\r\n"
    kind = "multipart/form-data; boundary=xx"
    status, (path,) = send(f"{served.url}/gradio_api/upload?upload_id=1", body, **{"Content-Type": kind})
    assert status == 200
    return path


def show(served, path, *, session="s", **headers):
    """What the page shows of a file that a request names; a refusal's status otherwise."""
    with urllib.request.urlopen(f"{served.url}/config", timeout=60) as answer:  # noqa: S310
        config = json.loads(answer.read())
    events = [each["id"] for each in config["dependencies"] if any(kind == "upload" for _, kind in each["targets"])]
    data = [{"path": path, "meta": {"_type": "gradio.FileData"}}]
    body = json.dumps({"data": data, "fn_index": events[0], "session_hash": session}).encode()
    status, _ = send(f"{served.url}/gradio_api/queue/join", body, **{"Content-Type": "application/json", **headers})
    if status != 200:
        return status
    with urllib.request.urlopen(f"{served.url}/gradio_api/queue/data?session_hash={session}", timeout=60) as answer:  # noqa: S310
        for line in answer:
            if b"process_completed" in line:
                return json.loads(line.removeprefix(b"data: "))["output"]["data"][1]
    return None


def test_no_file_but_an_upload_is_shown(served, radiograph, tmp_path):
    link, uploaded = tmp_path / "link.png", upload(served, radiograph.read_bytes())
    link.symlink_to(radiograph)
    dotted = f"{pathlib.Path(uploaded).parent}/../{pathlib.Path(uploaded).parent.name}/a.png"
    for path in (radiograph, link, "/dev/zero", f"{uploaded}/../../x.png", dotted, f"file://{radiograph}"):
        assert show(served, str(path)) == 403
    other = upload(served, radiograph.read_bytes())
    assert other != uploaded  # another visitor has a copy
    for number, path in enumerate((uploaded, other)):
        assert 'class="panels"' in show(served, path, session=f"visitor-{number}")
    assert served.kept() == []
    assert show(served, uploaded) == 403  # deleted, as it was read
    status, _ = send(f"{served.url}/gradio_api/run/predict", b'{"data": []}')
    assert status == 404
    for path in (radiograph, uploaded):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{served.url}/gradio_api/file={path}", timeout=60)  # noqa: S310


def test_a_page_of_another_site_gets_nothing(served, radiograph):
    path = upload(served, radiograph.read_bytes())
    for status, headers in (
        (400, {"Host": f"evil.example:{served.port}"}),
        (403, {"Origin": "http://evil.example"}),
        (403, {"Origin": "null"}),
    ):
        assert show(served, path, **headers) == status
        request = urllib.request.Request(served.url, headers=headers)  # noqa: S310
        with pytest.raises(urllib.error.HTTPError, match=str(status)):
            urllib.request.urlopen(request, timeout=60)  # noqa: S310
    forwarded = {"Host": "localhost:9000", "Origin": "http://localhost:9000"}
    assert 'class="panels"' in show(served, path, **forwarded)


def test_only_this_machine_is_listened_to_and_a_port_that_is_taken_is_named(workdir, served):
    with socket.socket() as other, pytest.raises(OSError):  # noqa: PT012
        other.settimeout(2)
        other.connect(("127.0.0.2", served.port))
    with tiny_encoder(), pytest.raises(BadInput, match=f"port {served.port}"):
        main([f"--checkpoint={workdir}", f"--port={served.port}"])


def test_no_wildcard_of_hosts_is_allowed(workdir):
    pytest.importorskip("gradio", reason="needs gradio (the extra demo)")
    with tiny_encoder():
        refuse("--allow-host: '\\*' stands for nothing", main, [f"--checkpoint={workdir}", "--allow-host=*.example"])


def test_without_gradio_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    monkeypatch.setenv("GRADIO_ANALYTICS_ENABLED", "")
    refuse(r'pip install -e "\.\[demo\]"', import_gradio)
    assert os.environ["GRADIO_ANALYTICS_ENABLED"] == "False"
