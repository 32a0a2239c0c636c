"""The official SDKs of OpenAI and Anthropic, through a gateway to an upstream that counts what it generates.

    python gateway_sdk.py EARMARK NODE_PACKAGES

It starts a server, a gateway and the upstream, and checks each claim below. The SDKs for Node do a few calls too.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from http.server import ThreadingHTTPServer
from pathlib import Path

import anthropic
import openai

from gateway_processes import Server, credit_limit, slots, start, start_with_urls
from gateway_upstream import INPUT, OUTPUT, TEXT, Upstream

# Minor units for a million tokens. A token of input costs 1, of output 10.
POLICY = """
[[rules]]
name   = "credit"
limits = [
  { key = "acme:usd", amount = "cost" },
  { key = "model:{model}:slots", amount = "requests" },
]

[[rules]]
name   = "one-a-second"
when   = 'alias == "slow"'
limits = [ { key = "slow:rps", amount = "requests" } ]

[[rules]]
name   = "small"
when   = 'alias == "small"'
limits = [ { key = "small:tpm", amount = "tokens" } ]

[[rules]]
name = "forbidden"
when = 'alias == "forbidden"'
deny = "this plan does not have this model"

[[prices]]
model  = "*"
asset  = "usd"
input  = 1_000_000
cached_input = 500_000
output = 10_000_000
"""

QUESTION = "what is the question that no log holds"
UPSTREAM_KEY = "sk-upstream-key-that-no-log-holds"
MODELS = ["fast", "slow", "small", "forbidden", "no-usage", "fails", "bad", "cached"]
COST = INPUT + 10 * OUTPUT


class Check:
    """A server, a gateway, and clients of it."""

    def __init__(self, server: str, gateway: str, node_packages: str, log: Path) -> None:
        self.log = log
        self.server = Server(server)
        self.gateway = gateway
        self.node_packages = node_packages
        self.openai = openai.OpenAI(base_url=f"{gateway}/v1", api_key="unused", max_retries=0)
        self.anthropic = anthropic.Anthropic(base_url=gateway, api_key="unused", max_retries=0)

    def set_up(self) -> None:
        self.server.open_account(1_000_000)
        self.server.put_limits(
            credit_limit("acme:usd", 600),
            {"key": "slow:rps", "kind": "rolling", "capacity": 1, "window_seconds": 1},
            {"key": "small:tpm", "kind": "rolling", "capacity": 10, "window_seconds": 60},
            *[slots(f"model:{model}:slots", 4) for model in [*MODELS, "claude", "omni"]],
        )
        self.server.http("PUT", "/v1/admin/policy", {"policy": POLICY})

    def balance(self) -> int:
        return self.server.balance()

    def requests(self, endpoint: str) -> int:
        """The requests that the gateway has got at an endpoint, whatever became of them."""
        with urllib.request.urlopen(f"{self.gateway}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        series = f'earmark_gateway_requests_total{{endpoint="{endpoint}"'
        return sum(int(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(series))

    def charged(self, cost: int, call):
        """Makes a call that must cost exactly this."""
        before = self.balance()
        result = call()
        found = before - self.balance()
        assert found == cost, f"charged {found}, expected {cost}"
        return result


def messages(text: str = QUESTION) -> list:
    return [{"role": "user", "content": text}]


def chat_is_answered_and_charged_exactly(check: Check) -> None:
    create = check.openai.chat.completions.with_raw_response.create
    raw = check.charged(COST, lambda: create(model="fast", messages=messages(), max_tokens=100))
    answer = raw.parse()
    assert answer.choices[0].message.content == "".join(TEXT)
    assert answer.usage.total_tokens == INPUT + OUTPUT
    assert raw.headers["x-earmark-lease"]
    assert raw.headers["x-earmark-cost"] == str(COST), raw.headers
    assert "openai-organization" not in raw.headers
    assert json.loads(raw.text if isinstance(raw.text, str) else raw.text())["unknown"] == [1]
    sent = Upstream.seen[-1]
    assert "unused" not in json.dumps(sent["headers"]), "the client's key went upstream"
    log = check.log.read_text()
    for name in ("x-request-id", "x-earmark-lease"):
        assert raw.headers[name] in log, f"the log does not name the call by its {name}"


def tools_pass_through(check: Check) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    answer = check.charged(
        COST, lambda: check.openai.chat.completions.create(model="fast", messages=messages(), tools=[tool])
    )
    assert answer.choices[0].message.tool_calls[0].function.name == "f"
    tool = {"name": "f", "input_schema": {"type": "object"}}
    answer = check.anthropic.messages.create(model="claude", max_tokens=50, messages=messages(), tools=[tool])
    assert answer.content[0].type == "tool_use"


def a_missing_cap_is_inserted(check: Check) -> None:
    check.openai.chat.completions.create(model="fast", messages=messages())
    assert Upstream.seen[-1]["body"]["max_completion_tokens"] == 200
    check.openai.responses.create(model="fast", input="hi")
    assert Upstream.seen[-1]["body"]["max_output_tokens"] == 200


def a_stream_is_charged_exactly_and_hides_the_usage_chunk(check: Check) -> None:
    def read(**options) -> list:
        stream = check.openai.chat.completions.create(
            model="fast", messages=messages(), max_tokens=100, stream=True, **options
        )
        return list(stream)

    chunks = check.charged(COST, read)
    assert "".join(chunk.choices[0].delta.content for chunk in chunks) == "".join(TEXT)
    assert all(chunk.usage is None for chunk in chunks)
    assert Upstream.seen[-1]["body"]["stream_options"] == {"include_usage": True}
    asked = check.charged(COST, lambda: read(stream_options={"include_usage": True}))
    assert asked[-1].choices == []
    assert asked[-1].usage.total_tokens == INPUT + OUTPUT


def cached_tokens_are_priced_as_cached(check: Check) -> None:
    create = check.openai.chat.completions.create
    check.charged(COST - 5, lambda: create(model="cached", messages=messages(), max_tokens=100))


def a_call_without_usage_is_charged_its_bound(check: Check) -> None:
    create = check.openai.chat.completions.create
    before = check.balance()
    list(create(model="no-usage", messages=messages(), max_tokens=100, stream=True))
    charged = before - check.balance()
    assert charged > 10 * 100 + 512, charged


def responses_completions_and_embeddings_are_served(check: Check) -> None:
    answer = check.charged(COST, lambda: check.openai.responses.create(model="fast", input="hi", max_output_tokens=100))
    assert answer.output_text == "".join(TEXT)
    events = check.charged(
        COST, lambda: list(check.openai.responses.create(model="fast", input="hi", max_output_tokens=100, stream=True))
    )
    assert events[-1].type == "response.completed"
    answer = check.charged(COST, lambda: check.openai.completions.create(model="fast", prompt="hi", max_tokens=100))
    assert answer.choices[0].text == "".join(TEXT)
    answer = check.charged(INPUT, lambda: check.openai.embeddings.create(model="fast", input="hi"))
    assert list(answer.data[0].embedding) == [0.5, 0.25]


def models_are_those_of_the_configuration(check: Check) -> None:
    names = {model.id for model in check.openai.models.list()}
    assert {"fast", "claude"} <= names, names


def messages_are_answered_streamed_and_counted(check: Check) -> None:
    # 10 fresh, 15 read from the cache, 5 written to it.
    cost = 10 + 8 + 5 + 10 * OUTPUT
    create = check.anthropic.messages.create
    answer = check.charged(cost, lambda: create(model="claude", max_tokens=50, messages=messages()))
    assert answer.content[0].text == "".join(TEXT)

    def read() -> str:
        with check.anthropic.messages.stream(model="claude", max_tokens=50, messages=messages()) as stream:
            text = "".join(stream.text_stream)
            assert stream.get_final_message().usage.output_tokens == OUTPUT
            return text

    assert check.charged(cost, read) == "".join(TEXT)
    count = check.anthropic.messages.count_tokens
    assert check.charged(0, lambda: count(model="claude", messages=messages())).input_tokens == INPUT


def raised(kind: type, call) -> Exception:
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"expected {kind}")


def errors_are_those_that_each_sdk_knows(check: Check) -> None:
    create, ask = check.openai.chat.completions.create, check.anthropic.messages.create
    before, sent = check.balance(), len(Upstream.seen)
    error = raised(openai.NotFoundError, lambda: create(model="gpt-9", messages=messages()))
    assert (error.code, error.param) == ("model_not_found", "model")
    raised(anthropic.NotFoundError, lambda: ask(model="gpt-9", max_tokens=5, messages=messages()))
    error = raised(
        openai.BadRequestError,
        lambda: check.openai.responses.create(model="fast", input="hi", previous_response_id="resp_1"),
    )
    assert error.param == "previous_response_id", error
    raised(openai.BadRequestError, lambda: create(model="fast", messages=messages(), service_tier="priority"))
    raised(
        anthropic.BadRequestError,
        lambda: ask(model="claude", max_tokens=5, messages=messages(),
                    tools=[{"type": "web_search_20250305", "name": "web_search"}]),
    )
    error = raised(openai.BadRequestError, lambda: create(model="small", messages=messages()))
    assert error.code == "exceeds_capacity"
    error = raised(openai.PermissionDeniedError, lambda: create(model="forbidden", messages=messages()))
    assert "plan" in str(error)
    raised(openai.NotFoundError, lambda: check.openai.files.list())
    assert len(Upstream.seen) == sent, "a refused call went upstream"
    assert check.balance() == before
    # The upstream's own errors pass, and cost nothing.
    check.charged(0, lambda: raised(openai.BadRequestError, lambda: create(model="bad", messages=messages())))


def a_route_has_a_flat_charge(check: Check) -> None:
    create = check.openai.moderations.create
    # 7 tokens of output at 10, by the configuration.
    answer = check.charged(70, lambda: create(model="any", input="hi"))
    assert not answer.results[0].flagged
    assert Upstream.seen[-1]["body"] == {"model": "any", "input": "hi"}, "nothing is spliced"


def an_outage_of_the_provider_charges_nobody(check: Check) -> None:
    Upstream.failures = 1
    create = check.openai.with_options(max_retries=2).chat.completions.create
    sent = len(Upstream.seen)
    check.charged(COST, lambda: create(model="fails", messages=messages()))
    assert len(Upstream.seen) == sent + 2


def a_rate_limit_is_waited_for(check: Check) -> None:
    create = check.openai.with_options(max_retries=5).chat.completions.create
    for _ in range(3):
        create(model="slow", messages=messages(), max_tokens=5)
    error = raised(
        openai.RateLimitError, lambda: [check.openai.chat.completions.create(model="slow", messages=messages()) for _ in range(2)]
    )
    assert error.response.headers["x-earmark-limited-by"] == "slow:rps"
    assert int(error.response.headers["retry-after-ms"]) <= 1000


def a_client_that_disconnects_does_not_get_a_free_call(check: Check) -> None:
    def read_one() -> None:
        stream = check.openai.chat.completions.create(model="fast", messages=messages(), max_tokens=100, stream=True)
        next(iter(stream))
        stream.close()

    check.charged(COST, read_one)


def run_node(check: Check, *more: str) -> None:
    script = str(Path(__file__).with_suffix(".mjs"))
    subprocess.run(["node", script, check.gateway, check.node_packages, *more], check=True, timeout=60)


def the_sdks_for_node_work_too(check: Check) -> None:
    anthropic_cost = 10 + 8 + 5 + 10 * OUTPUT
    check.charged(2 * COST + anthropic_cost, lambda: run_node(check))


def credit_denials_are_not_retried(check: Check) -> None:
    left = check.balance()
    check.server.write(1, {"retire": {"account": "acme", "asset": "usd", "amount": str(left)}})
    sent = len(Upstream.seen)
    before = check.requests("chat"), check.requests("messages")
    patient = check.openai.with_options(max_retries=5)
    error = raised(openai.RateLimitError, lambda: patient.chat.completions.create(model="fast", messages=messages()))
    assert error.code == "insufficient_quota"
    assert error.response.headers["x-should-retry"] == "false"
    ask = check.anthropic.with_options(max_retries=5).messages.create
    error = raised(anthropic.APIStatusError, lambda: ask(model="claude", max_tokens=5, messages=messages()))
    assert error.status_code == 402
    assert error.body["error"]["type"] == "billing_error"
    assert (check.requests("chat"), check.requests("messages")) == (before[0] + 1, before[1] + 1), "each SDK sent it once"
    run_node(check, "denied")
    assert (check.requests("chat"), check.requests("messages")) == (before[0] + 2, before[1] + 2), "and for Node, too"
    assert len(Upstream.seen) == sent


CLAIMS = [
    chat_is_answered_and_charged_exactly,
    tools_pass_through,
    a_missing_cap_is_inserted,
    a_stream_is_charged_exactly_and_hides_the_usage_chunk,
    cached_tokens_are_priced_as_cached,
    a_call_without_usage_is_charged_its_bound,
    responses_completions_and_embeddings_are_served,
    models_are_those_of_the_configuration,
    messages_are_answered_streamed_and_counted,
    errors_are_those_that_each_sdk_knows,
    a_route_has_a_flat_charge,
    an_outage_of_the_provider_charges_nobody,
    a_rate_limit_is_waited_for,
    a_client_that_disconnects_does_not_get_a_free_call,
    the_sdks_for_node_work_too,
    credit_denials_are_not_retried,
]


# A policy of each tenant's namespace.
TENANT_POLICY = """
[[rules]]
name   = "tenant"
limits = [ { key = "tenant:{tenant}:rpm", amount = "requests" } ]

