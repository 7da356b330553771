import asyncio
import json
import os
import pathlib
import secrets

import pytest
from refusals import refuse

pytest.importorskip("gradio", reason="needs gradio (the extra demo)")

from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request

from stepcot_jax.extras.demo import guard
from stepcot_jax.extras.demo.guard import Guard, Uploads

JOIN = "/gradio_api/queue/join"
FOREIGN = ("/dev/zero", "../other.png", "https://evil.example/x.png", "", 7, [], {})


def write_upload(uploads, name="a.png", content=b"picture"):
    folder = uploads.folder / secrets.token_hex(16)
    folder.mkdir()
    path = folder / name
    path.write_bytes(content)
    uploads.add(str(path))
    return path


def ask(
    uploads,
    *,
    method="GET",
    path="/",
    host="127.0.0.1:7860",
    origin=None,
    body=b"",
    names=("10.0.0.9",),
    kind="multipart/form-data; boundary=xx",
):
    sent = []

    async def page(scope, receive, send):
        parts, more = [], True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ConnectionError
            parts.append(message["body"])
            more = message.get("more_body", False)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"page " + b"".join(parts)})

    parts = [body[start : start + 2**16] for start in range(0, len(body), 2**16)] or [b""]
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    messages[-1]["more_body"] = False

    async def receive():
        return messages.pop(0)

    async def send(message):
        sent.append(message)

    headers = [(b"host", host.encode()), (b"content-type", kind.encode())]
    headers += [(b"origin", origin.encode())] if origin is not None else []
    path, _, query = path.partition("?")
    scope = {"type": "http", "method": method, "path": path, "headers": headers, "query_string": query.encode()}
    app = TrustedHostMiddleware(Guard(page, uploads=uploads), allowed_hosts=["localhost", "127.0.0.1", "[::1]", *names])
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent).decode()


@pytest.fixture
def uploads(tmp_path):
    (tmp_path / "uploads").mkdir()
    return Uploads(tmp_path / "uploads")


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1:8080", "[::1]:7860", "10.0.0.9:7860", "scans.clinic.example:443"]
)
def test_known_names_are_answered_on_any_port(uploads, host):
    assert ask(uploads, host=host, names=("10.0.0.9", "scans.clinic.example")) == (200, "page ")
    assert ask(uploads, host=host, names=("10.0.0.9", "scans.clinic.example"), origin=f"http://{host}")[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:7860", "localhost.evil.example", "127.0.0.1.evil.example"),
        *("", "localhost@evil.example", "localhost:7860:1", "localhost/", "192.168.1.7:7860", "[::1"),
    ],
)  # fmt: skip
def test_other_names_are_refused(uploads, host):
    assert ask(uploads, host=host)[0] == 400


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost:7860", "http://127.0.0.1", "127.0.0.1:7860", ""]
)
def test_other_origins_are_refused(uploads, origin):
    assert ask(uploads, origin=origin)[0] == 403
    assert ask(uploads, method="POST", path=JOIN, origin=origin, body=b"{}")[0] == 403


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/gradio_api/file=/etc/hostname"),
        ("GET", "/gradio_api/proxy=http://evil.example"),
        *(("POST", f"/gradio_api/{name}") for name in ("run/predict", "process_recording", "vibe-edit")),
        *(("POST", "/"), ("PUT", "/")),
        ("GET", "/gradio_api/queue/data/../../file=/etc/hostname"),
        ("GET", "/?deep_link=x"),
    ],
)
def test_what_the_page_does_not_use_is_not_there(uploads, method, path):
    assert ask(uploads, method=method, path=path) == (404, "not a part of this page")


