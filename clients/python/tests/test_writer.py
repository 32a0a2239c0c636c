"""Writes happen exactly once, through lost messages, kills and lost files."""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from proxy import Proxy

from earmark import AsyncClient, AsyncWriter, Client, Fate, InputError, Writer
from earmark.errors import (
    Fenced,
    NothingToRepeat,
    OtherContent,
    OutcomeUnknown,
    SequenceConflict,
    StateUnknown,
    WriteRefused,
    WriteUnfinished,
)
from earmark.pytest_plugin import EarmarkServer
from earmark.writer import SequenceFileError


def issue(account: str, amount: int | str = 5) -> dict[str, Any]:
    return {"issue": {"account": account, "asset": "usd", "amount": amount}}


@pytest.fixture
def account(earmark_client: Client, prefix: str, tmp_path: Path) -> str:
    with Writer(earmark_client, tmp_path / "setup", client_id=f"{prefix}-setup", vault="main") as writer:
        writer.write([{"open_account": {"account": prefix, "overdraft": "deny"}}])
    return prefix


def available(client: Client, account: str) -> int:
    return sum(balance.available for balance in client.balances("main", account))


def opened(client: Client, path: Path, account: str) -> Writer:
    return Writer(client, path, client_id=account, vault="main")


def test_writes_have_consecutive_numbers_and_survive_a_restart(
    earmark_client: Client, account: str, tmp_path: Path
) -> None:
    with opened(earmark_client, tmp_path / "w", account) as writer:
        # The first sequence of a new client is a fence.
        first = writer.write([issue(account)])
        assert first.sequence == 2 and first.results[0]["entry"]
        assert writer.write([issue(account, "7")]).sequence == 3
    assert (tmp_path / "w").stat().st_mode & 0o777 == 0o600
    with opened(earmark_client, tmp_path / "w", account) as writer:
        assert writer.unfinished is None
        assert writer.write([issue(account)]).sequence == 4
    assert available(earmark_client, account) == 17


def test_grants_are_listed_in_the_order_in_which_they_are_spent(
    earmark_client: Client, account: str, tmp_path: Path
) -> None:
    expires = 4_000_000_000_000
    promotion = {"account": account, "asset": "usd", "amount": 7, "expires_at_unix_ms": expires, "priority": 3}
    with opened(earmark_client, tmp_path / "w", account) as writer:
        writer.write([issue(account), {"issue": promotion}])
    wanted = [("usd", 7, 0, 3, expires), ("usd", 5, 0, 128, None)]
    assert [dataclasses.astuple(grant) for grant in earmark_client.grants("main", account)] == wanted

    async def main() -> int:
        async with AsyncClient(earmark_client.options.core.servers.urls) as client:
            return len(await client.grants("main", account))

    assert asyncio.run(main()) == 2


def test_a_statement_sums_up_a_period_and_groups_spending(earmark_client: Client, account: str, tmp_path: Path) -> None:
    with opened(earmark_client, tmp_path / "w", account) as writer:
        writer.write([issue(account), issue(account, 7)])
    statement = earmark_client.statement("main", account, group_by="model")
    (asset,) = statement.assets
    assert (asset.opening, asset.issued, asset.closing, asset.groups) == (0, 12, 12, ())
    later = earmark_client.statement("main", account, since=4_000_000_000_000)
    assert [(one.opening, one.issued, one.closing) for one in later.assets] == [(12, 0, 12)]

    async def main() -> int:
        async with AsyncClient(earmark_client.options.core.servers.urls) as client:
            return (await client.statement("main", account)).assets[0].closing

    assert asyncio.run(main()) == 12


@pytest.mark.parametrize("fault", ["lose_request", "lose_answer", "unavailable", "unavailable_after", "duplicate"])
def test_a_write_happens_once_under_faults(
    fault: str, proxy: Proxy, earmark_client: Client, account: str, tmp_path: Path
) -> None:
    with Client(proxy.url) as client, opened(client, tmp_path / "w", account) as writer:
        proxy.faults = {proxy.count + 1: fault, proxy.count + 2: fault}
        writer.write([issue(account)])
    assert available(earmark_client, account) == 5


