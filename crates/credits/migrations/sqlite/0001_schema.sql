-- Names, ids and amounts are text as in the API. Times are milliseconds since 1970; the views show dates. An amount has
-- up to 128 bits: `amount` is exact, and `amount_order` is for sorting and sums. The two are equal up to 62 bits.

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
    overdraft text not null check (overdraft in ('deny', 'allow') or overdraft glob '[0-9]*'),
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
    expired text not null,
    primary key (namespace, vault, asset)
) strict, without rowid;

create table clients (
    namespace text not null,
    vault text not null,
    client text not null,
    last_sequence integer not null,
    owner text,
    primary key (namespace, vault, client)
) strict, without rowid;

-- How many rows of a kind a namespace or vault has. The empty text stands for all namespaces, or all vaults.
create table quota_usage (
    namespace text not null,
    vault text not null,
    kind text not null check (kind in ('accounts', 'assets', 'clients', 'idempotency_keys')),
    used integer not null,
    primary key (namespace, vault, kind)
) strict, without rowid;

create table postings (
    id text not null primary key,
    namespace text not null,
    vault text not null,
    account text not null,
    asset text not null,
    amount text not null,
    amount_order integer not null,
    priority integer,
    expires_at_ms integer,
    lease text,
    limit_key text,
    ends_at_ms integer,
    used text not null default '0',
    kept text not null default '0',
    extension integer not null default 0,
    shares text,
    plan text,
    state text not null check (state in ('active', 'pending', 'inactive')),
    reservation_id text,
    check ((lease is null) = (limit_key is null) and (lease is null) = (ends_at_ms is null)),
    check (priority between 0 and 255 and lease is null or priority is null and expires_at_ms is null),
    check (shares is null or lease is not null),
    check (plan is null or amount = '0' and expires_at_ms is not null),
    check ((state = 'active') = (reservation_id is null))
) strict, without rowid;

create index postings_free on postings (namespace, vault, account, asset, amount_order)
    where state = 'active' and lease is null and priority is null;
create index postings_owed on postings (namespace, vault, account, asset)
    where state = 'pending' and lease is null and priority is null and amount_order <= 0;
create index postings_grants on postings (namespace, vault, account, asset, priority, expires_at_ms)
    where priority is not null and state <> 'inactive';
create index postings_expiring on postings (expires_at_ms, id) where expires_at_ms is not null and state = 'active';
create index postings_plan on postings (namespace, vault, account) where plan is not null and state <> 'inactive';
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
    wall_ms integer not null,
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
    heartbeat_at_ms integer not null
) strict, without rowid;

-- Transactions of all vaults in commit order, for the change log.
create table transactions (
    place integer primary key,
    namespace text not null,
    vault text not null,
    number integer not null,
    actor text not null
) strict;

create index transactions_actor on transactions (actor);

create trigger transactions_inserted after insert on entries when new.kind = 'transaction'
begin
    insert into transactions (namespace, vault, number, actor)
    values (new.namespace, new.vault, new.number, json_extract(new.body, '$.actor'));
end;

-- Views for people. Earmark does not read them. Sums beyond 64 bits are rounded here, but exact in Earmark.

create view balances as
select namespace, vault, account, asset,
    sum(case when lease is null then cast(amount as numeric) else 0 end) as spendable_or_owed,
    sum(case when lease is not null then cast(amount as numeric) else 0 end) as held,
    count(*) as postings
from postings
where state <> 'inactive'
group by namespace, vault, account, asset;

create view grants as
select namespace, vault, account, asset, priority,
    strftime('%Y-%m-%dT%H:%M:%fZ', expires_at_ms / 1000.0, 'unixepoch') as expires_at,
    sum(cast(amount as numeric)) as remaining
from postings
where priority is not null and plan is null and state <> 'inactive'
group by namespace, vault, account, asset, priority, expires_at_ms;

create view plans as
select namespace, vault, account, plan, strftime('%Y-%m-%dT%H:%M:%fZ', expires_at_ms / 1000.0, 'unixepoch') as next_at
from postings
where plan is not null and state <> 'inactive';

create view live_holds as
select namespace, lease, vault, account, asset, amount, limit_key, used, kept, extension, shares,
    strftime('%Y-%m-%dT%H:%M:%fZ', ends_at_ms / 1000.0, 'unixepoch') as ends_at, state
from postings
where lease is not null and state <> 'inactive';

create view history as
select c.namespace, c.vault, c.number, strftime('%Y-%m-%dT%H:%M:%fZ', e.wall_ms / 1000.0, 'unixepoch') as at,
    e.kind, c.account, c.asset, c.amount, c.held, e.lease, e.gate, e.body
from changes c
join entries e on e.namespace = c.namespace and e.vault = c.vault and e.number = c.number;

create view sagas_under_way as
select s.gate, s.phase, s.owner, strftime('%Y-%m-%dT%H:%M:%fZ', s.begun_at_ms / 1000.0, 'unixepoch') as begun_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', o.heartbeat_at_ms / 1000.0, 'unixepoch') as owner_heartbeat_at, s.reservation_id, s.plan
from sagas s
left join owners o on o.owner = s.owner;
