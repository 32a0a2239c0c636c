"""The rules of sequenced writes: exactly once, even when the process is killed in between. No I/O.

A sequence number is on disk before it is sent, together with the hash of its operations. While its outcome is unknown,
the number is used only for the same operations or for a fence: a transaction without operations, which takes the number
from any copy that may still arrive. Only then comes the next number.
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from . import _requests, _wire
from ._rules import Core, Rule, Sleep, Store, send
from ._sequence_file import Owner, Record, Unfinished, text_of
from ._wire import Json, Request
from .answers import Receipt, WriteRefusal, read_write
from .errors import (
    DeadlinePassed,
    EarmarkError,
    Failure,
    Fenced,
    InputError,
    Invalid,
    NothingToRepeat,
    NotSent,
    OtherContent,
    OutcomeUnknown,
    SequenceConflict,
    StateUnknown,
    Unavailable,
    WriterError,
    WriteRefused,
    WriteUnfinished,
)

#: The most operations of one write.
OPERATIONS_MAX = 256
#: Attempts to place a fence without a file. One unknown write of the lost file may take a sequence; more than that
#: means another writer.
FENCES_MAX = 3
#: Stands for operations that are not known.
UNKNOWN_CONTENT = "0" * 64

Operation = Mapping[str, Any]
_Outcome = Receipt | WriteRefusal | Failure


class Fate(enum.Enum):
    """The final outcome of an unfinished write."""

    COMMITTED = "committed"
    #: The write was not committed, and never will be.
    NEVER_HAPPENED = "never happened"


def checked(operations: Sequence[Operation]) -> list[Json]:
    """Checks operations. Amounts of credit become decimal texts, so that nothing rounds them."""
    if len(operations) > OPERATIONS_MAX:
        raise InputError(f"operations: found {len(operations)}, allowed are at most {OPERATIONS_MAX}")
    return [_checked(f"operations[{index}]", operation) for index, operation in enumerate(operations)]


def write_once(
    core: Core, key: str, operations: Sequence[Operation], scope: tuple[str, str | None], deadline: float
) -> Rule[Receipt]:
    """Sends a write with an idempotency key until its outcome is known. Every copy has the same effect, once."""
    namespace, vault = scope
    body: Json = {"namespace": namespace, "idempotency_key": key, "operations": checked(operations)}
    if vault is not None:
        body["vault"] = vault
    request = Request("POST", "/v1/write", _wire.encode(body), read_write, has_error_object=True)
    outcome = yield from core.ask(request, deadline)
    if isinstance(outcome, WriteRefusal):
        raise WriteRefused(outcome)
    return outcome


def _checked(field: str, value: Any) -> Any:
    if isinstance(value, float):
        raise InputError(f"{field}: found {value!r} (float), allowed are integers and decimal texts")
    if isinstance(value, Mapping):
        items: dict[str, Any] = {}
        for name, inner in value.items():  # pyright: ignore[reportUnknownVariableType]
            found: object = _checked(f"{field}.{name}", inner)
            items[str(name)] = str(found) if name == "amount" and type(found) is int else found  # pyright: ignore[reportUnknownArgumentType]
        return items
    if isinstance(value, (list, tuple)):
        return [_checked(field, inner) for inner in value]  # pyright: ignore[reportUnknownVariableType]
    return value


def content_of(operations: Sequence[Json]) -> str:
    """The hash of operations."""
    return hashlib.sha256(json.dumps(list(operations), sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@dataclass(frozen=True)
class _Last:
    """The outcome of the last attempt, and whether a copy of an earlier one may still arrive."""

    outcome: _Outcome
    may_arrive_late: bool


class Writes:
    """The state and the rules of a writer. One operation is under way at a time."""

    def __init__(self, core: Core, owner: Owner) -> None:
        self._core = core
        self._owner = owner
        #: The last sequence number that is known to be committed.
        self.committed = 0
        self.unfinished: Unfinished | None = None
        #: The record that is certainly in the file; None while a store is not known to have succeeded.
        self._stored: Record | None = None
        self._stamp = 0
        self._conflict: SequenceConflict | None = None

    def open(self, record: Record | None, deadline: float) -> Rule[None]:
        """Continues from the file, if the server agrees with it; without one after the last sequence of the server."""
        if record is None:
            yield from self._recover_without_file(deadline)
            return
        self.committed, self.unfinished = record.committed, record.unfinished
        server = yield from self._server_sequence(deadline)
        used = self.unfinished.sequence if self.unfinished else self.committed
        if server > used:
            raise self._server_ahead(server, used)
        if server < self.committed:
            raise self._server_behind(server)
        # The process ended while it recovered without a file.
        if self.unfinished is not None and self.unfinished.content == UNKNOWN_CONTENT:
            yield from self._recover_without_file(deadline)

    def write(self, operations: Sequence[Operation], deadline: float) -> Rule[Receipt]:
        """Writes a transaction with the next sequence number."""
        self._check()
        if self.unfinished is not None:
            raise WriteUnfinished(self.unfinished.sequence)
        items = checked(operations)
        unfinished = Unfinished(self.committed + 1, content_of(items), False)
        yield from self._begin(unfinished)
        return (yield from self._send(unfinished.sequence, items, False, deadline))

    def repeat(self, operations: Sequence[Operation], deadline: float) -> Rule[Receipt]:
        """Repeats the unfinished transaction with its own sequence number."""
        self._check()
        unfinished = self._must_be_unfinished()
        items = checked(operations)
        if unfinished.content != content_of(items):
            raise OtherContent(unfinished.sequence)
        yield from self._begin(unfinished)
        return (yield from self._send(unfinished.sequence, items, True, deadline))

    def settle(self, deadline: float) -> Rule[Fate | None]:
        """Finds out whether the unfinished write was committed. If not, a fence makes sure that it never will be."""
        self._check()
        if self.unfinished is None:
            return None
        sequence = self.unfinished.sequence
        fate = yield from self._fence(deadline)
        self._mark_known(sequence)
        return fate

    def close(self) -> Rule[None]:
        """Stores that the caller knows the outcome of every write."""
        self._check()
        if self.unfinished is not None:
            raise WriteUnfinished(self.unfinished.sequence)
        yield from self._store(None)

    def _check(self) -> None:
        if self._conflict is not None:
            raise self._conflict

    def _must_be_unfinished(self) -> Unfinished:
        if self.unfinished is None:
            raise NothingToRepeat
        return self.unfinished

    def _mark_known(self, sequence: int) -> None:
        self.committed = sequence
        self.unfinished = None

    def _begin(self, unfinished: Unfinished) -> Rule[None]:
        """Stores the write before it is sent. It is unfinished only after that, so a caller that is cancelled during
        the store leaves the sequence number free."""
        yield from self._store(unfinished)
        self.unfinished = unfinished

    def _store(self, unfinished: Unfinished | None) -> Rule[None]:
        record = Record(self.committed, unfinished)
        if self._stored == record:
            return
        # A store that fails or is cancelled may still replace the file.
        self._stored = None
        self._stamp += 1
        yield Store(text_of(self._owner, record), self._stamp)
        self._stored = record

    def _request(self, sequence: int, operations: Sequence[Json]) -> Request[Receipt | WriteRefusal]:
        owner = self._owner
        body: Json = {"namespace": owner.namespace, "client_id": owner.client_id, "sequence": sequence}
        if owner.vault is not None:
            body["vault"] = owner.vault
        body["operations"] = list(operations)
        return Request("POST", "/v1/write", _wire.encode(body), read_write, has_error_object=True)

    def _send(self, sequence: int, operations: Sequence[Json], was_sent: bool, deadline: float) -> Rule[Receipt]:
        """Sends operations whose sequence number is on disk, until their outcome is known."""
        request = self._request(sequence, operations)
        last = yield from self._send_until_known(request, was_sent, deadline)
        outcome = last.outcome
        if isinstance(outcome, Receipt):
            return self._is_committed(sequence, outcome)
        if isinstance(outcome, DeadlinePassed) and last.may_arrive_late:
            raise OutcomeUnknown(sequence, outcome)
        refusal: WriterError
        if isinstance(outcome, WriteRefusal):
            self._raise_conflict(sequence, outcome)
            refusal = WriteRefused(outcome)
        else:
            refusal = NotSent(outcome)
        # A refusal is final only if no earlier copy can arrive later, when the reason may be gone.
        if not last.may_arrive_late:
            self.unfinished = None
            raise refusal
        if (yield from self._fence(deadline)) is Fate.NEVER_HAPPENED:
            self._mark_known(sequence)
            raise refusal
        # The write is committed. It stays unfinished until its receipt arrives.
        again = (yield from self._send_until_known(request, True, deadline)).outcome
        if isinstance(again, Receipt):
            return self._is_committed(sequence, again)
        if isinstance(again, Failure):
            raise OutcomeUnknown(sequence, again)
        raise self._number_taken(sequence)

    def _is_committed(self, sequence: int, receipt: Receipt) -> Receipt:
        if receipt.sequence != sequence:
            raise self._number_taken(sequence)
        self._mark_known(sequence)
        return receipt

    def _raise_conflict(self, sequence: int, refusal: WriteRefusal) -> None:
        """Stops the writer if the sequence number itself was refused."""
        server = refusal.last_committed_sequence or 0
        if refusal.code == "SEQUENCE_REUSED":
            if server > sequence:
                raise self._server_ahead(server, sequence)
            # This writer sends no other content with the same number than a fence.
            if self.unfinished is not None and self.unfinished.is_fenced:
                self._mark_known(sequence)
                raise Fenced(sequence)
            raise self._number_taken(sequence)
        if refusal.code == "ALREADY_COMMITTED":
            raise self._server_ahead(server, sequence)
        if refusal.code == "SEQUENCE_GAP":
            raise self._server_behind(server)

    def _fence(self, deadline: float) -> Rule[Fate]:
        """Sends a transaction without operations with the unfinished number. Either it takes the number, and no copy of
        the write can be committed any more; or the write has the number already. The write stays unfinished."""
        unfinished = self._must_be_unfinished()
        sequence = unfinished.sequence
        yield from self._begin(replace(unfinished, is_fenced=True))
        last = yield from self._send_until_known(self._request(sequence, []), True, deadline)
        outcome = last.outcome
        if isinstance(outcome, Receipt):
            if outcome.sequence != sequence:
                raise self._number_taken(sequence)
            return Fate.COMMITTED if unfinished.content == content_of([]) else Fate.NEVER_HAPPENED
        if isinstance(outcome, Failure):
            raise OutcomeUnknown(sequence, outcome)
        if outcome.code == "SEQUENCE_REUSED" and outcome.last_committed_sequence in (None, sequence):
            return Fate.COMMITTED
        self._raise_conflict(sequence, outcome)
        raise OutcomeUnknown(sequence, Invalid(str(outcome)))

    def _send_until_known(
        self, request: Request[Receipt | WriteRefusal], was_sent: bool, deadline: float
    ) -> Rule[_Last]:
        """Sends the same write until its outcome is known or the deadline passes."""
        waits = self._core.waits()
        may_arrive_late = was_sent
        last: Failure | None = None
        while self._core.env.now() < deadline:
            answer = yield from send(request, deadline)
            if isinstance(answer, WriteRefusal) and answer.code == "SEQUENCE_GAP":
                answer = yield from self._gap(answer, deadline)
            if not isinstance(answer, Failure) or not answer.is_transient:
                return _Last(answer, may_arrive_late)
            may_arrive_late |= answer.may_have_happened
            last = answer
            yield Sleep(max(0.0, min(waits.after(answer), deadline - self._core.env.now())))
        return _Last(DeadlinePassed(last), may_arrive_late)

    def _gap(self, refusal: WriteRefusal, deadline: float) -> Rule[WriteRefusal | Failure]:
        """The meaning of a gap: the server was behind for a moment, or it lost writes that it acknowledged."""
        try:
            server = yield from self._server_sequence(deadline)
        except StateUnknown as error:
            assert isinstance(error.__cause__, Failure)
            return error.__cause__
        if server < self.committed:
            return refusal
        return Unavailable(f"the server is unavailable: {refusal.message}")

    def _server_sequence(self, deadline: float) -> Rule[int]:
        owner = self._owner
        try:
            request = _requests.client_state(owner.client_id, owner.namespace, owner.vault)
            return (yield from self._core.ask(request, deadline))
        except Failure as failure:
            raise StateUnknown(f"cannot read the last committed sequence of this client: {failure}") from failure

    def _recover_without_file(self, deadline: float) -> Rule[None]:
        """Continues after the last sequence of the server. A write of the lost file may still arrive, so the next
        sequence is a fence."""
        for _ in range(FENCES_MAX):
            self.committed = yield from self._server_sequence(deadline)
            sequence = self.committed + 1
            yield from self._begin(Unfinished(sequence, UNKNOWN_CONTENT, True))
            fate = yield from self._fence(deadline)
            self._mark_known(sequence)
            if fate is Fate.NEVER_HAPPENED:
                yield from self._store(None)
                return
        server = yield from self._server_sequence(deadline)
        raise self._server_ahead(server, self.committed)

    def _stop(self, message: str) -> SequenceConflict:
        self._conflict = SequenceConflict(f"the writer stopped: {message}")
        return self._conflict

    def _server_ahead(self, server: int, file: int) -> EarmarkError:
        return self._stop(
            f"the server has committed sequence {server} of this client, but its file ends at {file}: another writer "
            "uses the same client_id, or the file is an old copy. Stop the other writer; without one, remove "
            "the file, and check what the sequences in between did before writing them again"
        )

    def _server_behind(self, server: int) -> EarmarkError:
        return self._stop(
            f"sequence {self.committed} of this client was acknowledged, but the server ends at {server}: it lost its "
            "data, was restored from an older backup, or is another server. If you accept the loss, remove the file "
            "and repeat the missing writes"
        )

    def _number_taken(self, sequence: int) -> EarmarkError:
        return self._stop(
            f"sequence {sequence} of this client was committed with other operations: another writer uses the same "
            "client_id. Give each writer its own"
        )
