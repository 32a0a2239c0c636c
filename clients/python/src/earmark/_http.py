"""The HTTP library: `httpx`, or `httpx2` where only that is installed. Both have the same interface."""

from __future__ import annotations

import ssl
from functools import lru_cache
from typing import TYPE_CHECKING

from .errors import Failure, InputError, NoAnswer, Unreachable

if TYPE_CHECKING:
    import httpx as httpx
else:
    try:
        import httpx
    except ModuleNotFoundError:
        import httpx2 as httpx

#: Idle connections are closed after this number of seconds, before the server closes them at 60.
KEEP_SECONDS = 30.0


# Few URLs make most of the requests, and parsing one takes a twelfth of the time of a request.
@lru_cache(maxsize=64)
def url(text: str) -> httpx.URL:
    """The URL of a request."""
    return httpx.URL(text)


def limits(servers: int) -> httpx.Limits:
    """The bounds of one transport: a connection to each server. A client has a stack of transports, because the pool of
    the library takes a time that grows with the square of its connections."""
    return httpx.Limits(max_connections=servers, max_keepalive_connections=servers, keepalive_expiry=KEEP_SECONDS)


def tls(urls: tuple[str, ...], roots: str | None) -> ssl.SSLContext | bool:
    """The root certificates of the machine, or those of a PEM file. They take a while to read, so that servers without
    TLS go without."""
    if not any(url.startswith("https:") for url in urls):
        return False
    try:
        return ssl.create_default_context(cafile=roots)
    except OSError as error:
        why = error.strerror or str(error)
        raise InputError(f"roots: found {roots!r}, allowed is a readable file of PEM certificates: {why}") from error


def timeouts(connect: float, attempt: float) -> dict[str, dict[str, float]]:
    """The timeouts of one request, in seconds."""
    attempt = max(attempt, 0.001)
    return {"timeout": {"connect": min(connect, attempt), "read": attempt, "write": attempt, "pool": attempt}}


def failed(server: str, error: Exception) -> Failure:
    """The failure behind an error of the library. Only a failed connection is certain to have sent nothing."""
    why = str(error) or type(error).__name__
    if "WRONG_VERSION_NUMBER" in why:
        why += "; it does not speak TLS: use http://"
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)):
        return Unreachable(f"{server} cannot be reached: {why}")
    return NoAnswer(f"{server} gave no answer: {why}")
