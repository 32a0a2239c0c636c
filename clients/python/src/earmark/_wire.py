"""Requests, and the meaning of responses. No I/O."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from .errors import Failure, InputError, Invalid, NotFound, RateLimited, Unauthorized, Unavailable, Unexpected

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

#: A JSON object.
Json = dict[str, Any]

#: The most requests of one batch.
BATCH_MAX = 256
#: The most bytes of one batch: less than the 1 MiB that servers accept.
BATCH_BYTES_MAX = 900_000

#: `json.dumps` makes an encoder for each body that is not in its own format.
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)

#: The number of characters of an unexpected body that an error message shows.
_EXCERPT_CHARS = 200


class Malformed(Exception):
    """A field of an answer is missing or has another type."""


@dataclass(slots=True)
class Request(Generic[T_co]):
    """One HTTP request, and the reader of its answer."""

    method: str
    path: str
    #: The JSON body; empty without one.
    body: bytes
    #: Reads the answer. It raises `Malformed`, or the failure that the answer reports.
    read: Callable[[Json], T_co] = field(compare=False)
    changes_state: bool = True
    #: The path for several such requests in one.
    batch_path: str | None = None
    #: Whether an answer with another status than 200 is read too, if its `error` is an object.
    has_error_object: bool = False


def encode(body: Json) -> bytes:
    """A JSON body."""
    try:
        return _ENCODER.encode(body).encode()
    except (TypeError, ValueError) as error:
        raise InputError(f"the request cannot be written as JSON: {error}") from error


def encoded(value: str | Mapping[str, str]) -> str:
    """A part of a body that is written by hand."""
    return _ENCODER.encode(value)


def path(template: str, *names: str, **query: str | int | None) -> str:
    """A path with percent-encoded names for `{}` and a query without its absent values."""
    for name in names:
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(f"found the name {name!r}, allowed are texts")
    filled = template.format(*(quote(name, safe=":@") for name in names))
    pairs = [f"{name}={quote(str(value), safe=':@')}" for name, value in query.items() if value is not None]
    return filled + ("?" + "&".join(pairs) if pairs else "")


def judge(server: str, request: Request[T], status: int, body: bytes) -> T | Failure:
    """The answer in a response, or the failure that it means."""
    try:
        data: object = json.loads(body)
    except ValueError:
        return _unexpected(server, status, body, "the body is not JSON")
    if not isinstance(data, dict):
        return _unexpected(server, status, body, "the body is not a JSON object")
    answer: Json = data  # pyright: ignore[reportUnknownVariableType]
    if status == 200 or (request.has_error_object and isinstance(answer.get("error"), dict)):
        return read_answer(server, request, answer)
    if not isinstance(answer.get("error"), str):
        return _unexpected(server, status, body, "the body is not the JSON of an error")
    message = str(answer.get("message") or answer["error"])
    return refusal(server, status, message) or _unexpected(server, status, body, "an unknown status")


def read_answer(server: str, request: Request[T], answer: Json) -> T | Failure:
    """Reads an answer whose status says that it is one."""
    try:
        return request.read(answer)
    except Failure as failure:
        return failure
    except Malformed as malformed:
        return _unexpected(server, 200, encode(answer), str(malformed))


def refusal(server: str, status: int, message: str) -> Failure | None:
    """The failure behind a status other than 200."""
    # 409: another revision than the expected one, or a quota that is used up.
    if status in (400, 409, 413):
        return Invalid(f"the request was refused: {message}")
    if status in (401, 403):
        return Unauthorized(f"the caller was refused: {message}; check the key")
    if status == 404:
        return NotFound(message)
    if status == 429:
        return RateLimited(f"{server} limits the request rate of this key: {message}")
    if status == 408 or status >= 500:
        return Unavailable(f"{server} is unavailable: {message}")
    return None


def _unexpected(server: str, status: int, body: bytes, what: str) -> Failure:
    text = body.decode(errors="replace")[:_EXCERPT_CHARS]
    visible = "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)
    told = f"{what}; status {status}: {visible}"
    if status >= 500:
        return Unavailable(f"{server} is unavailable: {told}")
    return Unexpected(f"{server} gave an answer that this version does not understand; is it an Earmark server? {told}")


def batch(requests: Sequence[Request[Any]], batch_path: str) -> Request[list[Any]]:
    """Several requests in one. The answer has an answer or a failure for each, in their order."""

    def read(answer: Json) -> list[Any]:
        results: object = answer.get("results")
        if not isinstance(results, list) or len(results) != len(requests):  # pyright: ignore[reportUnknownArgumentType]
            raise Malformed(f"results: found other than {len(requests)} items")
        items: list[Any] = results  # pyright: ignore[reportUnknownVariableType]
        return [read_answer("the server", request, item) for request, item in zip(requests, items, strict=True)]

    body = b'{"requests":[' + b",".join([request.body for request in requests]) + b"]}"
    return Request("POST", batch_path, body, read)


def text(answer: Json, name: str) -> str:
    """A field with a text."""
    value = answer.get(name)
    if not isinstance(value, str):
        raise Malformed(f"{name}: found {value!r}, wanted is a text")
    return value


def maybe_text(answer: Json, name: str) -> str | None:
    """A field with a text that may be absent."""
    return None if answer.get(name) is None else text(answer, name)


def integer(answer: Json, name: str) -> int:
    """A field with an integer."""
    value = answer.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise Malformed(f"{name}: found {value!r}, wanted is an integer")
    return value


def maybe_integer(answer: Json, name: str) -> int | None:
    """A field with an integer that may be absent."""
    return None if answer.get(name) is None else integer(answer, name)


def boolean(answer: Json, name: str) -> bool:
    """A field with a truth value."""
    value = answer.get(name)
    if not isinstance(value, bool):
        raise Malformed(f"{name}: found {value!r}, wanted is true or false")
    return value


def decimal(answer: Json, name: str) -> int:
    """A field with an amount of credit, which is a decimal text so that no reader rounds it."""
    try:
        return int(text(answer, name))
    except ValueError as error:
        raise Malformed(f"{name}: {error}") from error


def maybe_decimal(answer: Json, name: str) -> int | None:
    """A field with an amount of credit that may be absent."""
    return None if answer.get(name) is None else decimal(answer, name)


def object_of(answer: Json, name: str) -> Json:
    """A field with an object."""
    value: object = answer.get(name)
    if not isinstance(value, dict):
        raise Malformed(f"{name}: found {value!r}, wanted is an object")
    return value  # pyright: ignore[reportUnknownVariableType]


def text_by_name(answer: Json, name: str) -> dict[str, str]:
    """A field with an object of texts."""
    fields = object_of(answer, name)
    return {inner: text(fields, inner) for inner in fields}


def objects(answer: Json, name: str) -> list[Json]:
    """A field with a list of objects."""
    values: object = answer.get(name)
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):  # pyright: ignore[reportUnknownVariableType]
        raise Malformed(f"{name}: wanted is a list of objects")
    return values  # pyright: ignore[reportUnknownVariableType]


def texts(answer: Json, name: str) -> tuple[str, ...]:
    """A field with a list of texts; empty if it is absent."""
    values: object = answer.get(name, [])
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):  # pyright: ignore[reportUnknownVariableType]
        raise Malformed(f"{name}: wanted is a list of texts")
    return tuple(values)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