@pytest.mark.parametrize(("fault", "fate"), [("lose_request", Fate.NEVER_HAPPENED), ("lose_answer", Fate.COMMITTED)])
def test_an_unfinished_write_is_settled_or_repeated(
    fault: str, fate: Fate, proxy: Proxy, earmark_client: Client, account: str, tmp_path: Path
) -> None:
    with Client(proxy.url, attempt_timeout=0.3) as client:
        writer = opened(client, tmp_path / "w", account)
        proxy.always = fault
        with pytest.raises(OutcomeUnknown):
            writer.write([issue(account)], timeout=0.5)
        proxy.always = None
        with pytest.raises(WriteUnfinished, match="repeat or settle it first"):
            writer.write([issue(account)])
        with pytest.raises(WriteUnfinished):
            writer.close()
        # The process ends here and begins again.
        writer = opened(client, tmp_path / "w", account)
        assert writer.unfinished is not None and writer.unfinished.sequence == 2
        with pytest.raises(OtherContent):
            writer.repeat([issue(account, 6)])
        assert writer.settle() is fate
        assert writer.settle() is None
        with pytest.raises(NothingToRepeat):
            writer.repeat([])
        writer.close()
        assert available(earmark_client, account) == (5 if fate is Fate.COMMITTED else 0)


def test_a_repeated_write_gets_its_receipt_and_happens_once(
    proxy: Proxy, earmark_client: Client, account: str, tmp_path: Path
) -> None:
    with Client(proxy.url, attempt_timeout=0.3) as client, opened(client, tmp_path / "w", account) as writer:
        proxy.always = "lose_answer"
        with pytest.raises(OutcomeUnknown):
            writer.write([issue(account)], timeout=0.5)
        proxy.always = None
        assert writer.repeat([issue(account)]).sequence == 2
    assert available(earmark_client, account) == 5


def test_a_fenced_write_says_so_when_it_is_repeated(proxy: Proxy, account: str, tmp_path: Path) -> None:
    with Client(proxy.url, attempt_timeout=0.3) as client, opened(client, tmp_path / "w", account) as writer:
        proxy.always = "lose_request"
        with pytest.raises(OutcomeUnknown):
            writer.write([issue(account)], timeout=0.5)
        proxy.always = "lose_answer"
        with pytest.raises(OutcomeUnknown):
            writer.settle(timeout=0.5)
        proxy.always = None
        with pytest.raises(Fenced, match="write it again"):
            writer.repeat([issue(account)])
        assert writer.write([issue(account)]).sequence == 3


def test_a_refused_write_leaves_its_number_free(earmark_client: Client, account: str, tmp_path: Path) -> None:
    with opened(earmark_client, tmp_path / "w", account) as writer:
        with pytest.raises(WriteRefused) as error:
            writer.write([{"retire": {"account": account, "asset": "usd", "amount": 1}}])
        assert error.value.refusal.code == "INSUFFICIENT_CREDIT" and error.value.refusal.operation == 0
        assert writer.write([issue(account)]).sequence == 2
        with pytest.raises(InputError, match=r"operations\[0\].issue.amount: found 1.5 \(float\)"):
            writer.write([issue(account, 1.5)])  # type: ignore[arg-type]


def test_a_refusal_after_an_unknown_outcome_is_fenced_first(
    proxy: Proxy, account: str, tmp_path: Path, earmark_client: Client
) -> None:
    with Client(proxy.url) as client, opened(client, tmp_path / "w", account) as writer:
        proxy.faults = {proxy.count + 1: "lose_request"}
        with pytest.raises(WriteRefused):
            writer.write([{"retire": {"account": account, "asset": "usd", "amount": 1}}])
        # The fence has number 2.
        assert writer.write([issue(account)]).sequence == 3


def test_another_writer_stops_this_one(earmark_client: Client, account: str, tmp_path: Path) -> None:
    with opened(earmark_client, tmp_path / "a", account) as writer:
        with pytest.raises(SequenceFileError, match="in use by another process"):
            opened(earmark_client, tmp_path / "a", account)
        with opened(earmark_client, tmp_path / "b", account) as other:
            other.write([issue(account)])
        with pytest.raises(SequenceConflict, match="another writer uses the same client_id"):
            writer.write([issue(account)])
        with pytest.raises(SequenceConflict):
            writer.write([])


