-- Names, ids and amounts are text as people and logs write them. A time is in milliseconds since 1970; the views show it
-- as a date. An amount has up to 128 bits: `amount` is exact, and `amount_order` is what it is ordered and summed by, which
-- is the same number up to 62 bits.

create table vaults (
    namespace text not null,
    vault text not null,
    last_number integer not null default 0,
    primary key (namespace, vault)
) strict, without rowid;

create table accounts (
    namespace text not null,
    vault text not null,
    account text not null,
    standing text not null check (standing in ('open', 'frozen', 'closed')),
    overdraft text not null check (overdraft in ('deny', 'allow')),
    claimed_by text,
    claim text check (claim in ('opening', 'changing', 'closing')),
    primary key (namespace, vault, account),
    check ((claimed_by is null) = (claim is null))
) strict, without rowid;

create index accounts_claimed on accounts (claimed_by) where claimed_by is not null;

create table assets (
    namespace text not null,
    vault text not null,
    asset text not null,
    issued text not null,
    retired text not null,
    primary key (namespace, vault, asset)
) strict, without rowid;

create table clients (
    namespace text not null,
    vault text not null,
    client text not null,
    last_sequence integer not null,
    primary key (namespace, vault, client)
) strict, without rowid;

create table postings (
    id text not null primary key,
    namespace text not null,
    vault text not null,
    account text not null,
    asset text not null,
    amount text not null,
    amount_order integer not null check (amount_order <> 0),
    lease text,
    limit_key text,
    ends_at_ms integer,
    state text not null check (state in ('active', 'pending', 'inactive')),
    reservation_id text,
    check ((lease is null) = (limit_key is null) and (lease is null) = (ends_at_ms is null)),
    check ((state = 'active') = (reservation_id is null))
) strict, without rowid;

create index postings_free on postings (namespace, vault, account, asset, amount_order)
    where state = 'active' and lease is null;
create index postings_owed on postings (namespace, vault, account, asset)
    where state = 'pending' and lease is null and amount_order < 0;
create index postings_pending on postings (reservation_id) where state = 'pending';
create index postings_held on postings (namespace, lease) where lease is not null and state <> 'inactive';
create index postings_held_of on postings (namespace, vault, account, ends_at_ms)
    where lease is not null and state <> 'inactive';
create index postings_due on postings (ends_at_ms) where lease is not null and state = 'active';

create table entries (
    namespace text not null,
    vault text not null,
    number integer not null,
    gate text not null,
    place integer not null,
    at_ms integer not null,
    kind text not null,
    lease text,
    body text not null check (json_valid(body)),
    primary key (namespace, vault, number)
) strict, without rowid;

create unique index entries_gate on entries (gate, place);
create index entries_lease on entries (namespace, lease) where lease is not null;

create table changes (
    namespace text not null,
    vault text not null,
    number integer not null,
    account text not null,
    asset text not null,
    amount text not null,
    amount_order integer not null,
    held text not null,
    held_order integer not null,
    primary key (namespace, vault, number, account, asset)
) strict, without rowid;

create index changes_account on changes (namespace, vault, account, number);

create table sagas (
    gate text not null primary key,
    reservation_id text not null unique,
    owner text not null,
    phase text not null check (phase in ('reserving', 'finalizing', 'releasing')),
    is_recorded integer not null default 0,
    lease_namespace text,
    lease text,
    begun_at_ms integer not null,
    client_namespace text,
    client_vault text,
    client text,
    plan text not null
) strict, without rowid;

create unique index sagas_client on sagas (client_namespace, client_vault, client) where client is not null;

create table owners (
    owner text not null primary key,
    heard_at_ms integer not null
) strict, without rowid;
