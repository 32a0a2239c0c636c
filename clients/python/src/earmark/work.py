"""The work that a lease is reserved for: amounts of limits, or a call that the policy turns into amounts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import _names, _wire
from ._wire import Json, Request
from .answers import Completed, Explanation, ExtendAnswer, ReserveAnswer
from .errors import InputError


def _amounts(field: str, amounts: Mapping[str, int], name: str, least: int) -> list[Json]:
    items: list[Json] = []
    for key, value in amounts.items():
        namespace, bare = _names.limit_key(field, key)
        item: Json = {"key": bare, name: _names.amount(f"{field}.{key}", value, least)}
        items.append(item if namespace is None else {**item, "namespace": namespace})
    if len(items) > _names.REQUIREMENTS_MAX:
        raise InputError(f"{field}: found {len(items)}, allowed are at most {_names.REQUIREMENTS_MAX}")
    return items


@dataclass(frozen=True)
class Job:
    """Amounts of limits, reserved all or none."""

    requirements: Mapping[str, int]
    job_id: str | None = None
    _items: list[Json] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.requirements:
            raise InputError(f"requirements: found none, allowed are 1 to {_names.REQUIREMENTS_MAX}")
        _names.job_id(self.job_id)
        # A copy, because the caller may change its own while the lease is open.
        object.__setattr__(self, "requirements", dict(self.requirements))
        object.__setattr__(self, "_items", _amounts("requirements", self.requirements, "amount", 1))

    def reserve(self, lease_id: str) -> Request[ReserveAnswer]:
        """The request that reserves the amounts."""
        body = {"lease_id": lease_id, "requirements": self._items}
        if self.job_id is not None:
            body["job_id"] = self.job_id
        return Request("POST", "/v1/reserve", _wire.encode(body), ReserveAnswer.read, batch_path="/v1/reserve/batch")

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
        body: Json = {"lease_id": lease_id, "actuals": _amounts("actuals", actuals, "actual_amount", 0)}
        if self.job_id is not None:
            body["job_id"] = self.job_id
        if labels:
            body["labels"] = _names.labels(labels)
        return Request("POST", "/v1/complete", _wire.encode(body), Completed.read, batch_path="/v1/complete/batch")

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
        body: Json = {"lease_id": lease_id, "extension": number}
        if isinstance(work, Job):
            if self.add_output_tokens:
                raise InputError("add_output_tokens: allowed for the lease of a call only; use add")
            add = _amounts("add", self.add or {}, "amount", 1)
            report = _amounts("used", used if isinstance(used, Mapping) else {}, "actual_amount", 0)
            body |= {"renew": self.renew, **({"add": add} if add else {}), **({"used": report} if report else {})}
            path, batch_path = "/v1/extend", "/v1/extend/batch"
        else:
            if self.add or not self.renew:
                raise InputError("add, renew: not allowed for the lease of a call; use add_output_tokens")
            more = _names.tokens("add_output_tokens", self.add_output_tokens)
            optional: dict[str, Any] = {"policy_revision": revision, "add_output_tokens": more or None}
            optional["used"] = used.json() if isinstance(used, Usage) else None
            body["attributes"] = dict(work.attributes)
            body |= {name: value for name, value in optional.items() if value is not None}
            path, batch_path = "/v1/calls/extend", None
        return Request("POST", path, _wire.encode(body), ExtendAnswer.read, batch_path=batch_path)
