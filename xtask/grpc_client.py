"""A Python gRPC client that checks a running server. `cargo xtask grpc` runs it.

    python grpc_client.py ADDRESS PROTO_FOLDER

The stubs are generated from the protobuf files, as any client would do. The first mismatch ends the script.
"""

import importlib
import secrets
import sys
import tempfile
import time
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from grpc_tools import protoc

SECONDS_MAX = 10
CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def stubs(proto_folder):
    """Generate and import the stubs."""
    made = tempfile.TemporaryDirectory()
    files = sorted(str(path.relative_to(proto_folder)) for path in Path(proto_folder, "earmark").rglob("*.proto"))
    outcome = protoc.main(
        ["protoc", f"-I{proto_folder}", f"--python_out={made.name}", f"--grpc_python_out={made.name}", *files]
    )
    same(outcome, 0, "protoc's exit code")
    sys.path.insert(0, made.name)
    names = ["limit_pb2", "limits_pb2", "limits_pb2_grpc", "ledger_pb2", "ledger_pb2_grpc"]
    modules = [importlib.import_module(f"earmark.v1.{name}") for name in names]
    made.cleanup()
    return modules


def same(found, expected, what):
    """Like `assert`, but not removed by -O."""
    if found != expected:
        sys.exit(f"grpc_client: {what}: found {found!r}, expected {expected!r}")


def refused(call, code, words):
    """Check that the call fails with this status and these words in its message."""
    try:
        answer = call()
    except grpc.RpcError as error:
        same(error.code(), code, f"the status of {words!r}")
        same(words in error.details(), True, f"{words!r} in {error.details()!r}")
    else:
        sys.exit(f"grpc_client: expected {code} with {words!r}, found the answer {answer}")


def lease():
    """A new ULID."""
    bits = (int(time.time() * 1000) << 80) | secrets.randbits(80)
    return "".join(CROCKFORD[(bits >> shift) & 31] for shift in range(125, -1, -5))


def check_ledger(channel, ledger_pb2, ledger_pb2_grpc):
    """Check writes, retries, gaps, balances, history and audit. Return an account with credit."""
    ledger = ledger_pb2_grpc.LedgerServiceStub(channel)
    client = f"python-{secrets.token_hex(4)}"
    operation, credit, issue = ledger_pb2.Operation, ledger_pb2.CreditOperation, ledger_pb2.IssueOperation

    def write(sequence, *operations):
        return ledger_pb2.WriteRequest(
            namespace="default", vault="main", client_id=client, sequence=sequence, operations=operations
        )

    def opened(account):
        overdraft = ledger_pb2.OVERDRAFT_DENY
        return operation(open_account=ledger_pb2.OpenAccountOperation(account=account, overdraft=overdraft))

    payer, payee = f"{client}:payer", f"{client}:payee"
    large = str(2**100)
    first = write(1, opened(payer), opened(payee), operation(issue=issue(account=payer, asset="usd", amount=large)))
    done = ledger.Write(first, timeout=SECONDS_MAX)
    same(done.WhichOneof("result"), "success", "the answer to the first write")
    same([result.WhichOneof("result") for result in done.success.results], ["account", "account", "entry"], "results")
    same(done.success.actor, "system:local", "the actor")

    transfer = ledger_pb2.TransferOperation(asset="usd", amount=str(2**99), memo="rent", to=payee)
    setattr(transfer, "from", payer)
    second = write(2, operation(transfer=transfer))
    answer = ledger.Write(second, timeout=SECONDS_MAX).SerializeToString(deterministic=True)
    again = ledger.Write(second, timeout=SECONDS_MAX).SerializeToString(deterministic=True)
    same(again, answer, "the bytes of a retry")

    gap = ledger.Write(write(5), timeout=SECONDS_MAX).error
    same((gap.code, gap.last_committed_sequence), (ledger_pb2.SEQUENCE_GAP, 2), "a gap")
    reused = ledger.Write(write(2), timeout=SECONDS_MAX).error
    same(ledger_pb2.WriteErrorCode.Name(reused.code), "SEQUENCE_REUSED", "other content under one number")
    poor = write(3, operation(retire=credit(account=payer, asset="usd", amount=large)))
    poor = ledger.Write(poor, timeout=SECONDS_MAX).error
    same((poor.code, poor.operation), (ledger_pb2.INSUFFICIENT_CREDIT, 0), "more than there is")
    part = ledger_pb2.WritePart(operations=[operation(retire=credit(account=payee, asset="usd", amount="1"))])
    batch = ledger_pb2.BatchWriteRequest(
        namespace="default", vault="main", client_id=client, sequence=3, writes=[part]
    )
    same(ledger.BatchWrite(batch, timeout=SECONDS_MAX).WhichOneof("result"), "success", "a batch")
    state = ledger_pb2.GetClientStateRequest(client_id=client, vault="main")
    same(ledger.GetClientState(state, timeout=SECONDS_MAX).last_committed_sequence, 3, "the state of the client")

    balances = ledger_pb2.GetBalancesRequest(vault="main", account=payee)
    balances = ledger.GetBalances(balances, timeout=SECONDS_MAX).balances
    same([(it.asset, it.available) for it in balances], [("usd", str(2**99 - 1))], "a balance of 99 bits")
    entries = ledger_pb2.ListEntriesRequest(vault="main", account=payee, page_size=1)
    page = ledger.ListEntries(entries, timeout=SECONDS_MAX)
    same([list(it.transaction.memos) for it in page.entries], [["rent"]], "a page of the history")
    same(page.HasField("next"), True, "that there is a next page")
    audit = ledger.AuditVault(ledger_pb2.AuditVaultRequest(vault="main"), timeout=SECONDS_MAX)
    same(audit.balanced, True, "the audit")
    missing = ledger_pb2.GetBalancesRequest(vault="main", account=f"{client}:nobody")
    refused(lambda: ledger.GetBalances(missing, timeout=SECONDS_MAX), grpc.StatusCode.NOT_FOUND, "no account")
    broken = write(4, operation(issue=issue(account=payer, asset="usd", amount="1.5")))
    words = "operations[0].issue.amount: found"
    refused(lambda: ledger.Write(broken, timeout=SECONDS_MAX), grpc.StatusCode.INVALID_ARGUMENT, words)
    return payee


