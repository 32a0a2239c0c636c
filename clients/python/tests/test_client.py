"""Reads and definitions, the rules without a server, and batches."""

from __future__ import annotations

import asyncio
import math
import shutil
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from proxy import Proxy

from earmark import AsyncClient, AsyncLimiter, Backoff, Client, Denial, Env, Job, Limiter
from earmark._admission import LEASE_AGE_MAX_MS, Admission
from earmark._batcher import COMPANY_WAIT, IN_FLIGHT_MAX, Batcher
from earmark._env import ulid
from earmark._rules import Core, Send, Servers, Sleep, Waits
from earmark._wire import BATCH_MAX, Request
from earmark.answers import Completed, ReserveAnswer
from earmark.errors import (
    AcquireTimeout,
    Busy,
    DeadlinePassed,
    Invalid,
    InvalidRequest,
    NoAnswer,
    NotFound,
    UnknownThenRefused,
    Unreachable,
)
from earmark.pytest_plugin import EarmarkServer


class FixedEnv(Env):
    """Clocks that only tests move, and no randomness."""

    def __init__(self, random: float = 0.0) -> None:
        self.time = 1_000.0
        self.random = random
        self.leases = 0

    def wall_ms(self) -> int:
        return int(self.time * 1_000)

    def now(self) -> float:
        return self.time

    def part(self) -> float:
        return self.random

    def bits(self, count: int) -> int:
        self.leases += 1
        return self.leases


def core(env: Env, servers: int = 1) -> Core:
    return Core(env, Servers(tuple(f"http://s{number}" for number in range(servers))), Backoff(0.1, 0.3))


def test_a_ulid_has_the_time_in_front() -> None:
    assert ulid(1469918176385, 0) == "01ARYZ6S410000000000000000"
    assert ulid(2**48 - 1, 2**128 - 1) == "7ZZZZZZZZZZZZZZZZZZZZZZZZZ"
    assert ulid(0, int.from_bytes(range(9, 25), "big"))[10:] == "9ABCDEFGHJKMNPQR"
    ids = {Env().lease_id() for _ in range(1_000)}
    assert len(ids) == 1_000 and all(len(one) == 26 for one in ids)
    assert {character for one in ids for character in one[10:]} == set("0123456789ABCDEFGHJKMNPQRSTVWXYZ")


def test_waits_double_up_to_the_longest_and_half_of_each_is_random() -> None:
    failure = NoAnswer("it broke")
    for random, expected in ((0.0, [0.05, 0.1, 0.15, 0.15]), (1.0, [0.1, 0.2, 0.3, 0.3])):
        waits = Waits(FixedEnv(random), Backoff(0.1, 0.3), 1)
        assert [round(waits.after(failure), 6) for _ in range(4)] == expected


def test_the_next_server_is_asked_at_once_until_all_have_failed() -> None:
    waits = Waits(FixedEnv(), Backoff(0.1, 0.3), 3)
    assert [round(waits.after(Unreachable("refused")), 6) for _ in range(5)] == [0, 0, 0.05, 0, 0]
    waits = Waits(FixedEnv(), Backoff(0.1, 0.3), 3)
    assert waits.after(Busy("full")) == 0.05


def run(rule: Generator[Any, Any, Any], env: FixedEnv, answers: list[Any]) -> tuple[list[Any], Any]:
    """Runs a rule with these answers. Returns the bodies that it sent, and its result or error."""
    sent: list[Any] = []
    result: Any = None
    try:
        while True:
            effect = rule.send(result)
            result = None
            if isinstance(effect, Send):
                sent.append(effect.request)
                result = answers.pop(0)
                if callable(result):
                    result = result()
            elif isinstance(effect, Sleep):
                env.time += effect.seconds
    except StopIteration as stop:
        return sent, stop.value
    except Exception as error:
        return sent, error


def denied(hint: int) -> ReserveAnswer:
    return ReserveAnswer(False, hint, 0, "", limited_by=("a",))


ALLOWED = ReserveAnswer(True, 0, 5, "")


