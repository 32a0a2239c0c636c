"""Limits every attempt of the official OpenAI SDK.

client = openai.OpenAI(http_client=earmark.openai.http_client(limiter, attributes={"tenant": "acme"}))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openai import DefaultAsyncHttpxClient, DefaultHttpxClient

from . import _metered
from ._metered import OUTPUT_TOKENS_MAX, Options, Provider
from .async_limiter import AsyncLimiter
from .limiter import Limiter


def _error_body(status: int, kind: str, message: str) -> dict[str, Any]:
    codes = {429: "rate_limit_exceeded", 503: "service_unavailable"}
    code = kind if kind == "insufficient_quota" else codes.get(status)
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


PROVIDER = Provider(
    "openai",
    ("/chat/completions", "/completions", "/embeddings", "/responses"),
    _error_body,
    (429, "insufficient_quota"),
    ("/chat/completions", "/completions"),
)


def http_client(
    limiter: Limiter,
    *,
    attributes: Mapping[str, str] | None = None,
    limits: Mapping[str, str | int] | None = None,
    unmetered: Sequence[str] = (),
    output_tokens_max: int = OUTPUT_TOKENS_MAX,
    keep_alive: float | None = None,
    timeout: float = 10.0,
    transport: Any = None,
    **options: Any,
) -> DefaultHttpxClient:
    """The HTTP client for `openai.OpenAI(http_client=...)`.

    Calls are limited by the policy of the namespace, with the attributes `provider`, `model`, `attributes`, and those of
    the header `x-earmark-attributes: user=u1, feature=chat` of a request, which is not sent to the provider. With
    `limits` they are limited by these keys instead: each with an integer or `requests`, `input_tokens`, `output_tokens`
    or `tokens`, and with placeholders for attributes, such as `{"openai:{model}:tpm": "tokens"}`.

    Other posts are refused unless their path ends like one of `unmetered`. `output_tokens_max` is the bound of a call
    that names none. `keep_alive` renews the leases of long responses: the shortest timeout of their limits in seconds.
    `timeout` bounds the wait for Earmark, `transport` is the one to the provider, and further options are those of the
    SDK's `DefaultHttpxClient`."""
    given = Options(PROVIDER, attributes or {}, limits, tuple(unmetered), output_tokens_max, keep_alive, timeout)
    if transport is not None:
        options["transport"] = transport
    client: DefaultHttpxClient = _metered.metered(DefaultHttpxClient(**options), limiter, given)
    return client


def async_http_client(
    limiter: AsyncLimiter,
    *,
    attributes: Mapping[str, str] | None = None,
    limits: Mapping[str, str | int] | None = None,
    unmetered: Sequence[str] = (),
    output_tokens_max: int = OUTPUT_TOKENS_MAX,
    keep_alive: float | None = None,
    timeout: float = 10.0,
    transport: Any = None,
    **options: Any,
) -> DefaultAsyncHttpxClient:
    """The HTTP client for `openai.AsyncOpenAI(http_client=...)`, with the options of `http_client`."""
    given = Options(PROVIDER, attributes or {}, limits, tuple(unmetered), output_tokens_max, keep_alive, timeout)
    if transport is not None:
        options["transport"] = transport
    client: DefaultAsyncHttpxClient = _metered.metered(DefaultAsyncHttpxClient(**options), limiter, given)
    return client
