"""Where a language model is asked: its address, its settings, its key, and a connection that cannot be flooded."""

import dataclasses
import functools
import logging
import math
import os
import ssl
import urllib.parse
from collections.abc import AsyncIterator
from typing import Any

from stepcot_jax.host.errors import BadInput

DEFAULT_BASE_URL = "https://api.openai.com/v1"
DEFAULT_KEY_VARIABLE = "OPENAI_API_KEY"

_PORTS = {"http": 80, "https": 443}
_FLAGS = {
    "max_answer_tokens": "--max-answer-tokens",
    "timeout": "--timeout",
    "max_response_bytes": "max_response_bytes",
    "num_attempts": "--attempts",
}
_NO_KEY = "none"
_SHORTEST_SECRET = 8


class Unreadable(RuntimeError):
    """A response longer than the endpoint's `max_response_bytes`, or in a compression that was not asked for.

    Attributes:
      status: HTTP status of the response.
      is_too_large: whether it was its length.
    """

    def __init__(self, message: str, *, status: int, is_too_large: bool) -> None:
        super().__init__(message)
        self.status, self.is_too_large = status, is_too_large


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """A model behind an OpenAI-compatible address.

    Attributes:
      model: as the endpoint calls it.
      base_url: address up to and with the version, such as "http://localhost:11434/v1".
      key_variable: environment variable with the key, which itself is in no setting; "" where no key is sent.
      temperature: of the decoding; None leaves it to endpoints that refuse the setting.
      seed: of the decoding; None leaves it to endpoints that refuse the setting.
      max_answer_tokens: tokens of one answer.
      timeout: seconds for one request as a whole, however slowly it drips.
      max_response_bytes: bytes of one response.
      num_attempts: requests until one is given up.
      first_wait: seconds before the second attempt; doubles with each further one.
      longest_wait: seconds that an endpoint may ask to wait before the run stops instead.
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
            raise BadInput(f"--model: found {self.model[:80]!r}, accepted is a model's name")
        _check_address(self.base_url)
        for name, flag in _FLAGS.items():
            if not 0 < getattr(self, name) < math.inf:
                raise BadInput(f"{flag}: found {getattr(self, name)}, accepted is a number > 0")
        if self.temperature is not None and not 0 <= self.temperature <= 2:
            raise BadInput(f"--temperature: found {self.temperature}, accepted is a number from 0 to 2, or none")

    @property
    def origin(self) -> tuple[str, str, int]:
        """Scheme, host and port: who is told what is sent there."""
        parts = urllib.parse.urlsplit(self.base_url)
        return parts.scheme, parts.hostname or "", parts.port or _PORTS[parts.scheme]

    @property
    def where_key_is(self) -> str:
        """Where a person has to put the key, for messages."""
        return f"in {self.key_variable}" if self.key_variable else "in a variable named by key-variable="

    @property
    def decoding(self) -> tuple[tuple[str, float | int], ...]:
        """The settings that an answer depends on; those left to the endpoint are not among them."""
        settings = {
            "max_answer_tokens": self.max_answer_tokens,
            "seed": self.seed,
            "temperature": self.temperature,
        }
        return tuple((name, value) for name, value in settings.items() if value is not None)


def read_key(endpoint: Endpoint) -> str:
    """The key in the environment; a placeholder where there is none and the endpoint is not the default one.

    Raises:
      BadInput: there is none for the default endpoint, or it cannot be a key; the message never shows it.
    """
    key = os.environ.get(endpoint.key_variable, "").strip() if endpoint.key_variable else ""
    if not key:
        if endpoint.base_url == DEFAULT_BASE_URL:
            if not endpoint.key_variable:
                raise BadInput(f"--voter: found {DEFAULT_BASE_URL} without key-variable=, accepted is one with its key")
            raise BadInput(
                f"environment variable {endpoint.key_variable}: found nothing, "
                f"accepted is the key of {DEFAULT_BASE_URL}; or name another endpoint with --base-url"
            )
        return _NO_KEY
    if not key.isascii() or not key.isprintable() or " " in key:
        raise BadInput(
            f"environment variable {endpoint.key_variable}: found characters that a key cannot have, "
            "accepted are printable ASCII characters without spaces"
        )
    return key


def hide_key(text: str, key: str) -> str:
    """`text` without the key; placeholders such as "ollama", too short to be a secret, are left.

    >>> hide_key("denied: sk-0123456789", "sk-0123456789")
    'denied: [key]'
    """
    return text.replace(key, "[key]") if len(key) >= _SHORTEST_SECRET else text


def connect(endpoint: Endpoint, key: str) -> Any:
    """A client of the openai package that follows no redirect, retries nothing and reads no endless response.

    Raises:
      BadInput: the package is not installed.
    """
    try:
        import httpx2
        import openai
    except ImportError as error:
        raise BadInput(
            f"--annotator=llm: found no {error.name}, accepted is the extra: pip install 'stepcot-jax[annotate]'"
        ) from None
    # At their lower levels they log whole requests, and so reports.
    for name in ("openai", "httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger(name).level))

    class Limited(httpx2.AsyncByteStream):
        """A response's bytes up to a number of them."""

        def __init__(self, stream: Any, status: int) -> None:
            self._stream, self._status = stream, status

        async def __aiter__(self) -> AsyncIterator[bytes]:
            num_bytes = 0
            async for piece in self._stream:
                num_bytes += len(piece)
                if num_bytes > endpoint.max_response_bytes:
                    message = f"found a response of more than {endpoint.max_response_bytes} bytes"
                    raise Unreadable(message, status=self._status, is_too_large=True)
                yield piece

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def limit(response: Any) -> None:
        # Few compressed bytes can be very many.
        if response.headers.get("content-encoding", "identity") != "identity":
            message = "found a compressed response, which was not asked for"
            raise Unreadable(message, status=response.status_code, is_too_large=False)
        response.stream = Limited(response.stream, response.status_code)

    http_client = openai.DefaultAsyncHttpx2Client(
        follow_redirects=False,  # a report goes to the address that was named and to no other
        event_hooks={"response": [limit]},
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
    # Taken from the environment, these would go to whatever host is asked.
    client.organization = client.project = None
    return client


@functools.cache
def _make_tls_context() -> ssl.SSLContext:
    """The usual verification of certificates; reading these takes longer than all else of a client, hence once."""
    import httpx2

    return httpx2.create_ssl_context()


def _check_address(base_url: str) -> None:
    accepted = "accepted is http(s)://HOST[:PORT]/PATH without user, password or query"
    try:
        parts = urllib.parse.urlsplit(base_url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise BadInput(f"--base-url: found what cannot be read as an address, {accepted}") from None
    # Shown in part only, for the rest may be a password.
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise BadInput(f"--base-url: found an address with a user or a query ({parts.hostname}), {accepted}")
    if not is_address:
        raise BadInput(f"--base-url: found {base_url[:80]!r}, {accepted}")
