"""A real HTTP server on localhost that answers like an OpenAI-compatible endpoint, and misbehaves when told to.

It counts what it was paid for: requests that it answered with a completion, whether or not the answer was any good.
"""

import base64
import contextlib
import gzip
import http.server
import io
import json
import socket
import threading
import time

from PIL import Image

from stepcot_jax.annotate.annotation import Annotation
from stepcot_jax.annotate.llm.interviews import write_chain_answer
from stepcot_jax.chain import DEFAULT_CHAIN

with contextlib.suppress(ImportError):  # without the extra annotate nothing is asked
    import openai._base_client

    openai._base_client.INITIAL_RETRY_DELAY = 0.02  # seconds before the second attempt, doubled with each

REPORT = "FINDINGS: The lungs are clear. The heart is of normal size. IMPRESSION: No acute disease. Number {}."
SAID = 'The report says "The lungs are clear".'
NORMAL = Annotation((0, 3, 5, 6, 4, 6, 0), (SAID,) * 7, ("The lungs are clear",) * 7)
GOOD = json.dumps(write_chain_answer(NORMAL, chain=DEFAULT_CHAIN))
NUM_TOKENS = (900, 300)


def text_of(request):
    """The text of a request's first message of the user, with or without a picture beside it."""
    content = next(each for each in request["messages"] if each["role"] == "user")["content"]
    return content if isinstance(content, str) else next(part["text"] for part in content if part["type"] == "text")


def open_url(url):
    """The picture of a data URL."""
    head, _, body = url.partition(",")
    assert head == "data:image/png;base64"
    return Image.open(io.BytesIO(base64.b64decode(body)))


def read_data(request):
    """The data block of a request's text."""
    content = text_of(request)
    return json.JSONDecoder().raw_decode(content, content.index("{"))[0]


def answer_well(request):
    """What a perfect model answers to the task at hand."""
    last = request["messages"][-1]["content"]
    if '"trust"' in last:
        return json.dumps({"reasoning": "As reported.", "trust": "yes"})
    if '"vote"' in request["messages"][0]["content"]:
        return json.dumps({"reasoning": "As reported.", "vote": "correct"})
    return GOOD


class MisbehavingServer:
    """Serves until its context ends.

    Args:
      behave: called with the request and the number of requests before it; returns what `Handler` does: None for a
        good answer, or a tuple of a name and its argument.
    """

    def __init__(self, behave=lambda request, number: None):
        self.behave = behave
        self.requests, self.headers, self.paid, self.times = [], [], [], []
        self.lock = threading.Lock()
        self.at_once = self.most_at_once = 0
        outer = self

        class Handler(_Handler):
            server_state = outer

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

            def handle_error(self, request, client_address):
                pass  # a client that was killed is no news

        self.server = Server(("127.0.0.1", 0), Handler)
        self.base_url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        state = self.server_state
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with state.lock:
            number = len(state.requests)
            state.requests.append(request)
            state.headers.append(dict(self.headers))
            state.times.append(time.monotonic())
            state.at_once += 1
            state.most_at_once = max(state.most_at_once, state.at_once)
        try:
            name, argument = state.behave(request, number) or ("answer", answer_well(request))
            getattr(self, f"do_{name}")(request, argument)
        finally:
            with state.lock:
                state.at_once -= 1

    def do_answer(self, request, content, *, usage=True, **changes):
        # Counted before it is sent: an answer on its way is one that was paid for.
        with self.server_state.lock:
            self.server_state.paid.append(request)
        self._send(200, _completion(content, usage=usage, **changes))

    def do_answer_uncounted(self, request, content):
        self.do_answer(request, content, usage=False)

    def do_answer_cut_at_the_limit(self, request, content):
        self.do_answer(request, content, finish_reason="length")

    def do_answer_slowly(self, request, seconds):
        time.sleep(seconds)
        self.do_answer(request, answer_well(request))

    def do_drip(self, request, seconds):
        """Status and headers at once, then a byte now and then."""
        body = _completion(answer_well(request))
        self._start(200, len(body))
        for byte in body:
            self.wfile.write(bytes([byte]))
            self.wfile.flush()
            time.sleep(seconds)

    def do_status(self, request, argument):
        status, body, headers = argument
        self._send(status, body if isinstance(body, bytes) else json.dumps(body).encode(), headers)

    def do_refuse_for_now(self, request, wait):
        body = json.dumps({"error": {"message": "slow down", "code": "rate_limit"}}).encode()
        self._send(429, body, {"Retry-After": str(wait)})

    def do_hang_up(self, request, _):
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def do_cut_midway(self, request, _):
        body = _completion(answer_well(request))
        self._start(200, len(body))
        self.wfile.write(body[: len(body) // 2])
        self.wfile.flush()
        self.do_hang_up(request, None)

    def do_body(self, request, body):
        self._send(200, body)

    def do_flood(self, request, argument):
        """A response without an end, chunked."""
        status, piece = argument
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            while True:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        except OSError:
            self.close_connection = True

    def do_compress(self, request, num_bytes):
        body = gzip.compress(b" " * num_bytes)
        self._send(200, body, {"Content-Encoding": "gzip"})

    def _start(self, status, length, headers=()):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(length))
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.end_headers()

    def _send(self, status, body, headers=()):
        try:
            self._start(status, len(body), headers)
            self.wfile.write(body)
            self.wfile.flush()
        except OSError:
            self.close_connection = True


def _completion(content, *, usage=True, finish_reason="stop"):
    counts = {"prompt_tokens": NUM_TOKENS[0], "completion_tokens": NUM_TOKENS[1], "total_tokens": sum(NUM_TOKENS)}
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": finish_reason}
    about = {"id": "1", "object": "chat.completion", "created": 0, "model": "served-model-0613"}
    return json.dumps({**about, "choices": [choice], **({"usage": counts} if usage else {})}).encode()
