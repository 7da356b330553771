"""A language model behind an OpenAI-compatible address: settings, key, and a connection with bounded responses."""

import dataclasses
import functools
import logging
import math
import os
import ssl
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import install_extra

DEFAULT_BASE_URL = "https://api.openai.com/v1"
DEFAULT_KEY_VARIABLE = "OPENAI_API_KEY"

_PORTS = {"http": 80, "https": 443}
_FLAGS = {"max_answer_tokens": "--max-answer-tokens", "timeout": "--timeout", "num_attempts": "--attempts"}
_NO_KEY = "none"
_SHORTEST_SECRET = 8


class Unreadable(RuntimeError):
    """A response that is longer than `max_response_bytes`, or compressed without being asked to."""

    def __init__(self, message: str, *, status: int, is_too_large: bool) -> None:
        super().__init__(message)
        self.status, self.is_too_large = status, is_too_large


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """A model behind an OpenAI-compatible address.

    Attributes:
      base_url: address including the version, such as "http://localhost:11434/v1".
      key_variable: environment variable that holds the key; "" sends no key.
      temperature: decoding temperature, 0 to 2; None omits the setting.
      seed: decoding seed; None omits the setting.
      max_answer_tokens: most tokens of one answer.
      timeout: seconds for a whole request, however slowly the response drips.
      max_response_bytes: most bytes of one response.
      num_attempts: attempts before a request is given up.
      first_wait: seconds before the second attempt; doubles with each attempt.
      longest_wait: longest `Retry-After` in seconds; a longer one stops the run.
    """

    model: str
    base_url: str = DEFAULT_BASE_URL
    key_variable: str = DEFAULT_KEY_VARIABLE
    temperature: float | None = 0.0
    seed: int | None = 0
    max_answer_tokens: int = 2048
    timeout: float = 120.0
    max_response_bytes: int = 1 << 20
    num_attempts: int = 8
    first_wait: float = 0.5
    longest_wait: float = 300.0

    def __post_init__(self) -> None:
        if not self.model.strip() or not self.model.isprintable():
            raise BadInput(f"--model: {self.model[:80]!r} is not a model name")
        _check_address(self.base_url)
        for name, flag in _FLAGS.items():
            if not 0 < getattr(self, name) < math.inf:
                raise BadInput(f"{flag}: {getattr(self, name)} must be a finite number above 0")
        if self.temperature is not None and not 0 <= self.temperature <= 2:
            raise BadInput(f"--temperature: {self.temperature} must be from 0 to 2")

    @property
    def origin(self) -> tuple[str, str, int]:
        """Scheme, host and port: who receives the requests."""
        parts = urllib.parse.urlsplit(self.base_url)
        return parts.scheme, parts.hostname or "", parts.port or _PORTS[parts.scheme]

    @property
    def decoding(self) -> tuple[tuple[str, float | int], ...]:
        """The settings that an answer depends on, without omitted ones."""
        settings = {name: getattr(self, name) for name in ("max_answer_tokens", "seed", "temperature")}
        return tuple((name, value) for name, value in settings.items() if value is not None)


def read_key(endpoint: Endpoint) -> str:
    """Return the key from the environment, or a placeholder if an endpoint other than the default has none."""
    key = os.environ.get(endpoint.key_variable, "").strip() if endpoint.key_variable else ""
    if not key:
        if endpoint.base_url != DEFAULT_BASE_URL:
            return _NO_KEY
        if not endpoint.key_variable:
            raise BadInput(f"--voter: key-variable= is required with {DEFAULT_BASE_URL}")
        raise BadInput(
            f"environment variable {endpoint.key_variable} is required (the key of {DEFAULT_BASE_URL}; or pass "
            "another --base-url)"
        )
    if not key.isascii() or not key.isprintable() or " " in key:
        raise BadInput(f"environment variable {endpoint.key_variable} must be printable ASCII without spaces")
    return key


def hide_key(text: str, key: str) -> str:
    """Return `text` with the key masked, except short placeholders such as "ollama".

    >>> hide_key("denied: sk-0123456789", "sk-0123456789")
    'denied: [key]'
    """
    return text.replace(key, "[key]") if len(key) >= _SHORTEST_SECRET else text


def _make_limit(byte_stream: Any, max_bytes: int) -> Callable[[Any], Awaitable[None]]:
    """Return a hook that bounds each response, with the HTTP client's class of streams."""

    class Limited(byte_stream):
        """Raises once a response exceeds the limit."""

        def __init__(self, stream: Any, status: int) -> None:
            self._stream, self._status = stream, status

        async def __aiter__(self) -> AsyncIterator[bytes]:
            num_bytes = 0
            async for piece in self._stream:
                num_bytes += len(piece)
                if num_bytes > max_bytes:
                    message = f"the response exceeds {max_bytes} bytes"
                    raise Unreadable(message, status=self._status, is_too_large=True)
                yield piece

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def limit(response: Any) -> None:
        # A few compressed bytes can expand without limit.
        if response.headers.get("content-encoding", "identity") != "identity":
            message = "the response is compressed without being asked to"
            raise Unreadable(message, status=response.status_code, is_too_large=False)
        response.stream = Limited(response.stream, response.status_code)

    return limit


def connect(endpoint: Endpoint, key: str) -> Any:
    """Return an openai client that bounds responses and leaves redirects and retries to `client.Client`.

    The package's own retries stay off: they resend before the ledger can record the lost attempt, each request backs
    off alone, and its waits of up to two minutes cannot be ended by a stopped run.
    """
    try:
        import httpx2
        import openai
    except ImportError as error:
        raise BadInput(f"a language model requires {error.name}: {install_extra('annotate')}") from None
    # Below WARNING they log whole requests, including reports.
    for name in ("openai", "httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger(name).level))

    http_client = openai.DefaultAsyncHttpx2Client(
        follow_redirects=False,  # reports go to the configured address only
        event_hooks={"response": [_make_limit(httpx2.AsyncByteStream, endpoint.max_response_bytes)]},
        timeout=endpoint.timeout,
        base_url=endpoint.base_url,
        verify=_make_tls_context(),
    )
    client = openai.AsyncOpenAI(
        api_key=key,
        base_url=endpoint.base_url,
        max_retries=0,
        timeout=endpoint.timeout,
        default_headers={"Accept-Encoding": "identity"},
        http_client=http_client,
    )
    # Otherwise taken from the environment and sent to any host.
    client.organization = client.project = None
    return client


@functools.cache
def _make_tls_context() -> ssl.SSLContext:
    """Return the default TLS context, cached because loading certificates dominates the start of a client."""
    import httpx2

    return httpx2.create_ssl_context()


def _check_address(base_url: str) -> None:
    expected = "expected http(s)://HOST[:PORT]/PATH without user, password or query"
    try:
        parts = urllib.parse.urlsplit(base_url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise BadInput(f"--base-url is not an address; {expected}") from None
    # The message shows the host only: the rest may hold a password.
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise BadInput(f"--base-url: {parts.hostname} comes with a user or a query; {expected}")
    if not is_address:
        raise BadInput(f"--base-url: {base_url[:80]!r} is not an address; {expected}")
