"""Lists and reports: templates, decisions, vaults, accounts and entries."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from earmark import AsyncClient, Client, Denial, InputError, Limiter
from earmark.errors import Invalid
from earmark.pytest_plugin import EarmarkServer


@pytest.fixture
def vault(earmark_client: Client, prefix: str) -> str:
    """A vault with an account `a`, which has 100 usd, and `b`, which has a plan."""
    earmark_client.write_once(f"{prefix}-vault", [{"open_vault": {"vault": prefix}}])
    plan = {"asset": "usd", "amount": "7", "period": "day", "carry_over": {"max": "3"}}
    operations: list[dict[str, Any]] = [
        {"open_account": {"account": "a", "overdraft": "deny"}},
        {"open_account": {"account": "b", "overdraft": "deny", "plan": plan}},
        {"issue": {"account": "a", "asset": "usd", "amount": 100, "memo": "order 17"}},
    ]
    earmark_client.write_once(f"{prefix}-open", operations, vault=prefix)
    return prefix


def test_vaults_and_accounts_are_listed_with_balances_and_plans(earmark_client: Client, vault: str) -> None:
    assert {"main", vault} <= set(earmark_client.vaults())
    accounts = {account.account: account for account in earmark_client.accounts(vault)}
    assert accounts["a"].status == "open" and accounts["a"].plan is None
    assert [(balance.asset, balance.available) for balance in accounts["a"].balances] == [("usd", 100)]
    plan = accounts["b"].plan
    assert plan is not None and (plan.amount, plan.period, plan.carry_over) == (7, "day", 3)
    assert [account.account for account in earmark_client.accounts(vault, prefix="b")] == ["b"]
    with pytest.raises(InputError, match="vault: found 'a vault'"):
        earmark_client.accounts("a vault")


def test_entries_are_read_in_pages_of_both_orders(earmark_client: Client, vault: str) -> None:
    key = f"{vault}:usd"
    credit = {"kind": "credit", "vault": vault, "account": "a", "asset": "usd", "timeout_seconds": 60}
    earmark_client.put_limit({"key": key, **credit})
    with Limiter(earmark_client) as limiter:
        with limiter.acquire({key: 40}) as lease:
            lease.complete({key: 25}, labels={"model": "gpt-4o"})
        limiter.acquire({key: 10}).release()
    page = earmark_client.entries(vault, "a", page_size=3)
    assert [entry.kind for entry in page.entries] == ["transaction", "hold", "settle"] and page.next is not None
    issued, hold, settled = page.entries
    assert issued.idempotency_key == f"{vault}-open" and issued.memos == ("order 17",) and issued.client_id is None
    assert issued.changes[0].issued == 100 and issued.changes[0].retired is None
    assert hold.hold == 40 and hold.limit == key and hold.lease_id == lease.lease_id
    assert (hold.changes[0].amount, hold.changes[0].held) == (-40, 40)
    assert (settled.paid, settled.debt, settled.reason, settled.labels) == (25, 0, "complete", {"model": "gpt-4o"})
    rest = earmark_client.entries(vault, "a", after=page.next)
    assert [entry.kind for entry in rest.entries] == ["hold", "release"] and rest.next is None
    newest = earmark_client.entries(vault, "a", order="desc", page_size=1)
    assert newest.entries == rest.entries[-1:]
    assert earmark_client.entries(vault, "a", until=issued.committed_at_unix_ms).entries == ()
    with pytest.raises(InputError, match="order: found 'up', allowed are asc and desc"):
        earmark_client.entries(vault, "a", order="up")


def test_templates_are_put_listed_and_deleted(earmark_client: Client, prefix: str) -> None:
    key = f"{prefix}:{{tenant}}:rpm"
    definition = {"key": key, "kind": "rolling", "capacity": 5, "window_seconds": 60}
    revision = earmark_client.put_template(definition, expected_revision=0)
    with pytest.raises(Invalid, match="revision"):
        earmark_client.put_template(definition, expected_revision=revision + 7)
    with Limiter(earmark_client) as limiter, limiter.acquire({f"{prefix}:acme:rpm": 2}):
        [template] = [template for template in earmark_client.templates() if template.key == key]
        assert (template.revision, template.live, template.definition["capacity"]) == (revision, 1, 5)
        assert earmark_client.limit(f"{prefix}:acme:rpm").template == key
    earmark_client.delete_template(key, expected_revision=revision)
    assert key not in [template.key for template in earmark_client.templates()]


def test_decisions_and_the_heaviest_limits_name_what_denied(earmark_client: Client, tokens: str) -> None:
    with Limiter(earmark_client) as limiter, limiter.acquire({tokens: 90}):
        assert isinstance(limiter.try_acquire({tokens: 20}, job_id="job-9"), Denial)
    page = earmark_client.decisions(key=tokens, job="job-9", outcome="denied", page_size=10)
    [decision] = page.decisions
    [limit] = decision.limits
    assert decision.job_id == "job-9" and decision.attributes is None
    assert (limit.key, limit.asked, limit.available, limit.capacity) == (tokens, 20, 10, 100)
    assert earmark_client.decisions(key=tokens, until=decision.at_unix_ms).decisions == ()
    [taken] = earmark_client.top(prefix=tokens)
    assert taken.key == tokens and taken.amount is not None and taken.amount >= 90
    assert [limit.key for limit in earmark_client.top("denied", "1h", tokens)] == [tokens]
    with pytest.raises(InputError, match="of: found 'size', allowed are taken, denied and debt"):
        earmark_client.top("size")
    with pytest.raises(InputError, match="within: found '2h', allowed are 1m, 5m and 1h"):
        earmark_client.top(within="2h")
    with pytest.raises(InputError, match="outcome: found 'late'"):
        earmark_client.decisions(outcome="late")


def test_the_async_client_has_the_same_lists(earmark_server: EarmarkServer, earmark_client: Client, vault: str) -> None:
    async def main() -> None:
        async with AsyncClient(earmark_server.url) as client:
            assert await client.vaults() == earmark_client.vaults()
            assert await client.accounts(vault) == earmark_client.accounts(vault)
            assert await client.entries(vault, "a") == earmark_client.entries(vault, "a")
            assert await client.templates() == earmark_client.templates()
            assert isinstance(await client.top(), list)

    asyncio.run(main())


def test_both_clients_have_the_same_methods() -> None:
    def methods(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    assert methods(Client) - {"of"} == methods(AsyncClient) - {"loop"}
