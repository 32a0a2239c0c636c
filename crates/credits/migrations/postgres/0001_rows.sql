-- Names, ids and amounts are as people and logs write them, times are times. Ids and names compare by their bytes.

create table vaults (
    namespace text collate "C" not null,
    vault text collate "C" not null,
    last_number bigint not null default 0,
    primary key (namespace, vault)
) with (fillfactor = 20);
comment on table vaults is 'Where credit lives.';
comment on column vaults.last_number is 'The number of the latest entry.';

create table accounts (
    namespace text collate "C" not null,
    vault text collate "C" not null,
    account text collate "C" not null,
    standing text collate "C" not null check (standing in ('open', 'frozen', 'closed')),
    overdraft text collate "C" not null check (overdraft in ('deny', 'allow')),
    claimed_by text collate "C",
    claim text collate "C" check (claim in ('opening', 'changing', 'closing')),
    primary key (namespace, vault, account),
    check ((claimed_by is null) = (claim is null))
);
comment on table accounts is 'Who has credit. What an account has is in postings; the view balances adds it up.';
comment on column accounts.overdraft is 'Whether it may go below zero.';
comment on column accounts.claimed_by is 'The reservation id of the saga that is about to change the account.';
comment on column accounts.claim is 'What that saga is about to do. An account that is opening is not there yet.';

create index accounts_claimed on accounts (claimed_by) where claimed_by is not null;

create table assets (
    namespace text collate "C" not null,
    vault text collate "C" not null,
    asset text collate "C" not null,
    issued numeric(39) not null,
    retired numeric(39) not null,
    primary key (namespace, vault, asset)
);
comment on table assets is 'What was ever issued and retired. Issued less retired is what all postings that are not inactive add up to.';

create table clients (
    namespace text collate "C" not null,
    vault text collate "C" not null,
    client text collate "C" not null,
    last_sequence bigint not null,
    primary key (namespace, vault, client)
);
comment on table clients is 'How far each writer has counted its transactions.';

create table postings (
    id text collate "C" not null primary key,
    namespace text collate "C" not null,
    vault text collate "C" not null,
    account text collate "C" not null,
    asset text collate "C" not null,
    amount numeric(39) not null check (amount <> 0),
    lease text collate "C",
    limit_key text collate "C",
    ends_at timestamptz,
    state text collate "C" not null default 'active' check (state in ('active', 'pending', 'inactive')),
    reservation_id text collate "C",
    check ((lease is null) = (limit_key is null) and (lease is null) = (ends_at is null)),
    check ((state = 'active') = (reservation_id is null))
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);
comment on table postings is 'Signed amounts, each of one account. Only state and reservation_id ever change; nothing is deleted.';
comment on column postings.amount is 'Below zero if it is owed.';
comment on column postings.lease is 'The lease that holds it, if one does.';
comment on column postings.limit_key is 'The limit that the lease holds it by.';
comment on column postings.ends_at is 'When it goes back, unless the lease says before what it cost.';
comment on column postings.state is 'active: can be spent. pending: a saga is about to consume it. inactive: consumed, for ever.';
comment on column postings.reservation_id is 'The attempt of a saga that has reserved or consumed it.';

create index postings_free on postings (namespace, vault, account, asset, amount, id)
    where state = 'active' and lease is null;
create index postings_owed on postings (namespace, vault, account, asset)
    where state = 'pending' and lease is null and amount < 0;
create index postings_pending on postings (reservation_id) where state = 'pending';
create index postings_held on postings (namespace, lease) where lease is not null and state <> 'inactive';
create index postings_held_of on postings (namespace, vault, account, ends_at)
    where lease is not null and state <> 'inactive';
create index postings_due on postings (ends_at, id) where lease is not null and state = 'active';

create table entries (
    namespace text collate "C" not null,
    vault text collate "C" not null,
    number bigint not null,
    gate text collate "C" not null,
    place integer not null,
    at timestamptz not null,
    kind text collate "C" not null,
    lease text collate "C",
    body json not null,
    primary key (namespace, vault, number)
);
comment on table entries is 'What happened, for ever. Rows are added and never changed.';
comment on column entries.number is 'Counted from 1 in each vault, without gaps, in the order in which entries appear.';
comment on column entries.gate is 'What made it happen once. The entries of one saga have the same.';
comment on column entries.place is 'Its place among the entries of the same saga.';
comment on column entries.body is 'All of it, except what it changed.';

create unique index entries_gate on entries (gate, place);
create index entries_lease on entries (namespace, lease) where lease is not null;

create table changes (
    namespace text collate "C" not null,
    vault text collate "C" not null,
    number bigint not null,
    account text collate "C" not null,
    asset text collate "C" not null,
    amount numeric(39) not null,
    held numeric(39) not null,
    primary key (namespace, vault, number, account, asset)
);
comment on table changes is 'What each entry did to each account. Rows are added and never changed.';
comment on column changes.amount is 'What was added to what can be spent, or taken from it if below zero.';
comment on column changes.held is 'What was added to what leases hold, or taken from it if below zero.';

-- The account comes first, so that nobody looks a number up here before the tables were ever analyzed.
create index changes_account on changes (account, namespace, vault, number);

create table sagas (
    gate text collate "C" not null primary key,
    reservation_id text collate "C" not null unique,
    owner text collate "C" not null,
    phase text collate "C" not null check (phase in ('reserving', 'finalizing', 'releasing')),
    lease_namespace text collate "C",
    lease text collate "C",
    begun_at timestamptz not null,
    client_namespace text collate "C",
    client_vault text collate "C",
    client text collate "C",
    plan json not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, toast_tuple_target = 8160);
comment on table sagas is 'What is under way: a row is added before anything is reserved, and deleted when all is done.';
comment on column sagas.gate is 'What is to happen once: the hash of the label of an entry or of a lease.';
comment on column sagas.reservation_id is 'This attempt at it.';
comment on column sagas.owner is 'The process that drives it.';
comment on column sagas.phase is 'reserving: may be given up. finalizing: will happen. releasing: will not happen.';
comment on column sagas.plan is 'All that it does. Whoever finds it can finish it.';

create unique index sagas_client on sagas (client_namespace, client_vault, client) where client is not null;

create table owners (
    owner text collate "C" not null primary key,
    heard_at timestamptz not null
) with (fillfactor = 20);
comment on table owners is 'Processes, and when each was last heard of.';
