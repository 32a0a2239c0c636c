"""The answers of servers about credit. Field names are those of the API; amounts are in minor units."""

from __future__ import annotations

from dataclasses import dataclass

from . import _wire
from ._wire import Json


@dataclass(frozen=True)
class Balance:
    """The balance of an account in one asset, in minor units."""

    asset: str
    #: The amount that can be spent; negative if the account owes.
    available: int
    held: int
    pending: int

    @staticmethod
    def read(answer: Json) -> Balance:
        """Reads the JSON of the API."""
        amounts = (_wire.decimal(answer, name) for name in ("available", "held", "pending"))
        return Balance(_wire.text(answer, "asset"), *amounts)


@dataclass(frozen=True)
class Grant:
    """Credit of an account that is spent by priority and expiry, in minor units. Plain credit is one, too."""

    asset: str
    #: The amount that can be spent; negative if plain credit is owed.
    remaining: int
    held: int
    #: The lowest number is spent first, then what expires first.
    priority: int
    #: None if it never expires.
    expires_at_unix_ms: int | None = None

    @staticmethod
    def read(answer: Json) -> Grant:
        """Reads the JSON of the API."""
        return Grant(
            _wire.text(answer, "asset"),
            _wire.decimal(answer, "remaining"),
            _wire.decimal(answer, "held"),
            _wire.integer(answer, "priority"),
            _wire.maybe_integer(answer, "expires_at_unix_ms"),
        )


@dataclass(frozen=True)
class StatementGroup:
    """The spending of a statement under one value of the label."""

    #: None for settlements without the label.
    value: str | None
    spent: int
    settlements: int

    @staticmethod
    def read(answer: Json) -> StatementGroup:
        """Reads the JSON of the API."""
        return StatementGroup(
            _wire.maybe_text(answer, "value"), _wire.decimal(answer, "spent"), _wire.integer(answer, "settlements")
        )


@dataclass(frozen=True)
class AssetStatement:
    """The movements of one asset in a period, in minor units. `closing` is `opening + issued + received +
    transferred_in - spent - transferred_out - expired - retired`; held credit is part of it."""

    asset: str
    opening: int
    issued: int
    received: int
    transferred_in: int
    spent: int
    transferred_out: int
    expired: int
    retired: int
    closing: int
    settlements: int
    #: Empty without a label.
    groups: tuple[StatementGroup, ...] = ()

    @staticmethod
    def read(answer: Json) -> AssetStatement:
        """Reads the JSON of the API."""
        groups = _wire.objects(answer, "groups") if "groups" in answer else []
        return AssetStatement(
            asset=_wire.text(answer, "asset"),
            opening=_wire.decimal(answer, "opening"),
            issued=_wire.decimal(answer, "issued"),
            received=_wire.decimal(answer, "received"),
            transferred_in=_wire.decimal(answer, "transferred_in"),
            spent=_wire.decimal(answer, "spent"),
            transferred_out=_wire.decimal(answer, "transferred_out"),
            expired=_wire.decimal(answer, "expired"),
            retired=_wire.decimal(answer, "retired"),
            closing=_wire.decimal(answer, "closing"),
            settlements=_wire.integer(answer, "settlements"),
            groups=tuple(map(StatementGroup.read, groups)),
        )


@dataclass(frozen=True)
class Statement:
    """The statement of an account."""

    account: str
    since: int | None
    until: int | None
    group_by: str | None
    assets: tuple[AssetStatement, ...]
    #: `after` of the next page.
    next: str | None = None

    @staticmethod
    def read(answer: Json) -> Statement:
        """Reads the JSON of the API."""
        return Statement(
            account=_wire.text(answer, "account"),
            since=_wire.maybe_integer(answer, "since"),
            until=_wire.maybe_integer(answer, "until"),
            group_by=_wire.maybe_text(answer, "group_by"),
            assets=tuple(map(AssetStatement.read, _wire.objects(answer, "assets"))),
            next=_wire.maybe_text(answer, "next"),
        )


@dataclass(frozen=True)
class Plan:
    """A recurring grant of an account, issued once per calendar period."""

    asset: str
    #: The amount per period.
    amount: int
    #: `hour`, `day`, `week` or `month`.
    period: str
    utc_offset_minutes: int
    #: The most unused credit that the next period keeps; 0 if it keeps none.
    carry_over: int
    #: When it issues next; None before its first period.
    next_at_unix_ms: int | None = None

    @staticmethod
    def read(answer: Json) -> Plan:
        """Reads the JSON of the API."""
        keeps_none = answer.get("carry_over") == "none"
        return Plan(
            _wire.text(answer, "asset"),
            _wire.decimal(answer, "amount"),
            _wire.text(answer, "period"),
            _wire.integer(answer, "utc_offset_minutes"),
            0 if keeps_none else _wire.decimal(_wire.object_of(answer, "carry_over"), "max"),
            _wire.maybe_integer(answer, "next_at_unix_ms"),
        )