[[rules]]
name     = "user"
optional = true
limits   = [ { key = "user:{user}:rpm", amount = "requests" } ]
"""


class Tenants:
    """A server with keys, a gateway with a key of its own, and two tenants that come through it."""

    def __init__(self, server: str, gateway: str, admin: str) -> None:
        self.server, self.gateway, self.admin = server, gateway, admin
        self.keys: dict[str, str] = {"admin": admin}

    def http(self, method: str, path: str, body: object = None, key: str | None = None) -> tuple[int, dict]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json", "authorization": f"Bearer {key or self.admin}"}
        request = urllib.request.Request(f"{self.server}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def key(self, name: str, role: str, namespace: str, **more: object) -> str:
        body = {"name": name, "role": role, "namespace": namespace, **more}
        status, created = self.http("POST", "/v1/admin/keys", body)
        assert status in (200, 201), created
        self.keys[name] = created["key"]
        return created["key"]

    def set_up(self) -> None:
        for tenant in ("acme", "beta"):
            quota = self.http("PUT", f"/v1/admin/policy?namespace=team-{tenant}", {"policy": TENANT_POLICY})
            assert quota[0] == 200, quota
            for key, capacity in ((f"tenant:{tenant}:rpm", 20), ("user:u1:rpm", 1)):
                limit = {"key": key, "kind": "rolling", "capacity": capacity, "window_seconds": 600}
                put = self.http("PUT", f"/v1/admin/limits?namespace=team-{tenant}", limit)
                assert put[0] == 200, put
            self.key(tenant, "client", f"team-{tenant}", labels={"tenant": tenant}, may_set=["user"])
        self.key("direct", "caller", "team-acme", labels={"tenant": "acme"})

    def client(self, name: str, **headers: str) -> openai.OpenAI:
        key = self.keys.get(name, name)
        return openai.OpenAI(base_url=f"{self.gateway}/v1", api_key=key, max_retries=0, default_headers=headers)

    def reserved(self, tenant: str, key: str) -> int:
        path = f"/v1/usage?prefix={key}&namespace=team-{tenant}"
        _, found = self.http("GET", path)
        return sum(limit["reserved"] for limit in found["usage"] if limit["key"] == key)


def say(client: openai.OpenAI, **more):
    return client.chat.completions.with_raw_response.create(model="fast", messages=messages(), max_tokens=5, **more)


def a_client_key_works_through_the_gateway_only(tenants: Tenants) -> None:
    assert say(tenants.client("acme")).parse().choices[0].message.content == "".join(TEXT)
    call = {"lease_id": "01ARZ3NDEKTSV4RRFFQ69G5FAV", "attributes": {}, "input_tokens_max": 1, "output_tokens_max": 1}
    status, answer = tenants.http("POST", "/v1/calls", call, tenants.keys["acme"])
    assert status == 403, answer
    assert tenants.keys["acme"] not in json.dumps(Upstream.seen), "the client's key went upstream"


def an_unknown_key_sends_nothing(tenants: Tenants) -> None:
    sent = len(Upstream.seen)
    for key in ("emk_4m8qk2v7d1xz_0123456789abcdefghjkmnpqrstv", "sk-other"):
        raised(openai.AuthenticationError, lambda key=key: say(tenants.client(key)))
    assert len(Upstream.seen) == sent


def tenants_are_named_by_their_keys(tenants: Tenants) -> None:
    before = tenants.reserved("acme", "tenant:acme:rpm")
    say(tenants.client("acme"))
    assert tenants.reserved("acme", "tenant:acme:rpm") == before + 1
    posing = tenants.client("beta", **{"x-earmark-attributes": "tenant=acme"})
    raised(openai.PermissionDeniedError, lambda: say(posing))
    raised(openai.BadRequestError, lambda: say(tenants.client("acme", **{"x-earmark-attributes": "model=cheap"})))
    assert tenants.reserved("acme", "tenant:acme:rpm") == before + 1


def a_user_of_the_body_is_limited(tenants: Tenants) -> None:
    say(tenants.client("acme"), user="u1")
    error = raised(openai.RateLimitError, lambda: say(tenants.client("acme"), user="u1"))
    assert error.response.headers["x-earmark-limited-by"] == "user:u1:rpm"
    # The other tenant's user of the same name is another one.
    say(tenants.client("beta"), user="u1")


def a_client_cannot_complete_its_own_call(tenants: Tenants) -> None:
    lease = say(tenants.client("acme")).headers["x-earmark-lease"]
    for name in ("acme", "direct"):
        body = {"lease_id": lease, "attributes": {"model": "fast", "provider": "openai"}, "outcome": "refused"}
        status, answer = tenants.http("POST", "/v1/calls/complete", body, tenants.keys[name])
        assert status in (400, 403) or not answer["ok"], (name, answer)
    status, answer = tenants.http("POST", "/v1/complete", {"lease_id": lease, "actuals": []}, tenants.keys["direct"])
    assert status == 403, answer


def a_revoked_key_stops_within_two_seconds(tenants: Tenants) -> None:
    key = tenants.key("short", "client", "team-beta", labels={"tenant": "beta"})
    say(tenants.client("short"))
    status, answer = tenants.http("DELETE", f"/v1/admin/keys/{key.split('_')[1]}")
    assert status == 200, answer
    time.sleep(2)
    raised(openai.AuthenticationError, lambda: say(tenants.client("short")))


TENANT_CLAIMS = [
    a_client_key_works_through_the_gateway_only,
    an_unknown_key_sends_nothing,
    tenants_are_named_by_their_keys,
    a_user_of_the_body_is_limited,
    a_client_cannot_complete_its_own_call,
    a_revoked_key_stops_within_two_seconds,
]


def configuration(upstream: str) -> str:
    text = f"""