def check_credit(channel, account, limit_pb2, limits_pb2, limits_pb2_grpc, ledger_pb2, ledger_pb2_grpc):
    """Check a hold, its payment and their history entries, and a hold that exceeds the credit."""
    limits, ledger = limits_pb2_grpc.LimitsServiceStub(channel), ledger_pb2_grpc.LedgerServiceStub(channel)

    def put(key, payer):
        definition = limit_pb2.LimitDefinition(
            key=key, kind=limit_pb2.LIMIT_KIND_CREDIT, timeout_seconds=60, vault="main", account=payer, asset="usd"
        )
        limits.PutLimit(limits_pb2.PutLimitRequest(definition=definition), timeout=SECONDS_MAX)

    def reserve(lease_id, key):
        requirement = limits_pb2.Requirement(key=key, amount=5)
        request = limits_pb2.ReserveRequest(lease_id=lease_id, requirements=[requirement])
        return limits.Reserve(request, timeout=SECONDS_MAX)

    key, other, held = f"{account}:usd", f"{account}:other", lease()
    put(key, account)
    put(other, other)
    same(reserve(held, key).allowed, True, "a reserve of credit")
    missing = reserve(lease(), other)
    same((missing.allowed, missing.error), (False, f"account_not_found:{other}"), "a reserve on a missing account")
    actual = limits_pb2.Actual(key=key, actual_amount=3)
    complete = limits_pb2.CompleteRequest(lease_id=held, actuals=[actual])
    same(limits.Complete(complete, timeout=SECONDS_MAX).reconciled, True, "a complete with its cost")
    entries = ledger_pb2.ListEntriesRequest(vault="main", account=account)
    hold, settle = ledger.ListEntries(entries, timeout=SECONDS_MAX).entries[-2:]
    same((hold.hold.lease_id, hold.hold.limit, hold.hold.hold), (held, key, "5"), "the entry of a hold")
    same((settle.settle.paid, settle.changes[0].held), ("3", "-5"), "the entry of a settlement")


def check_extensions(limits, limits_pb2, held, key):
    """Check extensions of a lease that holds 8 of 10: repeated, denied, refused, out of order, malformed."""

    def extend(number, **fields):
        request = limits_pb2.ExtendRequest(lease_id=held, extension=number, **fields)
        return limits.Extend(request, timeout=SECONDS_MAX)

    used = [limits_pb2.Actual(key=key, actual_amount=1)]
    for _ in range(2):
        same((extend(1, used=used).allowed, extend(1, used=used).error), (True, ""), "the first extension")
    full = extend(2, add=[limits_pb2.Requirement(key=key, amount=3)])
    same((full.allowed, full.error, list(full.limited_by)), (False, "", [key]), "an extension that does not fit")
    unknown = extend(3, add=[limits_pb2.Requirement(key=f"{key}:other", amount=1)])
    same((unknown.allowed, unknown.error), (False, f"unknown_limit_key:{key}:other"), "an extension by nothing")
    same(extend(9).error, "invalid_request", "a number that leaves a gap")
    refused(lambda: extend(0), grpc.StatusCode.INVALID_ARGUMENT, "extension: found 0, allowed are integers from 1")
    known = limits.GetLease(limits_pb2.GetLeaseRequest(lease_id=held), timeout=SECONDS_MAX).lease
    same((known.extensions, [part.actual_amount for part in known.used]), (2, [1]), "an extended lease")
    requests = [
        limits_pb2.ExtendRequest(lease_id=held, extension=3, renew=False),
        limits_pb2.ExtendRequest(lease_id=lease(), extension=1),
    ]
    results = limits.ExtendBatch(limits_pb2.ExtendBatchRequest(requests=requests), timeout=SECONDS_MAX).results
    same([result.error for result in results], ["", "lease_expired"], "a batch of extensions")


