"""Checks of arguments, with messages that name the field, the value, and the allowed values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

from .errors import InputError

T = TypeVar("T")

#: The most limits of one lease.
REQUIREMENTS_MAX = 32
#: The most attributes of one call.
ATTRIBUTES_MAX = 32
LABELS_MAX = 8
#: The largest amount: that of an unsigned integer of 64 bits.
AMOUNT_MAX = 2**64 - 1
#: The largest bound of tokens.
TOKENS_MAX = 2**32 - 1

_KEY = re.compile(r"[A-Za-z0-9:._@+/|=~%-]{1,256}")
_SHARED_KEY = re.compile(r"!([A-Za-z0-9._@+-]{1,64}):([A-Za-z0-9:._@+/|=~%-]{1,256})")
_NAME = re.compile(r"[A-Za-z0-9._@+-]{1,64}")
_ATTRIBUTE = re.compile(r"[a-z][a-z0-9_]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_JOB = re.compile(r"[A-Za-z0-9:._@+-]{1,128}")


def limit_key(field: str, key: object) -> tuple[str | None, str]:
    """The namespace and the key of `gpt-4o:rpm` or, for a shared limit, `!default:gpt-4o:rpm`."""
    if isinstance(key, str):
        if _KEY.fullmatch(key):
            return None, key
        if shared := _SHARED_KEY.fullmatch(key):
            return shared[1], shared[2]
    raise InputError(
        f"{field}: found key {key!r}, allowed are 1 to 256 letters, digits and :._@+-/|=~% , "
        "and !NAMESPACE: in front for a shared limit"
    )


def amount(field: str, value: object, least: int = 1) -> int:
    """An integer amount. A float is refused: it cannot hold large amounts exactly."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{field}: found {value!r} ({type(value).__name__}), allowed are integers; round up a float")
    if not least <= value <= AMOUNT_MAX:
        raise InputError(f"{field}: found {value}, allowed are integers from {least} to {AMOUNT_MAX}")
    return value


def tokens(field: str, value: object) -> int:
    """A number of tokens."""
    number = amount(field, value, least=0)
    if number > TOKENS_MAX:
        raise InputError(f"{field}: found {number}, allowed are integers from 0 to {TOKENS_MAX}")
    return number


def name(field: str, value: object) -> str:
    """The name of a namespace, a vault or a client."""
    if isinstance(value, str) and _NAME.fullmatch(value):
        return value
    raise InputError(f"{field}: found {value!r}, allowed are 1 to 64 letters, digits and ._@+-")


def account(field: str, value: object) -> str:
    """The name of an account. It has the characters of a key."""
    if isinstance(value, str) and _KEY.fullmatch(value):
        return value
    raise InputError(f"{field}: found {value!r}, allowed are 1 to 256 letters, digits and :._@+-/|=~%")


def job_id(value: object) -> str | None:
    """The id of a job for logs."""
    if value is None or (isinstance(value, str) and _JOB.fullmatch(value)):
        return value
    raise InputError(f"job_id: found {value!r}, allowed are 1 to 128 letters, digits and :._@+-")


def attributes(values: Mapping[str, str]) -> dict[str, str]:
    """The attributes of a call."""
    return _texts("attributes", values, ATTRIBUTES_MAX, 256)


def labels(values: Mapping[str, str]) -> dict[str, str]:
    """The labels of a complete."""
    return _texts("labels", values, LABELS_MAX, 128)


def _texts(field: str, values: Mapping[str, str], most: int, bytes_max: int) -> dict[str, str]:
    if not isinstance(values, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"{field}: found {values!r}, allowed are texts by name, such as {{'model': 'gpt-4o'}}")
    if len(values) > most:
        raise InputError(f"{field}: found {len(values)}, allowed are at most {most}")
    for key, value in values.items():
        is_name = isinstance(key, str) and _ATTRIBUTE.fullmatch(key)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not is_name or len(key) > 64:
            raise InputError(f"{field}: found the name {key!r}, allowed are a-z, 0-9 and _, beginning with a letter")
        is_text = isinstance(value, str) and not _CONTROL.search(value)  # pyright: ignore[reportUnnecessaryIsInstance]
        # Half of a surrogate pair has no bytes in UTF-8.
        if not is_text or not 1 <= len(value.encode(errors="ignore")) <= bytes_max or _SURROGATE.search(value):
            allowed = f"texts of 1 to {bytes_max} bytes without control characters"
            raise InputError(f"{field}.{key}: found {value!r}, allowed are {allowed}")
    return dict(values)


def seconds(field: str, value: object) -> float:
    """A duration in seconds."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1e9:
        return float(value)
    raise InputError(f"{field}: found {value!r}, allowed are seconds from 0 to 1e9")


def some_seconds(field: str, value: object) -> float:
    """A duration in seconds that is not 0."""
    if value == 0:
        raise InputError(f"{field}: found {value!r}, allowed are seconds above 0")
    return seconds(field, value)


def count(field: str, value: object) -> int:
    """The bound of a resource."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise InputError(f"{field}: found {value!r}, allowed are integers above 0")


def kind(field: str, value: T, wanted: type[T]) -> T:
    """An object of this package, and not its asynchronous or synchronous counterpart."""
    if isinstance(value, wanted):  # pyright: ignore[reportUnnecessaryIsInstance]
        return value
    raise InputError(f"{field}: found {type(value).__name__}, allowed is {wanted.__name__}")
