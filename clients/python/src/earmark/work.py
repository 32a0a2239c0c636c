"""The work that a lease is reserved for: amounts of limits, or a call that the policy turns into amounts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from . import _names, _wire
from ._wire import Json, Request
from .answers import Completed, Explanation, ExtendAnswer, ReserveAnswer
from .errors import InputError


def _amounts(field: str, amounts: Mapping[str, int], name: str, least: int) -> str:
    """The JSON list of amounts. It is written by hand: the encoder takes several times as long."""
    if len(amounts) > _names.REQUIREMENTS_MAX:
        raise InputError(f"{field}: found {len(amounts)}, allowed are at most {_names.REQUIREMENTS_MAX}")
    items: list[str] = []
    for key, value in amounts.items():
        named = _key_json(field, key)
        if type(value) is not int or not least <= value <= _names.AMOUNT_MAX:
            value = _names.amount(f"{field}.{key}", value, least)
        items.append(f'{{{named},"{name}":{value:d}}}')
    return f"[{','.join(items)}]"


@lru_cache(maxsize=4096)
def _key_json(field: str, key: str) -> str:
    """The fields of a checked key, whose characters need no escapes."""
    namespace, bare = _names.limit_key(field, key)
    return f'"key":"{bare}"' if namespace is None else f'"key":"{bare}","namespace":"{namespace}"'


@dataclass(frozen=True)
class Job:
    """Amounts of limits, reserved all or none."""

    requirements: Mapping[str, int]
    job_id: str | None = None
    #: The ends of the JSON of a reserve and of a complete. They are the same for each lease.
    _reserve: str = field(init=False, repr=False, compare=False)
    _end: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.requirements, Mapping) or not self.requirements:  # pyright: ignore[reportUnnecessaryIsInstance]
            found = "none" if not self.requirements else repr(self.requirements)
            allowed = f"1 to {_names.REQUIREMENTS_MAX} limits with their amounts"
            raise InputError(f"requirements: found {found}, allowed are {allowed}")
        _names.job_id(self.job_id)
        end = "}" if self.job_id is None else f',"job_id":{_wire.encoded(self.job_id)}}}'
        needs = _amounts("requirements", self.requirements, "amount", 1)
        # A copy, because the caller may change its own while the lease is open.
        self.__dict__.update(requirements=dict(self.requirements), _end=end, _reserve=f',"requirements":{needs}{end}')

    def reserve(self, lease_id: str) -> Request[ReserveAnswer]:
        """The request that reserves the amounts."""
        body = f'{{"lease_id":"{lease_id}"{self._reserve}'.encode()
        return Request("POST", "/v1/reserve", body, ReserveAnswer.read, True, "/v1/reserve/batch")

    def grown(self, add: Mapping[str, int]) -> Job:
        """The same job with the amounts of an extension."""
        requirements = dict(self.requirements)
        for key, value in add.items():
            requirements[key] = requirements.get(key, 0) + value
        return Job(requirements, self.job_id)

    def complete(
        self, lease_id: str, actuals: Mapping[str, int], labels: Mapping[str, str] | None = None
    ) -> Request[Completed]:
        """The request that settles the lease. A limit without an actual amount counts as fully used, except that a
        concurrency slot is always freed."""
        used = _amounts("actuals", actuals, "actual_amount", 0)
        named = f',"labels":{_wire.encoded(_names.labels(labels))}' if labels else ""
        body = f'{{"lease_id":"{lease_id}","actuals":{used}{named}{self._end}'.encode()
        return Request("POST", "/v1/complete", body, Completed.read, True, "/v1/complete/batch")

    def as_unknown(self, lease_id: str) -> Request[Completed]:
        """The complete of a call whose usage is unknown."""
        return self.complete(lease_id, {})

    def as_unused(self, lease_id: str) -> Request[Completed]:
        """The complete of a call that was never made."""
        return self.complete(lease_id, dict.fromkeys(self.requirements, 0))

    def limits(self) -> tuple[str, ...]:
        """The limits that a complete releases."""
        return tuple(self.requirements)


@dataclass(frozen=True)
class Usage:
    """The usage of a call in tokens. Cached and written tokens are part of the input, reasoning of the output."""

    input_tokens: int
    output_tokens: int
    cached_input_tokens: int | None = None
    cache_write_tokens: int | None = None
    cache_write_1h_tokens: int | None = None
    reasoning_tokens: int | None = None
    service_tier: str | None = None

    def json(self) -> Json:
        """The JSON of the API."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        for name, value in fields.items():
            if name != "service_tier" and value is not None:
                _names.amount(f"usage.{name}", value, least=0)
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True)
class Call:
    """A call to a model. The policy of the namespace turns its attributes and bounds into amounts of limits."""

    attributes: Mapping[str, str]
    input_tokens_max: int
    output_tokens_max: int
    job_id: str | None = None

    def __post_init__(self) -> None:
        _names.attributes(self.attributes)
        _names.tokens("input_tokens_max", self.input_tokens_max)
        _names.tokens("output_tokens_max", self.output_tokens_max)
        _names.job_id(self.job_id)

    def reserve(self, lease_id: str) -> Request[ReserveAnswer]:
        """The request that reserves the amounts."""
        body: Json = {"lease_id": lease_id, **self._json()}
        return Request("POST", "/v1/calls", _wire.encode(body), ReserveAnswer.read)

    def explain(self) -> Request[Explanation]:
        """The request that asks what a reserve would answer."""
        return Request("POST", "/v1/calls/explain", _wire.encode(self._json()), Explanation.read)

    def _json(self) -> Json:
        body: Json = {
            "attributes": dict(self.attributes),
            "input_tokens_max": self.input_tokens_max,
            "output_tokens_max": self.output_tokens_max,
        }
        return body if self.job_id is None else {**body, "job_id": self.job_id}

    def settle(
        self,
        lease_id: str,
        outcome: str,
        usage: Usage | None = None,
        policy_revision: int | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Request[Completed]:
        """The request that settles the lease."""
        if outcome not in ("done", "refused", "unknown"):
            raise InputError(f"outcome: found {outcome!r}, allowed are done, refused and unknown")
        if outcome != "done" and usage is not None:
            raise InputError(f"usage: allowed with the outcome done only, found with {outcome}")
        body: Json = {"lease_id": lease_id, "attributes": dict(self.attributes), "outcome": outcome}
        if usage is not None:
            body["usage"] = usage.json()
        if policy_revision is not None:
            body["policy_revision"] = policy_revision
        if labels:
            body["labels"] = _names.labels(labels)
        return Request("POST", "/v1/calls/complete", _wire.encode(body), Completed.read)

    def as_unknown(self, lease_id: str) -> Request[Completed]:
        """The complete of a call whose usage is unknown: its bound counts."""
        return self.settle(lease_id, "unknown")

    def as_unused(self, lease_id: str) -> Request[Completed]:
        """The complete of a call that was never made."""
        return self.settle(lease_id, "refused")

    def limits(self) -> tuple[str, ...]:
        """The limits that a complete releases. The policy knows them."""
        return ()


Work = Job | Call


@dataclass(frozen=True)
class Extension:
    """The changes of one extension. By default it moves the end of the lease and nothing else."""

    #: Amounts to take, of limits that the lease has or of new ones.
    add: Mapping[str, int] | None = None
    renew: bool = True
    #: More output tokens, for the lease of a call.
    add_output_tokens: int = 0

    def request(
        self, work: Work, lease_id: str, number: int, used: Mapping[str, int] | Usage | None, revision: int | None
    ) -> Request[ExtendAnswer]:
        """The request with its number, and the usage that is certain."""
        if isinstance(work, Job):
            return self._of_job(lease_id, number, used if isinstance(used, Mapping) else {})
        if self.add or not self.renew:
            raise InputError("add, renew: not allowed for the lease of a call; use add_output_tokens")
        body: Json = {"lease_id": lease_id, "extension": number, "attributes": dict(work.attributes)}
        more = _names.tokens("add_output_tokens", self.add_output_tokens)
        optional: dict[str, Any] = {"policy_revision": revision, "add_output_tokens": more or None}
        optional["used"] = used.json() if isinstance(used, Usage) else None
        body |= {name: value for name, value in optional.items() if value is not None}
        return Request("POST", "/v1/calls/extend", _wire.encode(body), ExtendAnswer.read)

    def _of_job(self, lease_id: str, number: int, used: Mapping[str, int]) -> Request[ExtendAnswer]:
        if self.add_output_tokens:
            raise InputError("add_output_tokens: allowed for the lease of a call only; use add")
        add = f',"add":{_amounts("add", self.add, "amount", 1)}' if self.add else ""
        report = f',"used":{_amounts("used", used, "actual_amount", 0)}' if used else ""
        renew = "true" if self.renew else "false"
        body = f'{{"lease_id":"{lease_id}","extension":{number},"renew":{renew}{add}{report}}}'.encode()
        return Request("POST", "/v1/extend", body, ExtendAnswer.read, True, "/v1/extend/batch")