def test_a_request_may_name_uploads_alone(uploads, tmp_path):
    upload, other = write_upload(uploads), tmp_path / "other.png"
    other.write_bytes(b"nobody's")
    link = upload.with_name("link.png")
    link.symlink_to(other)
    dotted = f"{upload.parent}/../{upload.parent.name}/a.png"
    for path in (str(other), str(link), dotted, *FOREIGN):
        body = json.dumps({"data": [None, {"a": [{"path": path}]}]}).encode()
        assert ask(uploads, method="POST", path=JOIN, body=body)[0] == 403, path
    body = json.dumps({"data": [{"path": str(upload), "meta": {"_type": "gradio.FileData"}}]}).encode()
    assert ask(uploads, method="POST", path=JOIN, body=body) == (200, f"page {body.decode()}")


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"[" * 50_000, 400), (b'"' + b"x" * 2**17 + b'"', 413), (b"path", 400), (b"", 200), (b"\xff", 400)],
)
def test_bodies_are_limited(uploads, body, status):
    assert ask(uploads, method="POST", path=JOIN, body=body)[0] == status


def test_an_upload_above_the_limit_is_cut_off(uploads):
    part = b'--xx\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
    for body, status in ((part + bytes(66 * 10**6) + b"\r\n--xx--\r\n", 413), (part * 600_000, 413), (b"", 400)):
        assert ask(uploads, method="POST", path="/gradio_api/upload", body=body)[0] == status
        assert list(uploads.folder.iterdir()) == []
    assert ask(uploads, method="POST", path="/gradio_api/upload", kind="text/plain")[0] == 400


def test_an_upload_is_read_once_and_deleted(uploads):
    first, second = write_upload(uploads), write_upload(uploads)
    assert uploads.read_once(str(first)) == b"picture"
    assert not first.parent.exists()
    refuse("was read already", uploads.read_once, str(first))
    assert uploads.read_once(str(second)) == b"picture"  # another visitor's copy of the same file


@pytest.mark.parametrize("replace", [os.mkfifo, lambda path: path.symlink_to("/etc/hostname"), os.mkdir])
def test_an_upload_that_is_no_regular_file_any_more_is_not_read(uploads, replace):
    path = write_upload(uploads)
    path.unlink()
    replace(path)
    refuse("not a regular file", uploads.read_once, str(path))
    assert not path.parent.exists()


def test_uploads_that_nobody_reads_are_deleted(uploads, monkeypatch):
    many = [write_upload(uploads, f"{number}.png") for number in range(40)]
    assert [str(path) in uploads for path in many] == [False] * 8 + [True] * 32
    assert [path.exists() for path in many] == [False] * 8 + [True] * 32


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "status"),
    [
        *(([("files", "a.png")], 200), ([("files", "a.png"), ("files", "b.png")], 400), ([("other", "a.png")], 400)),
        *(([("files", None)], 400), ([("files", "../../x.png")], 200), ([], 400), ("cut off", 413)),
    ],
)
def test_a_request_that_is_no_upload_or_is_not_read_leaves_nothing(uploads, monkeypatch, fields, status):
    body = b""
    for name, filename in [("files", "a.png")] if fields == "cut off" else fields:
        of_file = "" if filename is None else f'; filename="{filename}"'
        body += f'--xx\r\nContent-Disposition: form-data; name="{name}"{of_file}\r\n\r\ncontent\r\n'.encode()
    body = body[:-4] if fields == "cut off" else body + b"--xx--\r\n"
    messages = [{"type": "http.request", "body": body, "more_body": True}, {"type": "http.disconnect"}]
    if fields != "cut off":
        messages = [{"type": "http.request", "body": body, "more_body": False}]
    headers = [(b"content-type", b"multipart/form-data; boundary=xx")]
    scope = {"type": "http", "method": "POST", "path": "/", "headers": headers, "query_string": b""}

    async def receive():
        return messages.pop(0)

    monkeypatch.setattr(guard, "_SECONDS_KEPT", 0.01)

    async def run():
        response = await uploads.receive(Request(scope, receive))
        if status == 200:
            (path,) = json.loads(response.body)
            assert pathlib.Path(path).read_bytes() == b"content"
            await asyncio.sleep(0.05)  # nobody reads it
            refuse("not an upload of this page, or was read", uploads.read_once, path)
        return response

    assert asyncio.run(run()).status_code == status
    assert list(uploads.folder.iterdir()) == []
