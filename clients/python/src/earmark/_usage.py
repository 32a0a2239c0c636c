"""Reads the usage of a call from the responses of providers, while they pass. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from .work import Usage

#: The most bytes of a response that is not a stream, and of one event of a stream. A larger one has no usage.
BODY_BYTES_MAX = 32 << 20
EVENT_BYTES_MAX = 4 << 20

_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_DATA = re.compile(rb"^data: ?(.*)$", re.MULTILINE)


class UsageMeter:
    """Collects the usage of a call. Each field counts by its maximum. A stream that is cut off has no usage, even if it
    began to report one: the final usage would be greater."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._service_tier: str | None = None
        #: Whether the last event of a stream, or a whole response, was seen.
        self._is_final = False

    def see(self, event: dict[str, Any]) -> None:
        """Adds a response, or an event of a stream."""
        kind = event.get("type")
        for holder in (event, _inner(event, "message"), _inner(event, "response")):
            tier = holder.get("service_tier")
            block = _inner(holder, "usage")
            for text in (tier, block.get("service_tier")):
                self._service_tier = text if isinstance(text, str) else self._service_tier
            for name, value in _counts(block):
                # The first event of Anthropic has the output so far, not that of the whole call.
                if kind != "message_start" or name != "output":
                    self._counts[name] = max(value, self._counts.get(name, 0))
        # Chat completions report their usage in the last chunk. The others name their last event.
        is_chunk = kind is None or kind in ("message", "response")
        is_last = kind in ("message_stop", "response.completed", "response.incomplete", "response.failed")
        self._is_final |= is_last or (is_chunk and bool(_inner(event, "usage")))

    def usage(self) -> Usage | None:
        """The usage, once all of it was reported."""
        counts = self._counts
        if not self._is_final or "input" not in counts:
            return None
        # Anthropic counts tokens that it wrote to its cache or read from there apart from the input.
        input_tokens = counts["input"] + counts.get("cache_read", 0) + counts.get("cache_creation", 0)
        # Tokens in the total only, such as reasoning, are output. Embeddings have a total and no output.
        beyond = counts.get("total", 0) - input_tokens
        if "output" not in counts and "total" not in counts:
            return None
        hour = counts.get("cache_creation_1h", 0)
        return Usage(
            input_tokens,
            max(counts.get("output", 0), beyond),
            cached_input_tokens=_positive(counts.get("cached", 0) + counts.get("cache_read", 0)),
            cache_write_tokens=_positive(counts.get("cache_creation", 0) - hour),
            cache_write_1h_tokens=_positive(hour),
            reasoning_tokens=_positive(counts.get("reasoning", 0)),
            service_tier=self._service_tier,
        )


def _inner(block: dict[str, Any], name: str) -> dict[str, Any]:
    value = block.get(name)
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def _positive(value: int) -> int | None:
    return value if value > 0 else None


def _counts(block: dict[str, Any]) -> Iterator[tuple[str, int]]:
    inputs = {**_inner(block, "prompt_tokens_details"), **_inner(block, "input_tokens_details")}
    outputs = {**_inner(block, "completion_tokens_details"), **_inner(block, "output_tokens_details")}
    found = {
        "input": block.get("prompt_tokens", block.get("input_tokens")),
        "output": block.get("completion_tokens", block.get("output_tokens")),
        "total": block.get("total_tokens"),
        "cached": inputs.get("cached_tokens"),
        "reasoning": outputs.get("reasoning_tokens"),
        "cache_read": block.get("cache_read_input_tokens"),
        "cache_creation": block.get("cache_creation_input_tokens"),
        "cache_creation_1h": _inner(block, "cache_creation").get("ephemeral_1h_input_tokens"),
    }
    for name, value in found.items():
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            yield name, value


class BodyReader:
    """A response that is not a stream. Its bytes pass unchanged."""

    def __init__(self, meter: UsageMeter) -> None:
        self._meter = meter
        self._body = bytearray()

    def take(self, chunk: bytes) -> bytes:
        """Takes bytes, and returns those to pass on."""
        if len(self._body) <= BODY_BYTES_MAX:
            self._body += chunk
        return chunk

    def end(self) -> bytes:
        """The response has ended."""
        if len(self._body) <= BODY_BYTES_MAX:
            _see(self._meter, bytes(self._body))
        return b""


class EventReader:
    """A stream of Server-Sent Events. Whole events pass unchanged, but for the usage chunk that the caller did not ask
    for."""

    def __init__(self, meter: UsageMeter, is_usage_removed: bool) -> None:
        self._meter = meter
        self._is_usage_removed = is_usage_removed
        self._rest = b""
        self._is_metered = True

    def take(self, chunk: bytes) -> bytes:
        """Takes bytes, and returns those to pass on."""
        if not self._is_metered:
            return chunk
        self._rest += chunk
        passed: list[bytes] = []
        start = 0
        for end in _END.finditer(self._rest):
            event = self._rest[start : end.end()]
            start = end.end()
            if not self._is_usage_chunk(event):
                passed.append(event)
        self._rest = self._rest[start:]
        if len(self._rest) > EVENT_BYTES_MAX:
            self._is_metered = False
            passed.append(self._rest)
            self._rest = b""
        return b"".join(passed)

    def end(self) -> bytes:
        """The stream has ended. An incomplete event passes too."""
        rest, self._rest = self._rest, b""
        return rest

    def _is_usage_chunk(self, event: bytes) -> bool:
        data = b"\n".join(_DATA.findall(event.replace(b"\r\n", b"\n").replace(b"\r", b"\n")))
        seen = _see(self._meter, data)
        return self._is_usage_removed and seen.get("choices") == [] and isinstance(seen.get("usage"), dict)


def _see(meter: UsageMeter, data: bytes) -> dict[str, Any]:
    try:
        event: object = json.loads(data)
    except ValueError:
        return {}  # Such as `[DONE]`, or a page of a proxy.
    if not isinstance(event, dict):
        return {}
    meter.see(event)  # pyright: ignore[reportUnknownArgumentType]
    return event  # pyright: ignore[reportUnknownVariableType]
