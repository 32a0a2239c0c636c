"""Limits every attempt of the official Anthropic SDK.

client = anthropic.Anthropic(http_client=earmark.anthropic.http_client(limiter, attributes={"tenant": "acme"}))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anthropic import DefaultAsyncHttpxClient, DefaultHttpxClient

from . import _metered
from ._metered import OUTPUT_TOKENS_MAX, Options, Provider
from .async_limiter import AsyncLimiter
from .limiter import Limiter


def _error_body(status: int, kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}}


PROVIDER = Provider("anthropic", ("/messages", "/messages/count_tokens"), _error_body, (402, "billing_error"))


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
    """The HTTP client for `anthropic.Anthropic(http_client=...)`.

    Calls are limited by the policy of the namespace, with the attributes `provider`, `model`, `attributes`, and those of
    the header `x-earmark-attributes: user=u1, feature=chat` of a request, which is not sent to the provider. With
    `limits` they are limited by these keys instead: each with an integer or `requests`, `input_tokens`, `output_tokens`
    or `tokens`, and with placeholders for attributes, such as `{"anthropic:{model}:tpm": "tokens"}`.

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
    """The HTTP client for `anthropic.AsyncAnthropic(http_client=...)`, with the options of `http_client`."""
    given = Options(PROVIDER, attributes or {}, limits, tuple(unmetered), output_tokens_max, keep_alive, timeout)
    if transport is not None:
        options["transport"] = transport
    client: DefaultAsyncHttpxClient = _metered.metered(DefaultAsyncHttpxClient(**options), limiter, given)
    return client
