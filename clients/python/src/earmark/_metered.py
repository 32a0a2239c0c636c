"""Transports for the official SDKs of providers: one lease for each attempt of a call.

A transport reserves before it sends a request, and settles when the response has passed. A denial becomes the
provider's own 429, so that the SDK backs off by itself.
"""

from __future__ import annotations

import importlib
import json
import logging
import math
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ._lease import LeaseBase
from ._usage import BodyReader, EventReader, UsageMeter
from ._wire import Request
from .answers import Completed
from .async_limiter import AsyncLease, AsyncLimiter
from .errors import (
    AcquireTimeout,
    CallerRefused,
    Denial,
    EarmarkError,
    InputError,
    InsufficientCredit,
    Never,
    RefusedByPolicy,
)
from .limiter import EXIT_WAIT, Lease, Limiter
from .work import Call, Job, Usage, Work

if TYPE_CHECKING:
    import httpx

#: Tokens beyond the bytes of the body: templates and tool prompts that the provider adds.
INPUT_OVERHEAD_TOKENS = 512
#: The bound of the output of a call that names none.
OUTPUT_TOKENS_MAX = 16_384

#: The header with attributes of one request, such as `user=u1, feature=chat`. It is not sent to the provider.
ATTRIBUTES_HEADER = "x-earmark-attributes"

_AMOUNTS = ("requests", "input_tokens", "output_tokens", "tokens")
_PAIR = re.compile(r"([a-z][a-z0-9_]*)=(.+)")
_log = logging.getLogger("earmark")


@dataclass(frozen=True)
class Provider:
    """The differences between the APIs of providers."""

    name: str
    #: The ends of the paths that are metered.
    paths: tuple[str, ...]
    #: The body of an error with this status, type and message.
    error_body: Callable[[int, str, str], dict[str, Any]]
    #: The status and the type of an error for too little credit.
    no_credit: tuple[int, str]
    #: Whether streams report their usage only if the request asks for it, by the end of the path.
    asks_for_usage: tuple[str, ...] = ()


@dataclass(frozen=True)
class Options:
    """How calls are limited."""

    provider: Provider
    attributes: Mapping[str, str]
    limits: Mapping[str, str | int] | None
    unmetered: tuple[str, ...]
    output_tokens_max: int
    keep_alive: float | None
    timeout: float

    def __post_init__(self) -> None:
        for key, amount in (self.limits or {}).items():
            if isinstance(amount, str) and amount not in _AMOUNTS:
                raise InputError(f"limits.{key}: found {amount!r}, allowed are integers, {', '.join(_AMOUNTS)}")


@dataclass(frozen=True)
class Plan:
    """A metered request."""

    work: Work
    #: The request to send.
    request: httpx.Request
    #: The limits whose usage is known after the call, each with the name of its amount.
    amounts: Mapping[str, str | int]
    is_usage_removed: bool

    def complete(self, lease: LeaseBase, usage: Usage | None) -> Request[Completed]:
        """The complete of a call that the provider answered."""
        work = lease.work
        if isinstance(work, Call):
            return work.settle(lease.lease_id, "done", usage, lease.policy_revision)
        actuals: dict[str, int] = {}
        for key, amount in self.amounts.items() if usage is not None else ():
            if isinstance(amount, str) and amount != "requests":
                actuals[key] = _amount(amount, usage.input_tokens, usage.output_tokens)  # type: ignore[union-attr]
        return work.complete(lease.lease_id, actuals)


def _amount(name: str, input_tokens: int, output_tokens: int) -> int:
    both = {"input_tokens": input_tokens, "output_tokens": output_tokens, "tokens": input_tokens + output_tokens}
    return both.get(name, 1)


