"""A local server with the calls that huggingface_hub makes to create, upload, list and download a model."""

import base64
import contextlib
import hashlib
import http.server
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator

from huggingface_hub import ModelCard

TOKEN = "hf_of_this_test"  # noqa: S105


class FakeHub:
    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, str]] = {}  # revision -> commit; commits are revisions of themselves
        self.files: dict[str, dict[str, bytes]] = {}  # commit -> path -> content
        self.stored: dict[str, bytes] = {}  # large files by SHA-256, as uploaded
        self.private: set[str] = set()  # names that need the token to be read
        self.cut_after: dict[str, int] = {}  # a file's path -> bytes after which its download breaks off
        self.asked: list[str] = []  # method and path of each request
        self.endpoint = ""

    def commit(self, repository: str, files: dict[str, bytes], revision: str = "main") -> str:
        known = self.repositories.setdefault(repository, {})
        whole = {**self.files.get(known.get(revision, ""), {}), **files}
        content = repr([(path, hashlib.sha256(data).hexdigest()) for path, data in sorted(whole.items())])
        name = hashlib.sha1(content.encode()).hexdigest()  # noqa: S324
        self.files[name] = whole
        known |= {revision: name, name: name}
        return name

    @contextlib.contextmanager
    def running(self) -> Iterator[str]:
        handler = type("Handler", (_Handler,), {"hub": self})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        self.endpoint = f"http://127.0.0.1:{server.server_port}"
        try:
            yield self.endpoint
        finally:
            server.shutdown()
            server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self._get(with_body=False)

    def do_GET(self):
        self._get(with_body=True)

    def do_PUT(self):
        self.hub.asked.append(f"PUT {self.path}")
        content = self._body()
        digest = self.path.rpartition("/")[2]
        assert hashlib.sha256(content).hexdigest() == digest
        self.hub.stored[digest] = content
        self._send(200, b"")

    def do_POST(self):
        self.hub.asked.append(f"POST {self.path}")
        path = urllib.parse.urlsplit(self.path).path
        body = self._body()
        if path == "/api/validate-yaml":
            return self._json({"errors": [], "warnings": []})
        if not self._may_write():
            return self._refuse(401 if "authorization" not in self.headers else 403, None)
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = "/".join(filter(None, (asked.get("organization"), asked["name"])))
            self.hub.repositories.setdefault(name, {})
            if "private" in (asked.get("visibility"), asked.get("private") and "private"):
                self.hub.private.add(name)
            return self._json({"url": f"{self.hub.endpoint}/{name}", "id": name, "name": name})
        if found := re.fullmatch(r"/api/models/(.+/.+)/preupload/main", path):
            modes = {True: "lfs", False: "regular"}
            files = [
                {"path": f["path"], "uploadMode": modes[f["path"].endswith(".safetensors")], "shouldIgnore": False}
                for f in json.loads(body)["files"]
            ]
            return self._json({"files": files})
        if re.fullmatch(r"/(.+/.+)\.git/info/lfs/objects/batch", path):
            objects = [
                {**each, "actions": {"upload": {"href": f"{self.hub.endpoint}/store/{each['oid']}"}}}
                for each in json.loads(body)["objects"]
            ]
            return self._json({"transfer": "basic", "objects": objects})
        if found := re.fullmatch(r"/api/models/(.+/.+)/commit/main", path):
            return self._commit(found[1], body)
        return self._refuse(404, "RepoNotFound")

    def _commit(self, repository, body):
        files = {}
        for line in body.decode().splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.hub.stored[value["oid"]]
        commit = self.hub.commit(repository, files)
        url = f"{self.hub.endpoint}/{repository}/commit/{commit}"
        return self._json({"success": True, "commitOid": commit, "commitUrl": url, "hookOutput": ""})

    def _get(self, *, with_body):
        self.hub.asked.append(f"{self.command} {self.path}")
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            repository, revision, kind = found[1], found[2] or "main", "info"
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/(.+)", path):
            repository, revision, kind = found[1], found[2], "tree"
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            repository, revision, kind = found[1], found[2], found[3]
        else:
            return self._refuse(404, "RepoNotFound")
        known = self.hub.repositories.get(repository)
        if known is None or (repository in self.hub.private and not self._may_write()):
            return self._refuse(401, "RepoNotFound")
        if revision not in known:
            return self._refuse(404, "RevisionNotFound")
        commit = known[revision]
        files = self.hub.files[commit]
        if kind == "info":
            siblings = [{"rfilename": name} for name in files]
            card = ModelCard(files.get("README.md", b"").decode()).data.to_dict()
            about = {"id": repository, "modelId": repository, "sha": commit, "siblings": siblings}
            return self._json({**about, "cardData": card})
        if kind == "tree":
            return self._json([_describe(name, content) for name, content in files.items()])
        if kind not in files:
            return self._refuse(404, "EntryNotFound")
        return self._send_file(kind, files[kind], commit, with_body=with_body)

    def _send_file(self, name, content, commit, *, with_body):
        first = 0
        if asked := re.fullmatch(r"bytes=(\d+)-", self.headers.get("range", "")):
            first = int(asked[1])
        self.send_response(206 if first else 200)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", commit)
        self.send_header("Content-Length", str(len(content) - first))
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if not with_body:
            return
        limit = self.hub.cut_after.get(name)
        self.wfile.write(content[first : first + limit] if limit is not None else content[first:])
        if limit is not None:
            self.close_connection = True

    def _may_write(self):
        return self.headers.get("authorization") == f"Bearer {TOKEN}"

    def _body(self):
        if self.headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        content = b""
        while size := int(self.rfile.readline(), 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return content

    def _json(self, content, status=200):
        self._send(status, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _refuse(self, status, code):
        headers = {} if code is None else {"X-Error-Code": code, "X-Error-Message": f"{code}."}
        self._send(status, b"{}", headers)

    def _send(self, status, content, headers=None):
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _describe(name, content):
    described = {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}  # noqa: S324
    if name.endswith(".safetensors"):
        lfs = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 100}
        described["lfs"] = lfs
    return described
