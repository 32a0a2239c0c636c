"""The types of this package against `/openapi.json`: a field that the server renames, adds or removes fails here."""

from __future__ import annotations

import dataclasses
import http.client
import json
import re
import types
import typing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema_rs
import pytest

from earmark import Call, Job, Usage, _requests, answers, credit
from earmark._env import Env
from earmark._rules import Servers
from earmark._sequence_file import Owner
from earmark._wire import Request
from earmark._writes import Writes, checked
from earmark.pytest_plugin import EarmarkServer
from earmark.work import Extension

LEASE = Env().lease_id()
JOB = Job({"a": 1, "!default:b": 2}, "job-1")
CALL = Call({"model": "m", "tenant": "t"}, 5, 6, "job-1")
USAGE = Usage(1, 2, 1, 1, 1, 1, "flex")


@pytest.fixture(scope="session")
def openapi(earmark_server: EarmarkServer) -> dict[str, Any]:
    connection = http.client.HTTPConnection(urlsplit(earmark_server.url).netloc)
    connection.request("GET", "/openapi.json")
    document: dict[str, Any] = json.loads(connection.getresponse().read())
    connection.close()
    return document


def resolved(openapi: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        node: Any = openapi
        for name in schema["$ref"].removeprefix("#/").split("/"):
            node = node[name]
        schema = node
    return schema


def answer_schema(openapi: dict[str, Any], method: str, path: str, inside: str = "") -> dict[str, Any]:
    """The schema of the answer with status 200, or of a part of it: `limits[]` is an item of a list."""
    content = openapi["paths"][path][method]["responses"]["200"]["content"]
    schema = resolved(openapi, content["application/json"]["schema"])
    for name in filter(None, inside.split(".")):
        schema = resolved(openapi, schema["properties"][name.removesuffix("[]")])
        if name.endswith("[]"):
            schema = merged(resolved(openapi, schema["items"]))
    return schema


def merged(schema: dict[str, Any]) -> dict[str, Any]:
    """The fields of all alternatives. Only those are required that every alternative requires."""
    kinds: list[dict[str, Any]] = schema.get("oneOf", [schema])
    found: dict[str, list[dict[str, Any]]] = {}
    for kind in kinds:
        for name, field in kind.get("properties", {}).items():
            found.setdefault(name, []).append(field)
    if len(kinds) == 1 or not found:
        return schema
    required = set[str].intersection(*(set(kind["required"]) for kind in kinds))
    properties: dict[str, Any] = {}
    for name, fields in found.items():
        are_equal = all(field == fields[0] for field in fields)
        properties[name] = fields[0] if are_equal else {"type": list(set.union(*map(schema_types, fields)))}
    return {"properties": properties, "required": sorted(required)}


def json_type(annotation: Any) -> tuple[set[str], bool]:
    """The JSON types of an annotation, and whether it may be absent or null."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        parts = [part for part in typing.get_args(annotation) if part is not types.NoneType]
        return json_type(parts[0])[0], True
    names = {bool: "boolean", int: "integer", str: "string", dict: "object", tuple: "array"}
    # A class of this package is an object.
    return {names.get(origin or annotation, "object")}, False


def schema_types(schema: dict[str, Any]) -> set[str]:
    if "const" in schema:
        return schema_types({"enum": [schema["const"]]})
    if "enum" in schema:
        names = {bool: "boolean", int: "integer", str: "string", type(None): "null"}
        return {names[type(value)] for value in schema["enum"]}
    if "oneOf" in schema:
        return {"object"}
    found = schema["type"]
    return {found} if isinstance(found, str) else set(found)


#: Classes with the answers that they read: method, path, and the part of the answer.
ANSWERS: list[tuple[type, str, str, str]] = [
    (answers.ReserveAnswer, "post", "/v1/reserve", ""),
    (answers.ReserveAnswer, "post", "/v1/reserve/batch", "results[]"),
    (answers.ExtendAnswer, "post", "/v1/extend", ""),
    (answers.ExtendAnswer, "post", "/v1/extend/batch", "results[]"),
    (answers.Completed, "post", "/v1/complete", ""),
    (answers.Completed, "post", "/v1/complete/batch", "results[]"),
    (answers.ReserveAnswer, "post", "/v1/calls", ""),
    (answers.Requirement, "post", "/v1/calls", "requirements[]"),
    (answers.ExtendAnswer, "post", "/v1/calls/extend", ""),
    (answers.Completed, "post", "/v1/calls/complete", ""),
    (answers.Actual, "post", "/v1/calls/complete", "actuals[]"),
    (answers.Limit, "get", "/v1/admin/limits/{key}", "limit"),
    (answers.Limit, "get", "/v1/admin/limits", "limits[]"),
    (answers.LimitUsage, "get", "/v1/admin/limits/{key}/usage", ""),
    (answers.LimitUsage, "get", "/v1/usage", "usage[]"),
    (answers.UsagePage, "get", "/v1/usage", ""),
    (answers.Template, "get", "/v1/admin/templates", "templates[]"),
    (answers.TopLimit, "get", "/v1/top", "top[]"),
    (answers.DecisionPage, "get", "/v1/decisions", ""),
    (answers.Decision, "get", "/v1/decisions", "decisions[]"),
    (answers.DecisionLimit, "get", "/v1/decisions", "decisions[].limits[]"),
    (answers.LeaseView, "get", "/v1/leases/{lease_id}", "lease"),
    (answers.Requirement, "get", "/v1/leases/{lease_id}", "lease.requirements[]"),
    (answers.Actual, "get", "/v1/leases/{lease_id}", "lease.used[]"),
    (credit.Account, "get", "/v1/vaults/{vault}/accounts", "accounts[]"),
    (credit.Plan, "get", "/v1/vaults/{vault}/accounts", "accounts[].plan"),
    (credit.EntryPage, "get", "/v1/vaults/{vault}/accounts/{account}/entries", ""),
    (credit.Entry, "get", "/v1/vaults/{vault}/accounts/{account}/entries", "entries[]"),
    (credit.EntryChange, "get", "/v1/vaults/{vault}/accounts/{account}/entries", "entries[].changes[]"),
    (credit.Balance, "get", "/v1/vaults/{vault}/accounts/{account}/balances", "balances[]"),
    (credit.Grant, "get", "/v1/vaults/{vault}/accounts/{account}/grants", "grants[]"),
    (credit.Statement, "get", "/v1/vaults/{vault}/accounts/{account}/statement", ""),
    (credit.AssetStatement, "get", "/v1/vaults/{vault}/accounts/{account}/statement", "assets[]"),
    (credit.StatementGroup, "get", "/v1/vaults/{vault}/accounts/{account}/statement", "assets[].groups[]"),
    (answers.Explanation, "post", "/v1/calls/explain", ""),
    (answers.ExplainedRule, "post", "/v1/calls/explain", "rules[]"),
    (answers.ExplainedLimit, "post", "/v1/calls/explain", "limits[]"),
    (answers.Whoami, "get", "/v1/whoami", ""),
    (answers.Receipt, "post", "/v1/write", "success"),
]
#: Fields that are texts on the wire so that no reader rounds them.
DECIMALS = set(
    "cost available held pending remaining opening issued received transferred_in spent transferred_out expired retired "
    "closing amount hold paid debt uncollected carried".split()
)


@pytest.mark.parametrize(("kind", "method", "path", "inside"), ANSWERS)
def test_answers_have_the_fields_of_the_server(
    kind: type, method: str, path: str, inside: str, openapi: dict[str, Any]
) -> None:
    schema = answer_schema(openapi, method, path, inside)
    properties, required = schema["properties"], set(schema.get("required", []))
    fields = {field.name: field for field in dataclasses.fields(kind)}
    # A namespace becomes part of the key.
    unread = set(properties) - set(fields) - {"namespace"}
    assert not unread, f"the server answers with {unread}, which {kind.__name__} does not have"
    hints = typing.get_type_hints(kind)
    for name, field in fields.items():
        wanted, may_be_absent = json_type(hints[name])
        if name not in properties:
            has_default = field.default is not dataclasses.MISSING
            assert has_default, f"{kind.__name__}.{name} is not in the answer of {path}"
            continue
        found = schema_types(resolved(openapi, properties[name]))
        if name == "carry_over":
            assert found == {"object"}  # `"none"` or `{"max": ...}`, which is read as a number.
            continue
        is_decimal = name in DECIMALS and found - {"null"} == {"string"}
        assert is_decimal or found - {"null"} == wanted, f"{kind.__name__}.{name}: {found}"
        if "null" in found:
            assert may_be_absent, f"{kind.__name__}.{name} may be null"
        if name not in required:
            has_default = field.default is not dataclasses.MISSING
            assert has_default or may_be_absent, f"{kind.__name__}.{name} may be absent"


def test_a_refused_write_has_the_fields_of_the_server(openapi: dict[str, Any]) -> None:
    schema = openapi["components"]["schemas"]["WriteRefused"]["properties"]["error"]
    assert set(schema["properties"]) == {field.name for field in dataclasses.fields(answers.WriteRefusal)}
    used = set(re.findall(r'"([A-Z_]{6,})"', (Path(answers.__file__).parent / "_writes.py").read_text()))
    assert used and used <= set(schema["properties"]["code"]["enum"])


def writes() -> Writes:
    from earmark._rules import Backoff, Core

    return Writes(Core(Env(), Servers(("http://a",)), Backoff()), Owner("default", "main", "c"))


OPERATIONS = checked(
    [
        {"open_account": {"account": "a", "overdraft": "deny"}},
        {"set_plan": {"account": "a", "plan": {"asset": "usd", "amount": "5", "period": "month"}}},
        {"issue": {"account": "a", "asset": "usd", "amount": 5, "memo": "m"}},
        {"transfer": {"from": "a", "to": "b", "asset": "usd", "amount": "5"}},
    ]
)
DEFINITION = {"key": "a", "kind": "rolling", "capacity": 5, "window_seconds": 60}
REQUESTS: list[Request[Any]] = [
    JOB.reserve(LEASE),
    JOB.complete(LEASE, {"a": 0, "!default:b": 1}),
    JOB.complete(LEASE, {}, {"model": "gpt-4o", "user": "Zoë"}),
    JOB.as_unused(LEASE),
    Extension({"a": 1, "!default:b": 1}, False).request(JOB, LEASE, 1, {"a": 3}, None),
    Extension().request(JOB, LEASE, 10_000, {}, None),
    CALL.reserve(LEASE),
    CALL.settle(LEASE, "done", USAGE, 7),
    CALL.settle(LEASE, "done", Usage(0, 0)),
    CALL.settle(LEASE, "done", USAGE, 7, {"model": "gpt-4o"}),
    CALL.as_unused(LEASE),
    CALL.as_unknown(LEASE),
    Extension(add_output_tokens=5).request(CALL, LEASE, 1, USAGE, 7),
    Extension().request(CALL, LEASE, 2, None, None),
    writes()._request(1, OPERATIONS),
    writes()._request(1, []),
    _requests.put_limit(DEFINITION),
    _requests.delete_limit("a/b"),
    _requests.pause_limit("a", 1.5, "why"),
    _requests.limit("a"),
    _requests.usage("a"),
    _requests.usage_page("a", "key", "b", 5),
    _requests.lease(LEASE),
    _requests.put_template({**DEFINITION, "key": "{tenant}:rpm"}, 0),
    _requests.delete_template("{tenant}:rpm", 3),
    _requests.templates(),
    _requests.top("denied", "1h", "a"),
    _requests.decisions(
        key="a", actor="user:b", job="j", outcome="denied", since=1, until=2, after="3", page_size=4
    ),
    _requests.balances("main", "a"),
    _requests.grants("main", "a"),
    _requests.entries("main", "a", "desc", since=1, until=2, after=3, page_size=4),
    _requests.statement("main", "a", since=1, until=2, group_by="model", after="3-61", page_size=4),
    CALL.explain(),
    _requests.whoami(),
    _requests.client_state("c", "default", "main"),
    _requests.put_policy("", 1, "default"),
    _requests.policy("default"),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=[f"{request.method} {request.path}" for request in REQUESTS])
def test_requests_are_those_that_the_server_documents(request_: Request[Any], openapi: dict[str, Any]) -> None:
    path, _, query = request_.path.partition("?")
    template = next(
        known for known in sorted(openapi["paths"]) if re.fullmatch(re.sub(r"\{[^}]*\}", "[^/]+", known), path)
    )
    operation = openapi["paths"][template][request_.method.lower()]
    known = {parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "query"}
    assert {pair.partition("=")[0] for pair in query.split("&") if pair} <= known
    if not request_.body:
        assert "requestBody" not in operation
        return
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    validator = jsonschema_rs.validator_for({**schema, "components": openapi["components"]})
    validator.validate(json.loads(request_.body))


def test_the_version_is_that_of_the_workspace() -> None:
    project = Path(__file__).parents[1] / "pyproject.toml"
    workspace = Path(__file__).parents[3] / "Cargo.toml"
    version = re.compile(r'^version = "(.+)"$', re.MULTILINE)
    assert version.findall(project.read_text())[0] == version.findall(workspace.read_text())[0]