def test_a_denial_waits_for_its_hint_and_the_last_attempt_comes_before_the_deadline() -> None:
    env = FixedEnv()
    admission = Admission(core(env), lambda lease_id: None)
    sent, result = run(admission.acquire(Job({"a": 1}), env.time + 10), env, [denied(4_000), ALLOWED])
    assert env.time == 1_004 and result.answer is ALLOWED and len(sent) == 2
    sent, result = run(admission.acquire(Job({"a": 1}), env.time + 10), env, [denied(60_000), denied(60_000)])
    assert isinstance(result, AcquireTimeout) and result.denial == Denial(60_000, ("a",))
    assert len(sent) == 2 and env.time == 1_014
    assert "no room in a; retry in 60000 ms" in str(result)


def test_a_lease_that_grows_old_during_an_outage_is_replaced_and_given_back() -> None:
    env = FixedEnv()
    given_back: list[str] = []
    admission = Admission(core(env), given_back.append)

    def outage() -> NoAnswer:
        env.time += LEASE_AGE_MAX_MS / 1_000
        return NoAnswer("it broke")

    sent, result = run(admission.acquire(Job({"a": 1}), env.time + 1_000), env, [outage, ALLOWED])
    assert len(given_back) == 1 and given_back[0] != result.lease_id
    assert given_back[0].encode() in sent[0].body and result.lease_id.encode() in sent[1].body


def test_a_refusal_after_an_unknown_outcome_says_so() -> None:
    env = FixedEnv()
    request = Job({"a": 1}).reserve(env.lease_id())
    answers = [NoAnswer("broke"), Unreachable("refused"), Busy("full"), NotFound("gone")]
    _, error = run(core(env).ask(request, env.time + 9), env, answers)
    assert isinstance(error, NotFound)
    _, error = run(core(env).ask(request, env.time + 9), env, [NoAnswer("broke"), Invalid("bad")])
    assert isinstance(error, UnknownThenRefused) and error.may_have_happened
    _, error = run(core(env).ask(request, env.time), env, [])
    assert isinstance(error, DeadlinePassed)


def test_limits_are_put_read_paused_and_deleted(earmark_client: Client, prefix: str) -> None:
    key = f"{prefix}:a/b|c%2F"
    definition = {"key": key, "kind": "rolling", "capacity": 5, "window_seconds": 60}
    assert earmark_client.put_limit(definition) == "active"
    limit = earmark_client.limit(key)
    assert limit.key == key and limit.definition["capacity"] == 5 and limit.status == "active"
    assert [limit.key for limit in earmark_client.limits(prefix)] == [key]
    page = earmark_client.usage_page(prefix)
    assert page.usage[0].key == key and page.usage[0].kind == "rolling" and page.next is None
    with Limiter(earmark_client) as limiter:
        assert earmark_client.pause_limit(key, 60, "test") > 0
        denial = limiter.try_acquire({key: 1})
        assert isinstance(denial, Denial) and denial.error == f"limit_paused:{key}"
        assert earmark_client.pause_limit(key, 0) == 0
        with limiter.acquire({key: 2}, job_id="job-7") as lease:
            assert earmark_client.usage(key).available == 3
            view = earmark_client.lease(lease.lease_id)
            assert view.state == "live" and view.job_id == "job-7" and view.requirements[0].amount == 2
            lease.release()
    assert earmark_client.delete_limit(key) == "deleted"


def test_the_async_client_reads_the_same(earmark_server: EarmarkServer, tokens: str) -> None:
    async def main() -> None:
        async with AsyncClient(earmark_server.url) as client:
            assert (await client.usage(tokens)).capacity == 100
            assert (await client.limit(tokens)).key == tokens
            assert tokens in [limit.key for limit in await client.limits()]
            assert (await client.usage_page(tokens)).usage[0].key == tokens
            assert await client.client_state("nobody") == 0
            assert (await client.whoami()).actor == "system:local"

    asyncio.run(main())


def test_a_policy_is_put_and_read(earmark_client: Client) -> None:
    revision = earmark_client.put_policy('unmatched = "allow"\n')
    assert earmark_client.policy() == ('unmatched = "allow"\n', revision)