listen = "127.0.0.1:0"
[[upstreams]]
name = "openai"
api = "openai"
base_url = "{upstream}/v1"
key_env = "UPSTREAM_KEY"
[[upstreams]]
name = "anthropic"
api = "anthropic"
base_url = "{upstream}"
[[models]]
name = "claude"
targets = ["anthropic/claude"]
max_output_tokens = 200
[[routes]]
path = "/v1/moderations"
target = "openai/omni"
output_tokens = 7
"""
    for model in MODELS:
        text += f'[[models]]\nname = "{model}"\ntargets = ["openai/{model}"]\nmax_output_tokens = 200\n'
    return text


def no_content_is_logged(log: Path, keys: list[str]) -> None:
    """Neither questions nor answers nor keys are in a log of the highest level."""
    text = log.read_text()
    for secret in [QUESTION, "".join(TEXT), '"delta"', "Bearer ", "unused", UPSTREAM_KEY, *filter(None, keys)]:
        assert secret not in text, f"the log holds {secret}"
    print("  no_content_is_logged")


def run(earmark: str, folder: Path, upstream: str, has_keys: bool, claims: list, check_of) -> None:
    """Starts a server and a gateway, and checks the claims."""
    processes = []
    try:
        serve = [earmark, "serve", "--in-memory", "--listen", "127.0.0.1:0", "--log-level", "warn"]
        server, server_url, admin = start([*serve, "--bootstrap-key"] if has_keys else serve)
        processes.append(server)
        env, log = {"UPSTREAM_KEY": UPSTREAM_KEY}, folder / "log"
        if has_keys:
            env["EARMARK_KEY"] = Tenants(server_url, "", admin).key("gateway", "gateway", "default")
        config = folder / "gateway.toml"
        config.write_text(configuration(upstream))
        gateway, gateway_url, _ = start(
            [earmark, "gateway", "--config", str(config), "--server", server_url, "--calls", str(folder / "calls"),
             "--log-level", "trace"],
            log,
            **env,
        )
        processes.append(gateway)
        check = check_of(server_url, gateway_url, admin, log)
        check.set_up()
        for claim in claims:
            claim(check)
            print(f"  {claim.__name__}")
        assert gateway.poll() is None, "the gateway ended"
        no_content_is_logged(log, [env.get("EARMARK_KEY", ""), *getattr(check, "keys", {}).values()])
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run_in_process(earmark: str, folder: Path, upstream: str) -> None:
    """Checks the claims about tenants with a gateway in the process of its server, which has no key of its own."""
    config = folder / "gateway.toml"
    config.write_text(configuration(upstream))
    command = [earmark, "serve", "--in-memory", "--listen", "127.0.0.1:0", "--log-level", "warn", "--bootstrap-key",
               "--gateway", str(config)]
    process, urls, admin = start_with_urls(command, 2, UPSTREAM_KEY=UPSTREAM_KEY)
    try:
        tenants = Tenants(urls[0], urls[1], admin)
        tenants.set_up()
        for claim in TENANT_CLAIMS:
            claim(tenants)
            print(f"  {claim.__name__}, in the process of the server")
    finally:
        process.kill()
        process.wait()


def main(earmark: str, node_packages: str) -> None:
    upstream = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    upstream.daemon_threads = True
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{upstream.server_port}"
    with tempfile.TemporaryDirectory() as folder:
        run(earmark, Path(folder), url, False, CLAIMS, lambda server, gateway, _, log: Check(server, gateway, node_packages, log))
    with tempfile.TemporaryDirectory() as folder:
        run(earmark, Path(folder), url, True, TENANT_CLAIMS, lambda server, gateway, admin, _: Tenants(server, gateway, admin))
    with tempfile.TemporaryDirectory() as folder:
        run_in_process(earmark, Path(folder), url)


if __name__ == "__main__":
    main(*sys.argv[1:])