def plan(options: Options, lib: Any, request: httpx.Request, body: bytes) -> Plan | None:
    """The plan for a request; None if it passes unmetered."""
    path = request.url.path
    if request.method in ("GET", "HEAD", "DELETE", "OPTIONS") or path.endswith(options.unmetered or ("\0",)):
        return None
    end = next((end for end in options.provider.paths if path.endswith(end)), None)
    if end is None:
        raise InputError(
            f"{request.method} {path} is not metered; allowed are {', '.join(options.provider.paths)}, "
            "and the ends of paths in `unmetered`"
        )
    try:
        call: Any = json.loads(body)
    except ValueError as error:
        raise InputError(f"{path}: the body is not JSON, so the call cannot be bounded") from error
    if not isinstance(call, dict) or not isinstance(call.get("model"), str):  # pyright: ignore[reportUnknownMemberType]
        raise InputError(f"{path}: the body has no model, so the call cannot be bounded")
    fields: dict[str, Any] = call  # pyright: ignore[reportUnknownVariableType]
    has_output = not end.endswith(("/embeddings", "/count_tokens"))
    output = _output_max(fields, options.output_tokens_max) if has_output else 0
    attributes = {**options.attributes, **_attributes(request.headers.get(ATTRIBUTES_HEADER, ""))}
    asks = end in options.provider.asks_for_usage and fields.get("stream") is True
    wanted = fields.get("stream_options")
    has_asked = isinstance(wanted, dict) and wanted.get("include_usage") is True  # pyright: ignore[reportUnknownMemberType]
    if asks and not has_asked:
        stream_options: dict[str, Any] = wanted if isinstance(wanted, dict) else {}  # pyright: ignore[reportUnknownVariableType]
        body = json.dumps({**fields, "stream_options": {**stream_options, "include_usage": True}}).encode()
    sent = _request(lib, request, body)
    model = str(fields["model"])
    # Counting tokens takes a request only.
    input_max = 0 if end.endswith("/count_tokens") else len(body) + INPUT_OVERHEAD_TOKENS
    values = {"provider": options.provider.name, **attributes, "model": model}
    work, amounts = _work(options, values, input_max, output)
    return None if work is None else Plan(work, sent, amounts, asks and not has_asked)


def _request(lib: Any, request: httpx.Request, body: bytes) -> Any:
    skipped = ("content-length", "accept-encoding", "transfer-encoding", ATTRIBUTES_HEADER)
    headers = [(name, value) for name, value in request.headers.raw if name.lower().decode() not in skipped]
    # A compressed response could not be read while it passes.
    headers.append((b"accept-encoding", b"identity"))
    return lib.Request(request.method, request.url, headers=headers, content=body, extensions=request.extensions)