def test_async_callers_share_requests(proxy: Proxy, earmark_client: Client, prefix: str) -> None:
    key = f"{prefix}:many"
    earmark_client.put_limit({"key": key, "kind": "rolling", "capacity": 1_000, "window_seconds": 3600})

    async def call(limiter: AsyncLimiter) -> None:
        async with limiter.acquire({key: 2}) as lease:
            await lease.complete({key: 1})

    async def main() -> None:
        async with AsyncClient(proxy.url) as client, AsyncLimiter(client) as limiter:
            await asyncio.gather(*(call(limiter) for _ in range(300)))

    asyncio.run(main())
    assert len(proxy.trace.seen) == 600
    assert proxy.count < 40
    assert earmark_client.usage(key).reserved == 300


def test_a_batch_whose_answer_is_lost_reserves_once(proxy: Proxy, earmark_client: Client, prefix: str) -> None:
    key = f"{prefix}:many"
    earmark_client.put_limit({"key": key, "kind": "rolling", "capacity": 100, "window_seconds": 3600})
    proxy.faults = {1: "lose_answer", 2: "lose_request", 3: "unavailable_after"}

    async def call(limiter: AsyncLimiter) -> Completed:
        async with limiter.acquire({key: 1}) as lease:
            return await lease.complete()

    async def main() -> None:
        async with AsyncClient(proxy.url) as client, AsyncLimiter(client) as limiter:
            done = await asyncio.gather(*(call(limiter) for _ in range(100)))
            assert all(completed.reconciled for completed in done)

    asyncio.run(main())
    assert earmark_client.usage(key).reserved == 100


def test_a_request_that_is_cancelled_at_any_step_leaves_no_connection_that_blocks_the_next(
    earmark_server: EarmarkServer,
) -> None:
    """The pool of the HTTP library kept a connection that was cancelled before it was opened. It never became ready, so
    that all later requests waited for it until their deadlines. An attempt whose time was over was enough."""

    async def main() -> None:
        for turns in range(15):
            async with AsyncClient(earmark_server.url) as client:
                cancelled = asyncio.create_task(client.whoami())
                for _ in range(turns):
                    await asyncio.sleep(0)
                cancelled.cancel()
                await asyncio.wait([cancelled])
                assert (await client.whoami(timeout=5)).namespace == "default", turns

    asyncio.run(main())


def test_a_malformed_item_fails_alone_and_not_the_batch_that_it_is_in(earmark_client: Client, slots: str) -> None:
    """The server refuses a batch with a malformed item as a whole, and all callers of the batch failed."""

    async def call(limiter: AsyncLimiter, requirements: dict[str, int]) -> str:
        try:
            async with limiter.acquire(requirements):
                return "admitted"
        except InvalidRequest:
            return "malformed"

    async def main() -> list[str]:
        twice = {slots: 1, f"!default:{slots}": 1}
        async with AsyncClient(earmark_client.options.core.servers.urls) as client, AsyncLimiter(client) as limiter:
            return await asyncio.gather(*(call(limiter, twice if number == 7 else {slots: 1}) for number in range(20)))

    assert [number for number, result in enumerate(asyncio.run(main())) if result != "admitted"] == [7]
    assert earmark_client.usage(slots).reserved == 0


def test_an_item_that_comes_in_the_turn_in_which_all_batches_end_is_sent() -> None:
    """The batcher took tasks that had already seen the empty queue for tasks that would look again. An item that came in
    between waited for ever, unless another one came later."""
    request = Request("POST", "/v1/reserve", b"{}", lambda answer: answer, batch_path="/v1/reserve/batch")
    turn = asyncio.Event()

    class Answers(AsyncClient):
        async def send(self, request: Request[Any], by: float) -> Any:
            await turn.wait()
            return [None] * request.body.count(b"{}")

    async def main() -> None:
        batcher = Batcher(Answers("http://127.0.0.1:1"), "/v1/reserve/batch")

        async def call(items: int) -> None:
            for _ in range(items):
                answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                batcher.put(request, math.inf, answer)
                await answer

        # As many batches as may be in flight. Only callers of the first one have another item.
        callers = [call(2 if number < BATCH_MAX else 1) for number in range(BATCH_MAX * IN_FLIGHT_MAX)]
        asyncio.get_running_loop().call_later(0.05, turn.set)
        await asyncio.wait_for(asyncio.gather(*callers), 5)

    asyncio.run(main())