def test_a_damaged_or_foreign_file_is_refused(earmark_client: Client, account: str, tmp_path: Path) -> None:
    path = tmp_path / "w"
    opened(earmark_client, path, account).close()
    good = path.read_text()
    with pytest.raises(SequenceFileError, match=f"it belongs to client {account} in vault main of namespace default"):
        Writer(earmark_client, path, client_id="other", vault="main")
    damages = {
        "": "two lines",
        good.replace("1", "9", 1): "checksum",
        good * 2: "two lines",
        "x" * 70_000: "larger than 64 KiB",
    }
    for text, message in damages.items():
        path.write_text(text)
        with pytest.raises(SequenceFileError, match=message):
            opened(earmark_client, path, account)


def test_a_lost_file_continues_behind_a_fence(earmark_client: Client, account: str, tmp_path: Path) -> None:
    with opened(earmark_client, tmp_path / "w", account) as writer:
        writer.write([issue(account)])
    (tmp_path / "w").unlink()
    with opened(earmark_client, tmp_path / "w", account) as writer:
        assert writer.committed == 3
        assert writer.write([issue(account)]).sequence == 4


def test_a_server_that_lost_its_writes_stops_the_writer(account: str, earmark_client: Client, tmp_path: Path) -> None:
    opened(earmark_client, tmp_path / "w", account).close()
    server = EarmarkServer()
    try:
        with Client(server.url) as client, pytest.raises(SequenceConflict, match="the server ends at 0"):
            opened(client, tmp_path / "w", account)
    finally:
        server.stop()
    with Client(server.url) as client, pytest.raises(StateUnknown):
        Writer(client, tmp_path / "w", client_id=account, vault="main", timeout=0.1)


@pytest.mark.parametrize("point", ["store", "send", "answer"])
def test_a_killed_writer_loses_and_repeats_nothing(
    point: str, earmark_server: EarmarkServer, earmark_client: Client, account: str, tmp_path: Path
) -> None:
    program = f"""
    import os, signal
    from earmark import *
    from earmark._sequence_file import SequenceFile
    def kill(*_): os.kill(os.getpid(), signal.SIGKILL)
    client = Client({earmark_server.url!r})
    writer = Writer(client, {str(tmp_path / "w")!r}, client_id={account!r}, vault="main")
    send = client.send
    def answer(request, by):
        send(request, by)
        kill()
    if {point!r} == "store": SequenceFile.store = kill
    if {point!r} == "send": client.send = kill
    if {point!r} == "answer": client.send = answer
    writer.write([{issue(account)!r}])
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, timeout=20)
    assert done.returncode == -9, done.stderr.decode()
    with opened(earmark_client, tmp_path / "w", account) as writer:
        assert (writer.unfinished is None) == (point == "store")
        if writer.unfinished is not None:
            writer.repeat([issue(account)])
        else:
            writer.write([issue(account)])
    assert available(earmark_client, account) == 5


def test_an_async_writer_writes_once_too(proxy: Proxy, earmark_client: Client, account: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncClient(proxy.url, attempt_timeout=0.3) as client:
            async with await AsyncWriter.open(client, tmp_path / "w", client_id=account, vault="main") as writer:
                proxy.faults = {proxy.count + 1: "lose_answer"}
                receipts = await asyncio.gather(*(writer.write([issue(account)]) for _ in range(3)))
                assert [receipt.sequence for receipt in receipts] == [2, 3, 4]
                proxy.always = "lose_answer"
                with pytest.raises(OutcomeUnknown):
                    await writer.write([issue(account)], timeout=0.5)
                proxy.always = None
                assert await writer.settle() is Fate.COMMITTED
                assert writer.unfinished is None and writer.committed == 5

    asyncio.run(main())
    assert available(earmark_client, account) == 20


def test_a_write_with_a_key_has_one_effect_and_its_repeat_the_same_receipt(
    earmark_client: Client, account: str, prefix: str
) -> None:
    key = f"evt_{prefix}"
    first = earmark_client.write_once(key, [issue(account)], vault="main")
    assert earmark_client.write_once(key, [issue(account)], vault="main") == first
    assert first.sequence is None
    assert earmark_client.balances("main", account)[0].available == 5
    with pytest.raises(WriteRefused) as refused:
        earmark_client.write_once(key, [issue(account, 6)], vault="main")
    assert refused.value.refusal.code == "KEY_REUSED"

    async def again() -> None:
        async with AsyncClient(earmark_client.options.core.servers.urls) as client:
            assert await client.write_once(key, [issue(account)], vault="main") == first

    asyncio.run(again())
