"""The requests that may be sent again without any rule: definitions of limits, policies, and reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from . import _names, _wire
from ._rules import Core, Rule
from ._wire import Json, Request
from .answers import DecisionPage, LeaseView, Limit, LimitUsage, Template, TopLimit, UsagePage, Whoami
from .credit import Account, Balance, EntryPage, Grant, Statement
from .errors import InputError

T = TypeVar("T")

#: Items on one page of a list that is read as a whole.
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
    """All limits."""
    return _pages(core, "/v1/admin/limits", prefix, lambda page: _listed(page, "limits", Limit.read), deadline)


def _pages(
    core: Core, path: str, prefix: str | None, read: Callable[[Json], list[T]], deadline: float
) -> Rule[list[T]]:
    """A list that is read in pages."""
    found: list[T] = []
    after: str | None = None
    while True:
        request = _get(
            _wire.path(path, prefix=prefix, after=after, page_size=PAGE_SIZE),
            lambda page: (read(page), _wire.maybe_text(page, "next")),
        )
        items, after = yield from core.ask(request, deadline)
        found += items
        if after is None:
            return found


def _listed(answer: Json, name: str, read: Callable[[Json], T]) -> list[T]:
    return [read(item) for item in _wire.objects(answer, name)]


def put_template(definition: Mapping[str, Any], expected_revision: int | None) -> Request[int]:
    """Creates a template or changes its definition."""
    path = _wire.path("/v1/admin/templates", expected_revision=expected_revision)
    return Request("PUT", path, _wire.encode(dict(definition)), lambda answer: _wire.integer(answer, "revision"))


def delete_template(key: str, expected_revision: int | None) -> Request[None]:
    """Deletes a template."""
    path = _wire.path("/v1/admin/templates", key=key, expected_revision=expected_revision)
    return Request("DELETE", path, b"", lambda answer: None)


def templates() -> Request[list[Template]]:
    """All templates."""
    return _get("/v1/admin/templates", lambda answer: _listed(answer, "templates", Template.read))


def usage(key: str) -> Request[LimitUsage]:
    """The usage of a limit."""
    return _get(_wire.path("/v1/admin/limits/{}/usage", own_key(key)), LimitUsage.read)


def usage_page(prefix: str | None, sort: str, after: str | None, page_size: int | None) -> Request[UsagePage]:
    """Limits with their usage."""
    if sort not in ("key", "fullness", "debt"):
        raise InputError(f"sort: found {sort!r}, allowed are key, fullness and debt")
    return _get(_wire.path("/v1/usage", prefix=prefix, sort=sort, after=after, page_size=page_size), UsagePage.read)


def top(of: str, within: str, prefix: str | None) -> Request[list[TopLimit]]:
    """The heaviest limits."""
    if of not in ("taken", "denied", "debt"):
        raise InputError(f"of: found {of!r}, allowed are taken, denied and debt")
    if within not in ("1m", "5m", "1h"):
        raise InputError(f"within: found {within!r}, allowed are 1m, 5m and 1h")
    path = _wire.path("/v1/top", of=of, within=within, prefix=prefix)
    return _get(path, lambda answer: _listed(answer, "top", TopLimit.read))


def decisions(**query: str | int | None) -> Request[DecisionPage]:
    """Recent denials, refusals, timeouts and overages."""
    outcome = query.get("outcome")
    if outcome not in (None, "denied", "refused", "timeout", "overage"):
        raise InputError(f"outcome: found {outcome!r}, allowed are denied, refused, timeout and overage")
    return _get(_wire.path("/v1/decisions", **query), DecisionPage.read)


def lease(lease_id: str) -> Request[LeaseView]:
    """One lease."""
    return _get(_wire.path("/v1/leases/{}", lease_id), LeaseView.read)


def vaults(core: Core, deadline: float) -> Rule[list[str]]:
    """The names of all vaults."""
    return _pages(core, "/v1/vaults", None, lambda page: list(_wire.texts(page, "vaults")), deadline)


def accounts(core: Core, vault: str, prefix: str | None, deadline: float) -> Rule[list[Account]]:
    """All accounts of a vault."""
    path = _wire.path("/v1/vaults/{}/accounts", _names.name("vault", vault))
    return _pages(core, path, prefix, lambda page: _listed(page, "accounts", Account.read), deadline)


def balances(vault: str, account: str) -> Request[tuple[Balance, ...]]:
    """The balances of an account."""
    return _get(
        _of_account(vault, account, "balances"), lambda answer: tuple(_listed(answer, "balances", Balance.read))
    )


def grants(vault: str, account: str) -> Request[tuple[Grant, ...]]:
    """The grants of an account."""
    return _get(_of_account(vault, account, "grants"), lambda answer: tuple(_listed(answer, "grants", Grant.read)))


def entries(vault: str, account: str, order: str, **query: int | None) -> Request[EntryPage]:
    """A page of the entries of an account."""
    if order not in ("asc", "desc"):
        raise InputError(f"order: found {order!r}, allowed are asc and desc")
    return _get(_of_account(vault, account, "entries", order=order, **query), EntryPage.read)


def statement(vault: str, account: str, **query: str | int | None) -> Request[Statement]:
    """The sums of an account in a period."""
    return _get(_of_account(vault, account, "statement", **query), Statement.read)


def _of_account(vault: str, account: str, what: str, **query: str | int | None) -> str:
    names = _names.name("vault", vault), _names.account("account", account)
    return _wire.path(f"/v1/vaults/{{}}/accounts/{{}}/{what}", *names, **query)


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
