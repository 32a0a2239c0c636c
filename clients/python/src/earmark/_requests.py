"""The requests that may be sent again without any rule: definitions of limits, policies, and reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from . import _names, _wire
from ._rules import Core, Rule
from ._wire import Json, Request
from .answers import Balance, Grant, LeaseView, Limit, LimitUsage, Statement, UsagePage, Whoami
from .errors import InputError

T = TypeVar("T")

#: Limits on one page of a list.
PAGE_SIZE = 1_000


def own_key(key: str) -> str:
    """The key of a limit of the caller's own namespace."""
    namespace, bare = _names.limit_key("key", key)
    if namespace is not None:
        raise InputError(f"key: found {key!r}, allowed are limits of the own namespace")
    return bare


def put_limit(definition: Mapping[str, Any]) -> Request[str]:
    """Creates a limit or changes its definition."""
    own_key(definition.get("key", ""))
    return Request("PUT", "/v1/admin/limits", _wire.encode(dict(definition)), _status)


def delete_limit(key: str) -> Request[str]:
    """Deletes a limit once it is empty."""
    return Request("DELETE", _wire.path("/v1/admin/limits/{}", own_key(key)), b"", _status)


def pause_limit(key: str, seconds: float, reason: str | None) -> Request[int]:
    """Refuses new reserves of a limit for a time."""
    body: Json = {"for_ms": round(_names.seconds("seconds", seconds) * 1_000)}
    if reason is not None:
        body["reason"] = reason
    path = _wire.path("/v1/admin/limits/{}/pause", own_key(key))
    return Request("POST", path, _wire.encode(body), lambda answer: _wire.integer(answer, "paused_until_unix_ms"))


def limit(key: str) -> Request[Limit]:
    """One limit."""
    path = _wire.path("/v1/admin/limits/{}", own_key(key))
    return _get(path, lambda answer: Limit.read(_wire.object_of(answer, "limit")))


def limits(core: Core, prefix: str | None, deadline: float) -> Rule[list[Limit]]:
    """All limits, read in pages."""
    found: list[Limit] = []
    after: str | None = None
    while True:
        path = _wire.path("/v1/admin/limits", prefix=prefix, after=after, page_size=PAGE_SIZE)
        page, after = yield from core.ask(_get(path, _limits_page), deadline)
        found += page
        if after is None:
            return found


def _limits_page(answer: Json) -> tuple[list[Limit], str | None]:
    return [Limit.read(item) for item in _wire.objects(answer, "limits")], _wire.maybe_text(answer, "next")


def usage(key: str) -> Request[LimitUsage]:
    """The usage of a limit."""
    return _get(_wire.path("/v1/admin/limits/{}/usage", own_key(key)), LimitUsage.read)


def usage_page(prefix: str | None, sort: str, after: str | None, page_size: int | None) -> Request[UsagePage]:
    """Limits with their usage."""
    if sort not in ("key", "fullness", "debt"):
        raise InputError(f"sort: found {sort!r}, allowed are key, fullness and debt")
    return _get(_wire.path("/v1/usage", prefix=prefix, sort=sort, after=after, page_size=page_size), UsagePage.read)


def lease(lease_id: str) -> Request[LeaseView]:
    """One lease."""
    return _get(_wire.path("/v1/leases/{}", lease_id), LeaseView.read)


def balances(vault: str, account: str) -> Request[tuple[Balance, ...]]:
    """The balances of an account."""
    names = _names.name("vault", vault), _names.account("account", account)
    path = _wire.path("/v1/vaults/{}/accounts/{}/balances", *names)
    return _get(path, lambda answer: tuple(map(Balance.read, _wire.objects(answer, "balances"))))


def grants(vault: str, account: str) -> Request[tuple[Grant, ...]]:
    """The grants of an account."""
    names = _names.name("vault", vault), _names.account("account", account)
    path = _wire.path("/v1/vaults/{}/accounts/{}/grants", *names)
    return _get(path, lambda answer: tuple(map(Grant.read, _wire.objects(answer, "grants"))))


def statement(
    vault: str, account: str, since: int | None, until: int | None, group_by: str | None
) -> Request[Statement]:
    """The sums of an account in a period."""
    names = _names.name("vault", vault), _names.account("account", account)
    template = "/v1/vaults/{}/accounts/{}/statement"
    return _get(_wire.path(template, *names, since=since, until=until, group_by=group_by), Statement.read)


def whoami() -> Request[Whoami]:
    """The caller that the server sees."""
    return _get("/v1/whoami", Whoami.read)


def client_state(client_id: str, namespace: str, vault: str | None) -> Request[int]:
    """The last sequence number that a client committed in a scope."""
    path = _wire.path("/v1/clients/{}", client_id, namespace=namespace, vault=vault)
    return _get(path, lambda answer: _wire.integer(answer, "last_committed_sequence"))


def put_policy(policy: str, expected_revision: int | None, namespace: str | None) -> Request[int]:
    """Replaces the policy of a namespace."""
    body: Json = {"policy": policy}
    if expected_revision is not None:
        body["expected_revision"] = expected_revision
    path = _wire.path("/v1/admin/policy", namespace=namespace)
    return Request("PUT", path, _wire.encode(body), lambda answer: _wire.integer(answer, "revision"))


def policy(namespace: str | None) -> Request[tuple[str, int]]:
    """The policy of a namespace with its revision."""
    path = _wire.path("/v1/admin/policy", namespace=namespace)
    return _get(path, lambda answer: (_wire.text(answer, "policy"), _wire.integer(answer, "revision")))


def _get(path: str, read: Callable[[Json], T]) -> Request[T]:
    return Request("GET", path, b"", read, changes_state=False)


def _status(answer: Json) -> str:
    return _wire.text(answer, "status")