def _output_max(fields: dict[str, Any], default: int) -> int:
    thinking = fields.get("thinking")
    budget = thinking.get("budget_tokens") if isinstance(thinking, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    names = ("max_tokens", "max_completion_tokens", "max_output_tokens")
    given: list[Any] = [fields.get(name) for name in names] + [budget]
    caps = [value for value in given if type(value) is int and value > 0]
    copies = [value for value in (fields.get("n"), fields.get("best_of")) if type(value) is int and value > 0]
    prompt = fields.get("prompt")
    # A list of numbers is one prompt, in tokens.
    prompts = len(prompt) if isinstance(prompt, list) and not all(type(part) is int for part in prompt) else 1  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    prediction = fields.get("prediction")
    # Rejected tokens of a predicted answer are charged as output.
    predicted = 0 if prediction is None else len(json.dumps(prediction, ensure_ascii=False).encode())
    return max(caps, default=default) * max(copies, default=1) * prompts + predicted


def _attributes(header: str) -> dict[str, str]:
    """The attributes of a request."""
    found: dict[str, str] = {}
    for part in filter(None, map(str.strip, header.split(","))):
        pair = _PAIR.fullmatch(part)
        if pair is None:
            raise InputError(f"{ATTRIBUTES_HEADER}: found {part!r}, allowed is a list of NAME=VALUE")
        if pair[1] in ("model", "provider"):
            raise InputError(f"{ATTRIBUTES_HEADER}: found {part!r}, allowed are other attributes: the request has this one")
        found[pair[1]] = pair[2]
    return found


def _work(
    options: Options, values: dict[str, str], input_max: int, output_max: int
) -> tuple[Work | None, Mapping[str, str | int]]:
    if options.limits is None:
        return Call(values, input_max, output_max), {}
    amounts = {_filled(key, values): amount for key, amount in options.limits.items()}
    needs = {
        key: amount if isinstance(amount, int) else _amount(amount, input_max, output_max)
        for key, amount in amounts.items()
    }
    needs = {key: amount for key, amount in needs.items() if amount > 0}
    return (Job(needs) if needs else None), {key: amounts[key] for key in needs}


def _filled(key: str, values: Mapping[str, str]) -> str:
    """A key with its placeholders filled. Values are escaped as a policy does it."""
    for name, value in values.items():
        key = key.replace(f"{{{name}}}", quote(value, safe="._@+-/|=~"))
    if "{" in key:
        raise InputError(f"limits: found {key}, allowed are placeholders for {', '.join(values)}")
    return key


def refused(options: Options, lib: Any, request: httpx.Request, error: EarmarkError | Denial) -> Any:
    """The provider's own error for a call that was not admitted."""
    headers: dict[str, str] = {}
    status, kind = 403, "permission_error"
    if isinstance(error, Denial):
        status, kind = 429, "rate_limit_error"
        headers["retry-after-ms"] = str(error.retry_after_ms)
        headers["retry-after"] = str(math.ceil(error.retry_after_ms / 1_000))
        if error.limited_by:
            headers["x-earmark-limited-by"] = ", ".join(error.limited_by)
    elif isinstance(error, AcquireTimeout):
        status, kind = 503, "overloaded_error"
    elif isinstance(error, InsufficientCredit):
        status, kind = options.provider.no_credit
    elif isinstance(error, (Never, InputError)):
        status, kind = 400, "invalid_request_error"
    elif isinstance(error, (RefusedByPolicy, CallerRefused)):
        status, kind = 403, "permission_error"
    if not isinstance(error, (Denial, AcquireTimeout)):
        headers["x-should-retry"] = "false"
    body = options.provider.error_body(status, kind, f"Earmark: {error}")
    return lib.Response(status, headers=headers, json=body, request=request)


class _Metered:
    """A response that passes. It settles the lease once, at its end or when it is closed."""

    def __init__(self, plan: Plan, lease: LeaseBase, response: Any) -> None:
        self._plan = plan
        self._lease = lease
        self._inner: Any = response.stream
        self._meter = UsageMeter()
        is_stream = "text/event-stream" in response.headers.get("content-type", "")
        self._reader: BodyReader | EventReader = (
            EventReader(self._meter, plan.is_usage_removed) if is_stream else BodyReader(self._meter)
        )

    def _request(self) -> Request[Completed]:
        return self._plan.complete(self._lease, self._meter.usage())


class _MeteredStream(_Metered):
    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._inner:
            if passed := self._reader.take(chunk):
                yield passed
        if rest := self._reader.end():
            yield rest
        self._settle()

    def close(self) -> None:
        try:
            self._inner.close()
        finally:
            self._settle()

    def _settle(self) -> None:
        if self._lease.is_open:
            settle(self._lease, self._request())


class _AsyncMeteredStream(_Metered):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._inner:
            if passed := self._reader.take(chunk):
                yield passed
        if rest := self._reader.end():
            yield rest
        self._settle()

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            self._settle()

    def _settle(self) -> None:
        assert isinstance(self._lease, AsyncLease)
        self._lease.settle_soon(self._request())


def settle(lease: LeaseBase, request: Request[Completed]) -> None:
    """Settles a lease of the synchronous limiter. A failure goes on in the background."""
    assert isinstance(lease, Lease)
    try:
        lease._settle(request, EXIT_WAIT)  # pyright: ignore[reportPrivateUsage]
    except EarmarkError as error:
        _log.warning("lease %s is not completed yet: %s", lease.lease_id, error)


def _joined(part: type, base: type) -> Any:
    return type(part.__name__.lstrip("_"), (part, base), {})


class _Transport:
    """The transport of one SDK's HTTP library."""

    def __init__(self, limiter: Limiter, options: Options, lib: Any, inner: Any) -> None:
        self._limiter = limiter
        self._options = options
        self._lib = lib
        self._inner = inner
        self._stream = _joined(_MeteredStream, lib.SyncByteStream)

    def handle_request(self, request: httpx.Request) -> Any:
        """Sends one attempt of a call."""
        lib = self._lib
        try:
            planned = plan(self._options, lib, request, request.read())
            if planned is None:
                return self._inner.handle_request(request)
            lease = self._limiter.attempt(planned.work, timeout=self._options.timeout)
        except EarmarkError as error:
            return refused(self._options, lib, request, error)
        if isinstance(lease, Denial):
            return refused(self._options, lib, request, lease)
        with _released_by(lease, lib):
            response = self._inner.handle_request(planned.request)
        if response.status_code >= 300:
            settle(lease, lease._unused())  # pyright: ignore[reportPrivateUsage]
            return response
        if self._options.keep_alive is not None:
            lease.keep_alive(self._options.keep_alive)
        response.stream = self._stream(planned, lease, response)
        return response

    def close(self) -> None:
        """Closes the connections to the provider."""
        self._inner.close()


class _released_by:  # noqa: N801
    """Settles a lease whose request failed: unused if no connection was made, else with unknown usage."""

    def __init__(self, lease: Lease, lib: Any) -> None:
        self._lease = lease
        self._lib = lib

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            settle(self._lease, failed_request(self._lease, self._lib, error))


def failed_request(lease: LeaseBase, lib: Any, error: BaseException) -> Request[Completed]:
    """The complete of a call whose request failed."""
    is_unsent = isinstance(error, (lib.ConnectError, lib.ConnectTimeout, lib.PoolTimeout))
    return lease._unused() if is_unsent else lease._unknown()  # pyright: ignore[reportPrivateUsage]


class _AsyncTransport:
    """The asynchronous transport of one SDK's HTTP library."""

    def __init__(self, limiter: AsyncLimiter, options: Options, lib: Any, inner: Any) -> None:
        self._limiter = limiter
        self._options = options
        self._lib = lib
        self._inner = inner
        self._stream = _joined(_AsyncMeteredStream, lib.AsyncByteStream)

    async def handle_async_request(self, request: httpx.Request) -> Any:
        """Sends one attempt of a call."""
        lib = self._lib
        try:
            planned = plan(self._options, lib, request, await request.aread())
            if planned is None:
                return await self._inner.handle_async_request(request)
            lease = await self._limiter.attempt(planned.work, timeout=self._options.timeout)
        except EarmarkError as error:
            return refused(self._options, lib, request, error)
        if isinstance(lease, Denial):
            return refused(self._options, lib, request, lease)
        try:
            response = await self._inner.handle_async_request(planned.request)
        except BaseException as error:
            lease.settle_soon(failed_request(lease, lib, error))
            raise
        if response.status_code >= 300:
            lease.settle_soon(lease._unused())  # pyright: ignore[reportPrivateUsage]
            return response
        if self._options.keep_alive is not None:
            lease.keep_alive(self._options.keep_alive)
        response.stream = self._stream(planned, lease, response)
        return response

    async def aclose(self) -> None:
        """Closes the connections to the provider."""
        await self._inner.aclose()


def library(client: object) -> Any:
    """The HTTP library of an SDK's client: `httpx`, or `httpx2` in newer ones."""
    roots = [cls.__module__.partition(".")[0] for cls in type(client).__mro__]
    return importlib.import_module(next(root for root in roots if root in ("httpx", "httpx2")))


def metered(client: Any, limiter: Limiter | AsyncLimiter, options: Options) -> Any:
    """The HTTP client of an SDK with a metered transport before each of its own.

    The SDK makes them, with its bounds on connections and its socket options. A client with a transport of ours as its
    option would have neither, and would send what goes through a proxy past it."""
    lib = library(client)
    if isinstance(limiter, Limiter):
        kind = _joined(_Transport, lib.BaseTransport)
    else:
        kind = _joined(_AsyncTransport, lib.AsyncBaseTransport)
    client._transport = kind(limiter, options, lib, client._transport)
    mounts: dict[Any, Any] = client._mounts
    client._mounts = {
        pattern: None if inner is None else kind(limiter, options, lib, inner) for pattern, inner in mounts.items()
    }
    return client
