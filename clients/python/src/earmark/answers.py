"""The answers of servers. Field names are those of the API."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from . import _wire
from ._wire import Json, Malformed
from .errors import Invalid, Unavailable


@dataclass(frozen=True)
class Requirement:
    """An amount of a limit. Limits of other namespaces are named `!<namespace>:<key>`."""

    key: str
    amount: int

    @staticmethod
    def read(answer: Json) -> Requirement:
        """Reads the JSON of the API."""
        namespace = _wire.maybe_text(answer, "namespace")
        key = _wire.text(answer, "key")
        return Requirement(f"!{namespace}:{key}" if namespace else key, _wire.integer(answer, "amount"))


@dataclass(frozen=True)
class Actual:
    """The usage of a limit."""

    key: str
    actual_amount: int

    @staticmethod
    def read(answer: Json) -> Actual:
        """Reads the JSON of the API."""
        namespace = _wire.maybe_text(answer, "namespace")
        key = _wire.text(answer, "key")
        return Actual(f"!{namespace}:{key}" if namespace else key, _wire.integer(answer, "actual_amount"))


@dataclass(frozen=True)
class ReserveAnswer:
    """The answer to a reserve or a call."""

    allowed: bool
    retry_after_ms: int
    reserved_at_unix_ms: int
    error: str
    message: str | None = None
    limited_by: tuple[str, ...] = ()
    never: bool = False
    would_deny: tuple[str, ...] = ()
    #: The requirements that the policy found; None in the answer to a reserve.
    requirements: tuple[Requirement, ...] | None = None
    #: The revision of the policy that was applied; None in the answer to a reserve.
    policy_revision: int | None = None

    @staticmethod
    def read(answer: Json) -> ReserveAnswer:
        """Reads the JSON of the API."""
        at = answer.get("reserved_at_unix_ms")
        # The usual answer.
        if type(at) is int and answer == {"allowed": True, "retry_after_ms": 0, "reserved_at_unix_ms": at, "error": ""}:
            return _allowed(at)
        requirements = _wire.objects(answer, "requirements") if answer.get("requirements") is not None else None
        return ReserveAnswer(
            _wire.boolean(answer, "allowed"),
            _wire.integer(answer, "retry_after_ms"),
            _wire.integer(answer, "reserved_at_unix_ms"),
            _known_outcome(answer),
            _wire.maybe_text(answer, "message"),
            _wire.texts(answer, "limited_by"),
            answer.get("never") is True,
            _wire.texts(answer, "would_deny"),
            None if requirements is None else tuple(map(Requirement.read, requirements)),
            _wire.maybe_integer(answer, "policy_revision"),
        )


# The items of a batch are often reserved at one time.
@lru_cache(maxsize=4)
def _allowed(at: int) -> ReserveAnswer:
    return ReserveAnswer(True, 0, at, "")


@dataclass(frozen=True)
class ExtendAnswer:
    """The answer to an extension."""

    allowed: bool
    retry_after_ms: int
    error: str
    #: When the first of the concurrency and credit reservations ends, on the server's clock; 0 without any.
    ends_at_unix_ms: int
    message: str | None = None
    limited_by: tuple[str, ...] = ()
    never: bool = False

    @staticmethod
    def read(answer: Json) -> ExtendAnswer:
        """Reads the JSON of the API."""
        return ExtendAnswer(
            _wire.boolean(answer, "allowed"),
            _wire.integer(answer, "retry_after_ms"),
            _known_outcome(answer),
            _wire.integer(answer, "ends_at_unix_ms"),
            _wire.maybe_text(answer, "message"),
            _wire.texts(answer, "limited_by"),
            answer.get("never") is True,
        )


@dataclass(frozen=True)
class Completed:
    """The answer to a complete."""

    ok: bool
    error: str
    #: Whether the server knew the lease and applied its actuals, now or earlier.
    reconciled: bool
    #: A note for people, such as the keys that were ignored.
    message: str | None = None
    #: The settled usage of a call's limits; None for other leases.
    actuals: tuple[Actual, ...] | None = None
    #: The cost of a call in minor units; None for other leases, and without a price.
    cost: int | None = None

    @staticmethod
    def read(answer: Json) -> Completed:
        """Reads the JSON of the API. A refused complete is a failure."""
        if answer == _SETTLED_JSON:
            return _SETTLED
        error = _known_outcome(answer)
        message = _wire.maybe_text(answer, "message")
        if not _wire.boolean(answer, "ok"):
            raise Invalid(f"the request was refused: {message or error}")
        actuals = _wire.objects(answer, "actuals") if answer.get("actuals") is not None else None
        return Completed(
            True,
            error,
            _wire.boolean(answer, "reconciled"),
            message,
            None if actuals is None else tuple(map(Actual.read, actuals)),
            _wire.maybe_decimal(answer, "cost"),
        )


#: The usual answer to a complete.
_SETTLED = Completed(True, "", True)
_SETTLED_JSON: Json = {"ok": True, "error": "", "reconciled": True}


def _known_outcome(answer: Json) -> str:
    """The error code, unless it says that the outcome is unknown."""
    error = _wire.text(answer, "error")
    if error in ("overloaded", "backend_error"):
        raise Unavailable(f"the server is unavailable: {answer.get('message') or error}")
    return error


@dataclass(frozen=True)
class Limit:
    """A limit."""

    #: The definition, with the fields of the API.
    definition: dict[str, Any]
    #: `active` or `decreasing`.
    status: str
    pending_decrease_to: int | None
    revision: int
    #: The template that it is derived from.
    template: str | None = None
    #: When its pause ends, and why it is paused.
    paused_until_unix_ms: int | None = None
    pause_reason: str | None = None

    @property
    def key(self) -> str:
        """The key."""
        return str(self.definition["key"])

    @staticmethod
    def read(answer: Json) -> Limit:
        """Reads the JSON of the API."""
        definition = _wire.object_of(answer, "definition")
        _wire.text(definition, "key")
        return Limit(
            definition,
            _wire.text(answer, "status"),
            _wire.maybe_integer(answer, "pending_decrease_to"),
            _wire.integer(answer, "revision"),
            _wire.maybe_text(answer, "template"),
            _wire.maybe_integer(answer, "paused_until_unix_ms"),
            _wire.maybe_text(answer, "pause_reason"),
        )


@dataclass(frozen=True)
class LimitUsage:
    """The usage of a limit."""

    capacity: int
    reserved: int
    available: int
    debt: int
    #: `active` or `decreasing`.
    status: str
    pending_decrease_to: int | None = None
    paused_until_unix_ms: int | None = None
    #: The key and the kind; None in the answer about a single limit.
    key: str | None = None
    kind: str | None = None

    @staticmethod
    def read(answer: Json) -> LimitUsage:
        """Reads the JSON of the API."""
        return LimitUsage(
            _wire.integer(answer, "capacity"),
            _wire.integer(answer, "reserved"),
            _wire.integer(answer, "available"),
            _wire.integer(answer, "debt"),
            _wire.text(answer, "status"),
            _wire.maybe_integer(answer, "pending_decrease_to"),
            _wire.maybe_integer(answer, "paused_until_unix_ms"),
            _wire.maybe_text(answer, "key"),
            _wire.maybe_text(answer, "kind"),
        )


@dataclass(frozen=True)
class UsagePage:
    """Limits with their usage."""

    usage: tuple[LimitUsage, ...]
    #: `after` of the next page.
    next: str | None

    @staticmethod
    def read(answer: Json) -> UsagePage:
        """Reads the JSON of the API."""
        usage = tuple(map(LimitUsage.read, _wire.objects(answer, "usage")))
        return UsagePage(usage, _wire.maybe_text(answer, "next"))


@dataclass(frozen=True)
class Template:
    """A template of limits."""

    #: The definition, with the fields of the API. Its key has placeholders.
    definition: dict[str, Any]
    revision: int
    #: The number of limits that are derived from it now.
    live: int

    @property
    def key(self) -> str:
        """The key."""
        return str(self.definition["key"])

    @staticmethod
    def read(answer: Json) -> Template:
        """Reads the JSON of the API."""
        definition = _wire.object_of(answer, "definition")
        _wire.text(definition, "key")
        return Template(definition, _wire.integer(answer, "revision"), _wire.integer(answer, "live"))


@dataclass(frozen=True)
class DecisionLimit:
    """A limit in the way of a call. Only the key is known of a limit of another namespace."""

    key: str
    #: The amount asked for; of a timeout the reserved amount, of an overage the excess.
    asked: int | None = None
    available: int | None = None
    capacity: int | None = None

    @staticmethod
    def read(answer: Json) -> DecisionLimit:
        """Reads the JSON of the API."""
        amounts = (_wire.maybe_integer(answer, name) for name in ("asked", "available", "capacity"))
        return DecisionLimit(_wire.text(answer, "key"), *amounts)


@dataclass(frozen=True)
class Decision:
    """A denial, a refusal, a timeout or an overage."""

    at_unix_ms: int
    #: `denied`, `refused`, `timeout` or `overage`.
    outcome: str
    lease_id: str
    actor: str
    #: The limits in the way, the one that frees last first.
    limits: tuple[DecisionLimit, ...]
    #: Further decisions of the same key and outcome in the same second, which are not listed.
    repeated: int
    job_id: str | None = None
    #: The attributes of a call; None for a job.
    attributes: dict[str, str] | None = None

    @staticmethod
    def read(answer: Json) -> Decision:
        """Reads the JSON of the API."""
        return Decision(
            _wire.integer(answer, "at_unix_ms"),
            _wire.text(answer, "outcome"),
            _wire.text(answer, "lease_id"),
            _wire.text(answer, "actor"),
            tuple(map(DecisionLimit.read, _wire.objects(answer, "limits"))),
            _wire.integer(answer, "repeated"),
            _wire.maybe_text(answer, "job_id"),
            _wire.text_by_name(answer, "attributes") if "attributes" in answer else None,
        )


@dataclass(frozen=True)
class DecisionPage:
    """Decisions, newest first."""

    decisions: tuple[Decision, ...]
    #: `after` of the next page.
    next: str | None

    @staticmethod
    def read(answer: Json) -> DecisionPage:
        """Reads the JSON of the API."""
        decisions = tuple(map(Decision.read, _wire.objects(answer, "decisions")))
        return DecisionPage(decisions, _wire.maybe_text(answer, "next"))


@dataclass(frozen=True)
class TopLimit:
    """A limit among the heaviest. Only the key is known of a limit of another namespace."""

    key: str
    #: The count, which is never too low.
    amount: int | None = None
    #: The amount is too high by at most this.
    error: int | None = None

    @staticmethod
    def read(answer: Json) -> TopLimit:
        """Reads the JSON of the API."""
        return TopLimit(
            _wire.text(answer, "key"), _wire.maybe_integer(answer, "amount"), _wire.maybe_integer(answer, "error")
        )


@dataclass(frozen=True)
class LeaseView:
    """A lease, as far as the server remembers it."""

    lease_id: str
    #: `live`, `expired`, `completed` or `denied`.
    state: str
    reserved_at_unix_ms: int
    requirements: tuple[Requirement, ...]
    job_id: str | None
    extensions: int
    used: tuple[Actual, ...]
    ends_at_unix_ms: int

    @staticmethod
    def read(answer: Json) -> LeaseView:
        """Reads the JSON of the API."""
        lease = _wire.object_of(answer, "lease")
        return LeaseView(
            _wire.text(lease, "lease_id"),
            _wire.text(lease, "state"),
            _wire.integer(lease, "reserved_at_unix_ms"),
            tuple(map(Requirement.read, _wire.objects(lease, "requirements"))),
            _wire.maybe_text(lease, "job_id"),
            _wire.integer(lease, "extensions"),
            tuple(map(Actual.read, _wire.objects(lease, "used"))),
            _wire.integer(lease, "ends_at_unix_ms"),
        )


@dataclass(frozen=True)
class ExplainedRule:
    """A rule of the policy, and whether it matches the call."""

    name: str
    matched: bool

    @staticmethod
    def read(answer: Json) -> ExplainedRule:
        """Reads the JSON of the API."""
        return ExplainedRule(_wire.text(answer, "name"), _wire.boolean(answer, "matched"))


@dataclass(frozen=True)
class ExplainedLimit:
    """A limit that the call needs. Only the key and the amount are known of a limit of another namespace."""

    key: str
    amount: int
    capacity: int | None = None
    available: int | None = None
    fits: bool | None = None

    @staticmethod
    def read(answer: Json) -> ExplainedLimit:
        """Reads the JSON of the API."""
        return ExplainedLimit(
            _wire.text(answer, "key"),
            _wire.integer(answer, "amount"),
            _wire.maybe_integer(answer, "capacity"),
            _wire.maybe_integer(answer, "available"),
            None if answer.get("fits") is None else _wire.boolean(answer, "fits"),
        )


@dataclass(frozen=True)
class Explanation:
    """The answer that a call would get, with its reasons."""

    allowed: bool
    error: str
    #: All rules, in order.
    rules: tuple[ExplainedRule, ...]
    limits: tuple[ExplainedLimit, ...]
    message: str | None = None
    #: The most that the call can cost, in minor units.
    cost: int | None = None
    policy_revision: int | None = None

    @staticmethod
    def read(answer: Json) -> Explanation:
        """Reads the JSON of the API."""
        return Explanation(
            _wire.boolean(answer, "allowed"),
            _known_outcome(answer),
            tuple(map(ExplainedRule.read, _wire.objects(answer, "rules"))),
            tuple(map(ExplainedLimit.read, _wire.objects(answer, "limits"))),
            _wire.maybe_text(answer, "message"),
            _wire.maybe_decimal(answer, "cost"),
            _wire.maybe_integer(answer, "policy_revision"),
        )


@dataclass(frozen=True)
class Whoami:
    """The caller that the server sees."""

    #: The name in transactions and logs.
    actor: str
    namespace: str
    #: `admin`, `writer`, `caller`, `reader`, `gateway` or `client`.
    role: str
    #: Attributes of each of its calls.
    labels: dict[str, str]
    #: Attributes that its calls may set, besides `model` and `provider`.
    may_set: tuple[str, ...]

    @staticmethod
    def read(answer: Json) -> Whoami:
        """Reads the JSON of the API."""
        return Whoami(
            _wire.text(answer, "actor"),
            _wire.text(answer, "namespace"),
            _wire.text(answer, "role"),
            _wire.text_by_name(answer, "labels"),
            _wire.texts(answer, "may_set"),
        )


@dataclass(frozen=True)
class Receipt:
    """The receipt of a committed transaction. A repeated write gets the same one."""

    tx_id: str
    #: None for a write with an idempotency key.
    sequence: int | None
    log_index: int
    committed_at_unix_ms: int
    actor: str
    #: The result of each operation, with the fields of the API.
    results: tuple[dict[str, Any], ...]

    @staticmethod
    def read(answer: Json) -> Receipt:
        """Reads the JSON of the API."""
        return Receipt(
            _wire.text(answer, "tx_id"),
            _wire.maybe_integer(answer, "sequence"),
            _wire.integer(answer, "log_index"),
            _wire.integer(answer, "committed_at_unix_ms"),
            _wire.text(answer, "actor"),
            tuple(_wire.objects(answer, "results")),
        )


@dataclass(frozen=True)
class WriteRefusal:
    """Why a transaction was not committed."""

    code: str
    message: str
    #: The index of the operation that was refused.
    operation: int | None = None
    last_committed_sequence: int | None = None

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    @staticmethod
    def read(answer: Json) -> WriteRefusal:
        """Reads the JSON of the API."""
        return WriteRefusal(
            _wire.text(answer, "code"),
            _wire.text(answer, "message"),
            _wire.maybe_integer(answer, "operation"),
            _wire.maybe_integer(answer, "last_committed_sequence"),
        )


def read_write(answer: Json) -> Receipt | WriteRefusal:
    """Reads the answer to a write. A node that cannot commit anything now raises `Unavailable`: another node may."""
    if isinstance(answer.get("success"), dict):
        return Receipt.read(_wire.object_of(answer, "success"))
    if isinstance(answer.get("error"), dict):
        refusal = WriteRefusal.read(_wire.object_of(answer, "error"))
        if refusal.code == "UNAVAILABLE":
            raise Unavailable(f"the server is unavailable: {refusal.message}")
        return refusal
    raise Malformed("found neither success nor error")