def check_limits(channel, limit_pb2, limits_pb2, limits_pb2_grpc):
    """Check put, reserve, denial, complete, usage and delete."""
    limits = limits_pb2_grpc.LimitsServiceStub(channel)
    key = f"python:{secrets.token_hex(4)}"
    definition = limit_pb2.LimitDefinition(
        key=key, kind=limit_pb2.LIMIT_KIND_ROLLING, capacity=10, window_seconds=3600
    )
    put = limits.PutLimit(limits_pb2.PutLimitRequest(definition=definition), timeout=SECONDS_MAX)
    same((put.ok, put.status), (True, limit_pb2.LIMIT_STATUS_ACTIVE), "a limit that was put")

    def reserve(lease_id, name, amount):
        requirement = limits_pb2.Requirement(key=name, amount=amount)
        request = limits_pb2.ReserveRequest(lease_id=lease_id, requirements=[requirement])
        return limits.Reserve(request, timeout=SECONDS_MAX)

    held = lease()
    same(reserve(held, key, 8).allowed, True, "a reserve that fits")
    denied = reserve(lease(), key, 3)
    same((denied.allowed, denied.error, list(denied.limited_by)), (False, "", [key]), "a reserve that does not fit")
    unknown = reserve(lease(), f"{key}:other", 1)
    same((unknown.allowed, unknown.error), (False, f"unknown_limit_key:{key}:other"), "a reserve of nothing")
    check_extensions(limits, limits_pb2, held, key)
    actual = limits_pb2.Actual(key=key, actual_amount=2)
    complete = limits_pb2.CompleteRequest(lease_id=held, actuals=[actual])
    done = limits.Complete(complete, timeout=SECONDS_MAX)
    same((done.ok, done.reconciled), (True, True), "a complete")
    usage = limits.GetUsage(limits_pb2.GetUsageRequest(key=key), timeout=SECONDS_MAX)
    same((usage.reserved, usage.available, usage.debt), (2, 8, "0"), "the usage")
    known = limits.GetLease(limits_pb2.GetLeaseRequest(lease_id=held), timeout=SECONDS_MAX).lease
    same(known.state, limits_pb2.LEASE_STATE_COMPLETED, "the lease")
    refused(lambda: reserve("x", key, 1), grpc.StatusCode.INVALID_ARGUMENT, "lease_id: found 1 bytes")
    limits.DeleteLimit(limits_pb2.DeleteLimitRequest(key=key), timeout=SECONDS_MAX)


def check_standard(channel):
    """Check health and reflection with the standard packages."""
    health = health_pb2_grpc.HealthStub(channel)
    for service in ["", "earmark.v1.LedgerService", "earmark.v1.LimitsService"]:
        status = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=SECONDS_MAX).status
        same(status, health_pb2.HealthCheckResponse.SERVING, f"the health of {service!r}")
    first = next(iter(health.Watch(health_pb2.HealthCheckRequest(service=""), timeout=SECONDS_MAX)))
    same(first.status, health_pb2.HealthCheckResponse.SERVING, "the health that is watched")
    listed = ProtoReflectionDescriptorDatabase(channel).get_services()
    for service in ["earmark.v1.LedgerService", "earmark.v1.LimitsService", "grpc.health.v1.Health"]:
        same(service in listed, True, f"{service} among {listed}")


def main():
    """Run all checks."""
    address, proto_folder = sys.argv[1:]
    limit_pb2, limits_pb2, limits_pb2_grpc, ledger_pb2, ledger_pb2_grpc = stubs(proto_folder)
    options = [("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(address, options=options) as channel:
        check_standard(channel)
        account = check_ledger(channel, ledger_pb2, ledger_pb2_grpc)
        check_credit(channel, account, limit_pb2, limits_pb2, limits_pb2_grpc, ledger_pb2, ledger_pb2_grpc)
        check_limits(channel, limit_pb2, limits_pb2, limits_pb2_grpc)
    print("grpc_client: ledger, credit, limits, health and reflection passed")


if __name__ == "__main__":
    main()