class Batches(AsyncClient):
    """A client whose requests end when the test says so. It notes the items of each."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1")
        self.items: list[int] = []
        self.ends: list[asyncio.Event] = []

    async def send(self, request: Request[Any], by: float) -> Any:
        end = asyncio.Event()
        self.items.append(max(1, request.body.count(b"{}")))
        self.ends.append(end)
        await end.wait()
        return [None] * self.items[-1] if len(self.items) > 1 else None


def test_items_wait_for_the_batch_under_way_but_not_for_one_that_hangs() -> None:
    request = Request("POST", "/v1/reserve", b"{}", lambda answer: answer, batch_path="/v1/reserve/batch")

    async def main() -> None:
        client = Batches()
        batcher = Batcher(client, "/v1/reserve/batch")
        answers: list[asyncio.Future[Any]] = []
        for number in range(11):
            answers.append(asyncio.get_running_loop().create_future())
            batcher.put(request, math.inf, answers[-1])
            if number == 0:
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert client.items == [1]
        await asyncio.sleep(COMPANY_WAIT * 4)
        assert client.items == [1, 10]
        client.ends[1].set()
        await asyncio.wait(answers[1:], timeout=5)
        assert [answer.done() for answer in answers] == [False] + [True] * 10
        client.ends[0].set()
        await asyncio.wait(answers, timeout=5)
        assert all(answer.done() for answer in answers)

    asyncio.run(main())


def test_items_wait_for_others_while_the_program_computes() -> None:
    """A busy program sent a request for each few items, which took more processor time than the items themselves."""
    request = Request("POST", "/v1/reserve", b"{}", lambda answer: answer, batch_path="/v1/reserve/batch")

    async def main() -> None:
        client = Batches()
        batcher = Batcher(client, "/v1/reserve/batch")
        begun = time.monotonic()
        while not client.items:
            batcher.put(request, math.inf, asyncio.get_running_loop().create_future())
            time.sleep(COMPANY_WAIT / 10)
            await asyncio.sleep(0)
        assert client.items[0] > 1 and time.monotonic() - begun >= COMPANY_WAIT
        client.ends[0].set()

    asyncio.run(main())


@pytest.mark.parametrize("missing", ["httpx", "httpx2"])
def test_either_http_library_will_do(missing: str, earmark_server: EarmarkServer, tokens: str) -> None:
    pytest.importorskip("httpx2")
    program = f"""
import sys
sys.modules[{missing!r}] = None
from earmark import *
from earmark._http import httpx
with Client({earmark_server.url!r}) as client, Limiter(client) as limiter, limiter.acquire({{{tokens!r}: 1}}) as lease:
    assert lease.complete().reconciled
try:
    Client("http://127.0.0.1:1").limits(timeout=0.2)
except Failure as failure:
    print(httpx.__name__, failure)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20)
    used = "httpx" if missing == "httpx2" else "httpx2"
    assert done.stdout.startswith(f"{used} no answer came before the deadline"), done.stderr
    assert "http://127.0.0.1:1 cannot be reached" in done.stdout


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_a_server_with_tls_is_trusted_by_its_root_only(tmp_path: Path) -> None:
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-addext", "keyUsage=digitalSignature,keyCertSign"]
    files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")]
    subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)
    server = EarmarkServer("--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem"))
    try:
        assert server.url.startswith("https://")
        with Client(server.url, roots=str(tmp_path / "cert.pem")) as client:
            assert client.limits() == []
        with Client(server.url) as client, pytest.raises(DeadlinePassed, match="certificate"):
            client.limits(timeout=0.3)

        async def main() -> None:
            async with AsyncClient(server.url, roots=str(tmp_path / "cert.pem")) as client:
                assert await client.limits() == []

        asyncio.run(main())
    finally:
        server.stop()