@dataclass(frozen=True)
class Account:
    """An account with its balances."""

    account: str
    #: `open`, `frozen` or `closed`.
    status: str
    #: Sorted by asset.
    balances: tuple[Balance, ...]
    plan: Plan | None = None

    @staticmethod
    def read(answer: Json) -> Account:
        """Reads the JSON of the API."""
        return Account(
            _wire.text(answer, "account"),
            _wire.text(answer, "status"),
            tuple(map(Balance.read, _wire.objects(answer, "balances"))),
            Plan.read(_wire.object_of(answer, "plan")) if answer.get("plan") is not None else None,
        )


@dataclass(frozen=True)
class EntryChange:
    """The change of one asset by an entry."""

    asset: str
    #: The change of the available amount.
    amount: int
    #: The change of the held amount.
    held: int
    #: What a transaction issued to the account; None if nothing.
    issued: int | None = None
    retired: int | None = None
    transferred_in: int | None = None
    transferred_out: int | None = None

    @staticmethod
    def read(answer: Json) -> EntryChange:
        """Reads the JSON of the API."""
        names = ("issued", "retired", "transferred_in", "transferred_out")
        return EntryChange(
            _wire.text(answer, "asset"),
            _wire.decimal(answer, "amount"),
            _wire.decimal(answer, "held"),
            *(_wire.maybe_decimal(answer, name) for name in names),
        )


@dataclass(frozen=True)
class Entry:
    """A movement of an account. A field that its kind does not have is `None`."""

    #: `transaction`, `hold`, `settle`, `release`, `expire` or `plan`.
    kind: str
    #: Its position in the journal.
    number: int
    committed_at_unix_ms: int
    changes: tuple[EntryChange, ...]
    #: The caller behind it.
    actor: str | None = None
    #: Of a transaction.
    tx_id: str | None = None
    log_index: int | None = None
    memos: tuple[str, ...] | None = None
    #: Of a sequenced transaction.
    client_id: str | None = None
    sequence: int | None = None
    #: Of a transaction with a key.
    idempotency_key: str | None = None
    #: Of a hold, a settlement or a release, with the limit and the held amount.
    lease_id: str | None = None
    limit: str | None = None
    hold: int | None = None
    #: Of a settlement: the amount paid to the revenue account, the part that the account owes, and the unpaid cost.
    paid: int | None = None
    debt: int | None = None
    uncollected: int | None = None
    #: `complete`, `timeout`, or `late` for a complete after the timeout.
    reason: str | None = None
    #: The labels of the complete.
    labels: dict[str, str] | None = None
    #: Of expired or planned credit.
    priority: int | None = None
    expires_at_unix_ms: int | None = None
    #: Of planned credit: what it kept of the period before. It is not part of `changes`.
    carried: int | None = None

    @staticmethod
    def read(answer: Json) -> Entry:
        """Reads the JSON of the API."""
        return Entry(
            kind=_wire.text(answer, "kind"),
            number=_wire.integer(answer, "number"),
            committed_at_unix_ms=_wire.integer(answer, "committed_at_unix_ms"),
            changes=tuple(map(EntryChange.read, _wire.objects(answer, "changes"))),
            actor=_wire.maybe_text(answer, "actor"),
            tx_id=_wire.maybe_text(answer, "tx_id"),
            log_index=_wire.maybe_integer(answer, "log_index"),
            memos=_wire.texts(answer, "memos") if "memos" in answer else None,
            client_id=_wire.maybe_text(answer, "client_id"),
            sequence=_wire.maybe_integer(answer, "sequence"),
            idempotency_key=_wire.maybe_text(answer, "idempotency_key"),
            lease_id=_wire.maybe_text(answer, "lease_id"),
            limit=_wire.maybe_text(answer, "limit"),
            hold=_wire.maybe_decimal(answer, "hold"),
            paid=_wire.maybe_decimal(answer, "paid"),
            debt=_wire.maybe_decimal(answer, "debt"),
            uncollected=_wire.maybe_decimal(answer, "uncollected"),
            reason=_wire.maybe_text(answer, "reason"),
            labels=_wire.text_by_name(answer, "labels") if "labels" in answer else None,
            priority=_wire.maybe_integer(answer, "priority"),
            expires_at_unix_ms=_wire.maybe_integer(answer, "expires_at_unix_ms"),
            carried=_wire.maybe_decimal(answer, "carried"),
        )


@dataclass(frozen=True)
class EntryPage:
    """Entries of an account."""

    entries: tuple[Entry, ...]
    #: `after` of the next page. A page with a period may be empty although more follow.
    next: int | None

    @staticmethod
    def read(answer: Json) -> EntryPage:
        """Reads the JSON of the API."""
        return EntryPage(
            tuple(map(Entry.read, _wire.objects(answer, "entries"))), _wire.maybe_integer(answer, "next")
        )
