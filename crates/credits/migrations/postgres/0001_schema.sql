-- Ids and names are text as in the API and compare by bytes. Times are milliseconds since 1970; the views show dates.

create table vaults (
    namespace text collate "C" not null,
    vault text collate "C" not null,
    last_number bigint not null default 0,
    primary key (namespace, vault)
) with (fillfactor = 20);
comment on table vaults is 'Vaults, and the last entry number of each.';

create table accounts (
    namespace text collate "C" not null,
    vault text collate "C" not null,
    account text collate "C" not null,
    standing text collate "C" not null check (standing in ('open', 'frozen', 'closed')),
    overdraft text collate "C" not null check (overdraft in ('deny', 'allow') or overdraft ~ '^[0-9]{1,20}$'),
    claimed_by text collate "C",
    claim text collate "C" check (claim in ('opening', 'changing', 'closing')),
    primary key (namespace, vault, account),
    check ((claimed_by is null) = (claim is null))
);
comment on table accounts is 'Accounts. Their balances are in postings; the view balances adds them up.';
comment on column accounts.overdraft is 'Whether the balance may go below zero, or how far below reserves, transfers and retirements may take it.';
comment on column accounts.claimed_by is 'Reservation id of the saga that is changing the account.';
comment on column accounts.claim is 'What that saga does. An account that is opening does not exist yet.';

create index accounts_claimed on accounts (claimed_by) where claimed_by is not null;

create table assets (
    namespace text collate "C" not null,
    vault text collate "C" not null,
    asset text collate "C" not null,
    issued numeric(39) not null,
    retired numeric(39) not null,
    expired numeric(39) not null default 0,
    primary key (namespace, vault, asset)
);
comment on table assets is 'Totals issued, retired and expired. Issued less the others is the sum of all postings that are not inactive.';

create table clients (
    namespace text collate "C" not null,
    vault text collate "C" not null,
    client text collate "C" not null,
    last_sequence bigint not null,
    owner text collate "C",
    primary key (namespace, vault, client)
);
comment on table clients is 'The last sequence of each client.';
comment on column clients.owner is 'The key (key:<id>) or user that owns the client id, if one has claimed it.';

create table quota_usage (
    namespace text collate "C" not null,
    vault text collate "C" not null,
    kind text collate "C" not null check (kind in ('accounts', 'assets', 'clients', 'idempotency_keys')),
    used bigint not null,
    primary key (namespace, vault, kind)
) with (fillfactor = 20);
comment on table quota_usage is 'How many rows of a kind a namespace or a vault has. The empty text stands for all namespaces, or all vaults.';
comment on column quota_usage.kind is 'accounts: those that a transaction opened, so without revenue. idempotency_keys: transactions with one.';

create table postings (
    id text collate "C" not null primary key,
    namespace text collate "C" not null,
    vault text collate "C" not null,
    account text collate "C" not null,
    asset text collate "C" not null,
    amount numeric(39) not null,
    priority bigint,
    expires_at_ms bigint,
    lease text collate "C",
    limit_key text collate "C",
    ends_at_ms bigint,
    used numeric(20) not null default 0,
    kept numeric(20) not null default 0,
    extension bigint not null default 0,
    shares text collate "C",
    plan text collate "C",
    state text collate "C" not null default 'active' check (state in ('active', 'pending', 'inactive')),
    reservation_id text collate "C",
    check ((lease is null) = (limit_key is null) and (lease is null) = (ends_at_ms is null)),
    check (priority between 0 and 255 and lease is null or priority is null and expires_at_ms is null),
    check (shares is null or lease is not null),
    check (plan is null or amount = 0 and expires_at_ms is not null),
    check ((state = 'active') = (reservation_id is null))
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);
comment on table postings is 'Signed amounts of accounts. Only the state, and the end and usage of a hold change; no row is deleted.';
comment on column postings.amount is 'Negative if owed. 0 marks the overdraft of a capped account, or the plan of an account: who takes it below zero, or issues the plan, consumes the mark.';
comment on column postings.priority is 'The priority of a grant; null for plain credit and holds. The lowest number is spent first.';
comment on column postings.expires_at_ms is 'When the grant expires; null if never.';
comment on column postings.shares is 'The grants that the hold took from, in spending order, as JSON; null if all of it is plain credit.';
comment on column postings.plan is 'The plan of the account and the end of its last period, as JSON. The plan is due when the mark expires.';
comment on column postings.lease is 'The lease that holds it, if any.';
comment on column postings.limit_key is 'The credit limit of the hold.';
comment on column postings.ends_at_ms is 'When the hold times out. Extensions of the lease move it.';
comment on column postings.used is 'The usage that the lease has reported. It may exceed the amount.';
comment on column postings.kept is 'The part of the amount that is charged when the hold times out.';
comment on column postings.extension is 'The last extension that moved the end or reported usage.';
comment on column postings.state is 'active: can be spent. pending: reserved by a saga. inactive: consumed.';
comment on column postings.reservation_id is 'The saga attempt that reserved or consumed it.';

create index postings_free on postings (namespace, vault, account, asset, amount, id)
    where state = 'active' and lease is null and priority is null;
create index postings_owed on postings (namespace, vault, account, asset)
    where state = 'pending' and lease is null and priority is null and amount <= 0;
create index postings_grants on postings (namespace, vault, account, asset, priority, expires_at_ms)
    where priority is not null and state <> 'inactive';
create index postings_expiring on postings (expires_at_ms, id) where expires_at_ms is not null and state = 'active';
create index postings_plan on postings (namespace, vault, account) where plan is not null and state <> 'inactive';
create index postings_pending on postings (reservation_id) where state = 'pending';
create index postings_held on postings (namespace, lease) where lease is not null and state <> 'inactive';
create index postings_held_of on postings (namespace, vault, account, ends_at_ms)
    where lease is not null and state <> 'inactive';
create index postings_due on postings (ends_at_ms, id) where lease is not null and state = 'active';

create table entries (
    namespace text collate "C" not null,
    vault text collate "C" not null,
    number bigint not null,
    gate text collate "C" not null,
    place integer not null,
    at_ms bigint not null,
    wall_ms bigint not null,
    kind text collate "C" not null,
    lease text collate "C",
    actor text collate "C",
    body json not null,
    tx xid8 not null default pg_current_xact_id(),
    primary key (namespace, vault, number)
);
comment on table entries is 'The history. Rows are never changed or deleted.';
comment on column entries.number is 'From 1 in each vault, without gaps, in commit order.';
comment on column entries.gate is 'The idempotency key of its plan, which all entries of the plan share.';
comment on column entries.at_ms is 'Log time, which never runs backwards.';
comment on column entries.wall_ms is 'Calendar time, which is shown.';
comment on column entries.place is 'Its index in the plan.';
comment on column entries.actor is 'Who made the transaction; null for other entries, which have it in the body.';
comment on column entries.tx is 'The PostgreSQL transaction that inserted it, for the order of commits.';
comment on column entries.body is 'Its content, without its effects.';

create unique index entries_gate on entries (gate, place);
create index entries_transactions on entries (tx) where kind = 'transaction';
create index entries_transactions_actor on entries (actor, tx) where kind = 'transaction';
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
comment on table changes is 'The effect of each entry on each account. Rows are never changed or deleted.';
comment on column changes.amount is 'Change of the spendable amount.';
comment on column changes.held is 'Change of the held amount.';

-- The account comes first, so that the planner does not use this index to look up a number in tables never analyzed.
create index changes_account on changes (account, namespace, vault, number);

create table sagas (
    gate text collate "C" not null primary key,
    reservation_id text collate "C" not null unique,
    owner text collate "C" not null,
    phase text collate "C" not null check (phase in ('reserving', 'finalizing', 'releasing')),
    lease_namespace text collate "C",
    lease text collate "C",
    begun_at_ms bigint not null,
    client_namespace text collate "C",
    client_vault text collate "C",
    client text collate "C",
    plan json not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, toast_tuple_target = 8160);
comment on table sagas is 'Sagas in progress. A row is inserted before anything is reserved, and deleted at the end.';
comment on column sagas.gate is 'The idempotency key: the hash of the label of an entry or of a lease.';
comment on column sagas.reservation_id is 'The attempt.';
comment on column sagas.owner is 'The process that drives it.';
comment on column sagas.phase is 'reserving: may be aborted. finalizing: will commit. releasing: is aborted.';
comment on column sagas.plan is 'Everything the saga does, so that any process can finish it.';

create unique index sagas_client on sagas (client_namespace, client_vault, client) where client is not null;

create table owners (
    owner text collate "C" not null primary key,
    heartbeat_at_ms bigint not null
) with (fillfactor = 20);
comment on table owners is 'Processes and their last heartbeat.';

-- Renumbers all transactions in order of time. A hundred share a number, or more if this server has not reached enough
-- numbers.
create function order_transactions() returns void language sql as $$
    update entries e
    set tx = (1 + p.place / greatest(100, 1 + p.found / (pg_current_xact_id()::text::bigint - 1)))::text::xid8
    from (select namespace, vault, number, count(*) over () as found,
            row_number() over (order by at_ms, namespace, vault, number) - 1 as place
        from entries where kind = 'transaction') p
    where e.namespace = p.namespace and e.vault = p.vault and e.number = p.number
$$;
comment on function order_transactions is 'Renumbers all transactions. Earmark calls it after the tables were copied from another server.';

-- Makes single changes in order and returns the rows that each changed. A change is an object: `do` names it, the rest
-- is its input. Long texts are in `texts`, and `text` is an index into it. Every saga step carries the saga's token,
-- and changes nothing unless the record has the same token and the phase that the step requires.
--
-- `vaults_of` are locked first, in order: calls that write entries wait there, before any other call can wait for them.
-- The counters `usage_of` are locked next, in order.
-- A record is locked at its first step, so that no process takes it over between two steps. Its phase is written when a
-- step of another saga follows, because most records are deleted before that. Reserved inputs are locked and become
-- pending just as late.
create function write_changes(changes jsonb, texts text[], vaults_of jsonb, usage_of jsonb, is_durable boolean)
returns bigint[]
language plpgsql as $$
declare
    c jsonb;
    h jsonb;
    counts bigint[] := '{}';
    n bigint;
    m bigint;
    t_gate text := '';
    t_rid text;
    t_owner text;
    t_phase text;
    t_is_recorded boolean;
    t_is_dirty boolean := false;
    t_reserved bigint;
    t_claimed bigint;
    t_locked text[];
    ids text[];
begin
    if not is_durable then
        perform set_config('synchronous_commit', 'off', true);
    end if;
    if vaults_of is not null then
        perform 1 from vaults v join jsonb_array_elements(vaults_of) k
            on v.namespace = k->>0 and v.vault = k->>1
            order by v.namespace, v.vault for no key update of v;
    end if;
    for h in select k from jsonb_array_elements(usage_of) k loop
        insert into quota_usage (namespace, vault, kind, used) values (h->>0, h->>1, h->>2, 0) on conflict do nothing;
        perform 1 from quota_usage u where u.namespace = h->>0 and u.vault = h->>1 and u.kind = h->>2
            for no key update;
    end loop;
    for c in select e from jsonb_array_elements(changes) e loop
        n := 0;
        if t_gate <> '' and (c->>'gate' is distinct from t_gate or c->>'rid' <> t_rid or c->>'owner' <> t_owner
            or c->>'do' in ('begin', 'take_over')) then
            if t_is_dirty then
                update sagas set phase = t_phase where gate = t_gate;
            end if;
            if t_locked is not null then
                update postings p set state = 'pending', reservation_id = t_rid where p.id = any (t_locked);
            end if;
            t_gate := '';
            t_is_dirty := false;
            t_locked := null;
        end if;
        if t_gate = '' and c ? 'gate' and c->>'do' not in ('begin', 'take_over') then
            t_rid := c->>'rid';
            t_owner := c->>'owner';
            t_is_recorded := null;
            t_reserved := null;
            t_claimed := null;
            t_phase := null;
            -- Only the gate may select an index: deleted records stay in the other indexes until a vacuum.
            select s.phase, s.gate into t_phase, t_gate from sagas s
                where s.gate = c->>'gate' and s.reservation_id is not distinct from t_rid
                    and s.owner is not distinct from t_owner for no key update;
            t_gate := coalesce(t_gate, '');
        end if;
        case c->>'do'
        when 'begin' then
            insert into sagas (gate, reservation_id, owner, phase, lease_namespace, lease, begun_at_ms,
                client_namespace, client_vault, client, plan)
            values (c->>'gate', c->>'rid', c->>'owner', 'reserving', c->>'lease_namespace', c->>'lease',
                (c->>'begun_at')::bigint,
                c->>'client_namespace', c->>'client_vault', c->>'client', texts[(c->>'text')::int]::json)
            on conflict do nothing;
            get diagnostics n = row_count;
            if n = 1 then
                t_gate := c->>'gate';
                t_rid := c->>'rid';
                t_owner := c->>'owner';
                t_phase := 'reserving';
                t_is_recorded := null;
                t_reserved := 0;
                t_claimed := 0;
            end if;
        when 'reserve' then
            if t_gate <> '' and t_phase = 'reserving' then
                -- A locked posting is about to be consumed by another call, so waiting for it is pointless.
                select array_agg(free.id) into ids from (
                    select p.id from postings p
                    where p.id = any (array(select jsonb_array_elements_text(c->'ids'))) and p.state = 'active'
                        and p.extension = coalesce((c->'renewed'->>p.id)::int, 0)
                        and p.id <> all (coalesce(t_locked, '{}'))
                    order by p.id for update skip locked) free;
                n := coalesce(cardinality(ids), 0);
                t_locked := t_locked || ids;
                t_reserved := t_reserved + n;
            end if;
        when 'claim' then
            if t_gate <> '' and t_phase = 'reserving' then
                perform 1 from accounts a join jsonb_array_elements(c->'claims') k
                    on a.namespace = k->>0 and a.vault = k->>1 and a.account = k->>2
                    order by a.namespace, a.vault, a.account for no key update of a;
                update accounts a set claimed_by = t_rid, claim = k->>3 from jsonb_array_elements(c->'claims') k
                where a.namespace = k->>0 and a.vault = k->>1 and a.account = k->>2 and k->>3 <> 'opening'
                    and a.claimed_by is null and a.standing = k->>4;
                get diagnostics n = row_count;
                insert into accounts (namespace, vault, account, claim, standing, overdraft, claimed_by)
                select k->>0, k->>1, k->>2, k->>3, k->>4, k->>5, t_rid from jsonb_array_elements(c->'claims') k
                where k->>3 = 'opening' order by 1, 2, 3
                on conflict do nothing;
                get diagnostics m = row_count;
                n := n + m;
                t_claimed := t_claimed + n;
            end if;
        when 'decide' then
            if t_gate <> '' and t_phase = 'reserving' then
                -- The lock keeps others from closing or freezing an account before the entry is written. A record of
                -- this call is still invisible, so a call that waits for records would not wait for it.
                perform 1 from accounts a join jsonb_array_elements(c->'needs') k
                    on a.namespace = k->>0 and a.vault = k->>1 and a.account = k->>2
                    order by a.namespace, a.vault, a.account for share of a;
                t_is_recorded := exists (select from entries e where e.gate = t_gate);
                -- The rows that this call reserved and claimed are already counted.
                t_reserved := coalesce(t_reserved, (select count(*) from postings p
                    where p.state = 'pending' and p.reservation_id = t_rid) + coalesce(cardinality(t_locked), 0));
                t_claimed := coalesce(t_claimed, (select count(*) from accounts a where a.claimed_by = t_rid));
                if not t_is_recorded and t_reserved = (c->>'inputs')::bigint and t_claimed = (c->>'claims')::bigint
                    and not exists (
                        select from jsonb_array_elements(c->'needs') k left join accounts a
                        on a.namespace = k->>0 and a.vault = k->>1 and a.account = k->>2
                        where case
                            when a.account is null then true
                            when a.claimed_by = t_rid then false
                            when a.claim in ('opening', 'closing') then true
                            when a.standing = 'open' then false
                            when a.standing = 'frozen' then (k->>3)::boolean
                            else true end)
                    and (c->>'client' is null or coalesce((
                        select l.last_sequence from clients l
                        where l.namespace = c->>'client_namespace' and l.vault = c->>'client_vault'
                            and l.client = c->>'client'), 0) = (c->>'last_sequence')::bigint)
                    and not exists (select from jsonb_array_elements(c->'growth') k
                        where (k->>3)::bigint + (select u.used from quota_usage u
                            where u.namespace = k->>0 and u.vault = k->>1 and u.kind = k->>2) > (k->>4)::bigint)
                then
                    for h in select k from jsonb_array_elements(c->'growth') k loop
                        update quota_usage u set used = u.used + (h->>3)::bigint
                        where u.namespace = h->>0 and u.vault = h->>1 and u.kind = h->>2;
                    end loop;
                    n := 1;
                    t_phase := 'finalizing';
                    t_is_dirty := true;
                end if;
            end if;
        when 'finalize' then
            if t_gate <> '' and t_phase = 'finalizing' then
                ids := array(select jsonb_array_elements_text(c->'ids'));
                update postings p set state = 'inactive', reservation_id = t_rid
                where p.id = any (ids) and case when p.id = any (t_locked) then true
                    else p.state = 'pending' and p.reservation_id = t_rid end;
                get diagnostics n = row_count;
                t_locked := nullif(array(select unnest(t_locked) except all select unnest(ids)), '{}');
            end if;
        when 'create', 'mark' then
            if c->>'do' = 'mark' or t_gate <> '' and t_phase = 'finalizing' then
                insert into postings (id, namespace, vault, account, asset, amount, lease, limit_key, ends_at_ms,
                    used, kept, extension, priority, expires_at_ms, shares, plan)
                select k->>0, k->>1, k->>2, k->>3, k->>4, (k->>5)::numeric, k->>6, k->>7,
                    (k->>8)::bigint, (k->>9)::numeric, (k->>10)::numeric, (k->>11)::int,
                    (k->>12)::bigint, (k->>13)::bigint, k->>14, k->>15
                from jsonb_array_elements(c->'outputs') k
                on conflict (id) do nothing;
                get diagnostics n = row_count;
            end if;
        when 'apply' then
            if t_gate <> '' and t_phase = 'finalizing' then
                update accounts a set standing = k->>3, claimed_by = null, claim = null
                from jsonb_array_elements(c->'claims') k
                where a.namespace = k->>0 and a.vault = k->>1 and a.account = k->>2 and a.claimed_by = t_rid;
                get diagnostics n = row_count;
            end if;
        when 'record' then
            if t_gate <> '' and t_phase = 'finalizing' then
                t_is_recorded := coalesce(t_is_recorded, exists (select from entries e where e.gate = t_gate));
                if not t_is_recorded then
                    n := record_entries(c, texts, t_gate);
                    t_is_recorded := n > 0;
                end if;
            end if;
        when 'abort' then
            if t_gate <> '' and t_phase = 'reserving' then
                n := 1;
                t_phase := 'releasing';
                t_is_dirty := true;
            end if;
        when 'end' then
            if t_gate <> '' and t_phase <> 'reserving' then
                if t_phase = 'finalizing' then
                    t_is_recorded := coalesce(t_is_recorded, exists (select from entries e where e.gate = t_gate));
                end if;
                if t_phase = 'releasing' or t_is_recorded then
                    if t_locked is not null then
                        update postings p set state = 'pending', reservation_id = t_rid where p.id = any (t_locked);
                        t_locked := null;
                    end if;
                    delete from sagas s where s.gate = t_gate;
                    n := 1;
                    t_gate := '';
                    t_is_dirty := false;
                end if;
            end if;
        when 'release' then
            if not exists (select from sagas s where s.reservation_id = c->>'of' and s.phase <> 'releasing') then
                update postings p set state = 'active', reservation_id = null
                where p.state = 'pending' and p.reservation_id = c->>'of';
                get diagnostics n = row_count;
            end if;
        when 'renew' then
            -- A locked posting is about to be consumed.
            select count(*) into m from jsonb_array_elements(c->'holds') k
            cross join lateral (select from postings p
                where p.id = k->>0 and p.state = 'active' and p.extension = (k->>1)::int
                for no key update skip locked) p;
            if m = jsonb_array_length(c->'holds') then
                for h in select k from jsonb_array_elements(c->'holds') k loop
                    update postings p set ends_at_ms = (h->>2)::bigint, used = (h->>3)::numeric,
                        kept = (h->>4)::numeric, extension = (h->>5)::int
                    where p.id = h->>0;
                end loop;
                n := m;
            end if;
        when 'unclaim' then
            if not exists (select from sagas s where s.reservation_id = c->>'of' and s.phase <> 'releasing') then
                delete from accounts a where a.claimed_by = c->>'of' and a.claim = 'opening';
                get diagnostics n = row_count;
                update accounts a set claimed_by = null, claim = null where a.claimed_by = c->>'of';
                get diagnostics m = row_count;
                n := n + m;
            end if;
        when 'take_over' then
            update sagas s set owner = c->>'to'
            where s.gate = c->>'gate' and s.reservation_id is not distinct from c->>'rid'
                and s.owner is not distinct from c->>'owner'
                and not exists (select from owners o where o.owner = s.owner
                    and o.heartbeat_at_ms >= (c->>'expired_since')::bigint);
            get diagnostics n = row_count;
        when 'heartbeat' then
            insert into owners (owner, heartbeat_at_ms) values (c->>'of', (c->>'at')::bigint)
            on conflict (owner) do update set heartbeat_at_ms = excluded.heartbeat_at_ms;
            n := 1;
        when 'leave' then
            delete from owners o where o.owner = c->>'of';
            get diagnostics n = row_count;
        when 'open_vault' then
            insert into vaults (namespace, vault) values (c->>'namespace', c->>'vault') on conflict do nothing;
            get diagnostics n = row_count;
            insert into accounts (namespace, vault, account, standing, overdraft)
            values (c->>'namespace', c->>'vault', c->>'account', 'open', 'deny') on conflict do nothing;
            get diagnostics m = row_count;
            n := n + m;
        end case;
        counts := counts || n;
    end loop;
    if t_is_dirty then
        update sagas set phase = t_phase where gate = t_gate;
    end if;
    if t_locked is not null then
        update postings p set state = 'pending', reservation_id = t_rid where p.id = any (t_locked);
    end if;
    return counts;
end
$$;

-- Inserts the entries of a saga under the next numbers of their vaults, and updates totals and the client's sequence.
create function record_entries(c jsonb, texts text[], saga text) returns bigint
language plpgsql as $$
declare
    k jsonb;
    n bigint;
    last bigint;
    lasts jsonb := '{}';
    most constant numeric := 170141183460469231731687303715884105727;
begin
    for k in select e from jsonb_array_elements(c->'vaults') e loop
        update vaults v set last_number = v.last_number + (k->>2)::bigint
            where v.namespace = k->>0 and v.vault = k->>1 returning v.last_number into last;
        if not found then
            insert into vaults (namespace, vault, last_number) values (k->>0, k->>1, (k->>2)::bigint)
            on conflict (namespace, vault) do update set last_number = vaults.last_number + excluded.last_number
            returning last_number into last;
        end if;
        -- Names contain no slash.
        lasts := lasts || jsonb_build_object((k->>0) || '/' || (k->>1), last);
    end loop;
    insert into entries (namespace, vault, number, gate, place, at_ms, wall_ms, kind, lease, actor, body)
    select e->>0, e->>1, (lasts->>((e->>0) || '/' || (e->>1)))::bigint - (e->>2)::bigint, saga, (e->>3)::int,
        (e->>4)::bigint, (e->>5)::bigint, e->>6, e->>7, e->>8, texts[(e->>9)::int]::json
    from jsonb_array_elements(c->'entries') e;
    get diagnostics n = row_count;
    if c ? 'changes' then
        insert into changes (namespace, vault, number, account, asset, amount, held)
        select e->>0, e->>1, (lasts->>((e->>0) || '/' || (e->>1)))::bigint - (e->>2)::bigint, e->>3, e->>4,
            (e->>5)::numeric, (e->>6)::numeric
        from jsonb_array_elements(c->'changes') e;
    end if;
    if c ? 'totals' then
        insert into assets (namespace, vault, asset, issued, retired, expired)
        select e->>0, e->>1, e->>2, (e->>3)::numeric, (e->>4)::numeric, (e->>5)::numeric
        from jsonb_array_elements(c->'totals') e order by 1, 2, 3
        on conflict (namespace, vault, asset) do update
        set issued = least(assets.issued + excluded.issued, most),
            retired = least(assets.retired + excluded.retired, most),
            expired = least(assets.expired + excluded.expired, most);
    end if;
    if c ? 'client' then
        insert into clients (namespace, vault, client, last_sequence, owner)
        values (c->>'client_namespace', c->>'client_vault', c->>'client', (c->>'sequence')::bigint, c->>'client_owner')
        on conflict (namespace, vault, client) do update set last_sequence = excluded.last_sequence,
            owner = coalesce(excluded.owner, clients.owner);
    end if;
    return n;
end
$$;

-- Commits plans that claim no account, each as a whole or not at all, and returns which took effect. A refused plan
-- leaves nothing but perhaps the row of a vault or of a counter. No saga record is written.
--
-- Columns with the same first letter belong together: v vaults, in order; p plans; i inputs, in order of id; n needed
-- accounts, in order; o outputs; e entries; c effects of entries; t totals; k counters, in order; g growth, in order of
-- the plans. `plan`, `home`, `entry` and `counter` are indexes from 1. No two plans share a gate, a client or an input.
--
-- The vaults are locked first and then the counters, as in `write_changes`, until the commit: no other call writes
-- entries or sequences there. A gate may be written in two vaults at once; then the index of entries lets one in, and the other is retried
-- and finds the entry.
--
-- No table is joined: a plan made for an empty table would scan it, and the connection would keep that plan when it has
-- grown.
create function commit_plans(
    v_namespace text[], v_vault text[],
    p_gate text[], p_rid text[], p_inputs int[], p_needs int[], p_home int[], p_client text[], p_sequence bigint[],
    p_owner text[],
    i_plan int[], i_id text[], i_extension int[],
    n_plan int[], n_home int[], n_account text[], n_spends boolean[],
    o_plan int[], o_id text[], o_home int[], o_account text[], o_asset text[], o_amount text[], o_lease text[], o_limit text[],
    o_ends bigint[], o_used text[], o_kept text[], o_extension int[], o_priority bigint[], o_expires bigint[], o_shares text[],
    o_mark text[],
    e_plan int[], e_home int[], e_place int[], e_at bigint[], e_wall bigint[], e_kind text[], e_lease text[],
    e_actor text[], e_body text[],
    c_entry int[], c_account text[], c_asset text[], c_amount text[], c_held text[],
    t_plan int[], t_home int[], t_asset text[], t_issued text[], t_retired text[],
    t_expired text[],
    k_namespace text[], k_vault text[], k_kind text[],
    g_plan int[], g_counter int[], g_added bigint[], g_max bigint[]
) returns boolean[]
language plpgsql as $$
declare
    is_done boolean[];
    lasts bigint[];
    numbers bigint[];
    k_used bigint[];
    k_added bigint[] := array_fill(0::bigint, array[cardinality(k_kind)]);
    g_next int := 1;
    most constant numeric := 170141183460469231731687303715884105727;
begin
    loop
        select array_agg(v.last_number order by k.home) into lasts
        from unnest(v_namespace, v_vault) with ordinality k (namespace, vault, home)
        cross join lateral (select v.last_number from vaults v where v.namespace = k.namespace and v.vault = k.vault
            for no key update) v;
        exit when coalesce(cardinality(lasts), 0) = cardinality(v_vault);
        insert into vaults (namespace, vault) select k.namespace, k.vault from unnest(v_namespace, v_vault) k (namespace, vault)
        on conflict do nothing;
    end loop;
    while cardinality(k_kind) > 0 loop
        select array_agg(u.used order by k.counter) into k_used
        from unnest(k_namespace, k_vault, k_kind) with ordinality k (namespace, vault, kind, counter)
        cross join lateral (select u.used from quota_usage u
            where u.namespace = k.namespace and u.vault = k.vault and u.kind = k.kind for no key update) u;
        exit when coalesce(cardinality(k_used), 0) = cardinality(k_kind);
        insert into quota_usage (namespace, vault, kind, used)
        select k.namespace, k.vault, k.kind, 0 from unnest(k_namespace, k_vault, k_kind) k (namespace, vault, kind)
        on conflict do nothing;
    end loop;
    -- A locked posting is about to be consumed by another call, so waiting for it is pointless. The share lock on
    -- accounts waits for a call that closes or freezes one, and keeps others from it until the commit.
    with free as materialized (
        select i_plan[width_bucket(p.id, i_id)] as plan from postings p
        where p.id = any (i_id) and p.state = 'active' and p.extension = i_extension[width_bucket(p.id, i_id)]
        order by p.id for no key update skip locked
    ), fit as materialized (
        select n.plan from unnest(n_plan, n_home, n_account, n_spends) n (plan, home, account, spends)
        cross join lateral (select from accounts a
            where a.namespace = v_namespace[n.home] and a.vault = v_vault[n.home] and a.account = n.account
                and (a.claim is null or a.claim = 'changing')
                and (a.standing = 'open' or a.standing = 'frozen' and not n.spends)
            for share) a
    )
    select array_agg(coalesce(f.count, 0) = s.inputs and coalesce(m.count, 0) = s.needs
        and not exists (select from entries e where e.gate = s.gate)
        and not exists (select from sagas g where g.gate = s.gate)
        and (s.client is null or not exists (select from sagas g where g.client_namespace = v_namespace[s.home]
                and g.client_vault = v_vault[s.home] and g.client = s.client)
            and coalesce((select l.last_sequence from clients l where l.namespace = v_namespace[s.home]
                and l.vault = v_vault[s.home] and l.client = s.client), 0) = s.sequence - 1)
        order by s.plan) into is_done
    from unnest(p_gate, p_inputs, p_needs, p_home, p_client, p_sequence) with ordinality
        s (gate, inputs, needs, home, client, sequence, plan)
    left join (select free.plan, count(*) from free group by free.plan) f on f.plan = s.plan
    left join (select fit.plan, count(*) from fit group by fit.plan) m on m.plan = s.plan;
    -- A plan grows all its counters or none.
    while g_next <= cardinality(g_plan) loop
        declare
            grown constant int := g_plan[g_next];
            g_first constant int := g_next;
        begin
            while g_plan[g_next] = grown loop
                is_done[grown] := is_done[grown]
                    and k_used[g_counter[g_next]] + k_added[g_counter[g_next]] + g_added[g_next] <= g_max[g_next];
                g_next := g_next + 1;
            end loop;
            if is_done[grown] then
                for place in g_first..g_next - 1 loop
                    k_added[g_counter[place]] := k_added[g_counter[place]] + g_added[place];
                end loop;
            end if;
        end;
    end loop;
    if not true = any (is_done) then
        return is_done;
    end if;
    select array_agg(n.number order by n.entry) into numbers from (
        select e.entry, lasts[e.home] + count(*) filter (where is_done[e.plan])
            over (partition by e.home order by e.entry) as number
        from unnest(e_plan, e_home) with ordinality e (plan, home, entry)) n;
    update postings p set state = 'inactive', reservation_id = p_rid[i_plan[width_bucket(p.id, i_id)]]
    where p.id = any (i_id) and is_done[i_plan[width_bucket(p.id, i_id)]];
    insert into postings (id, namespace, vault, account, asset, amount, lease, limit_key, ends_at_ms, used, kept, extension,
        priority, expires_at_ms, shares, plan)
    select o.id, v_namespace[o.home], v_vault[o.home], o.account, o.asset, o.amount::numeric, o.lease, o.limit_key,
        o.ends_at_ms, o.used::numeric, o.kept::numeric, o.extension, o.priority, o.expires_at_ms, o.shares,
        o.mark
    from unnest(o_plan, o_id, o_home, o_account, o_asset, o_amount, o_lease, o_limit, o_ends, o_used, o_kept, o_extension,
            o_priority, o_expires, o_shares, o_mark)
        o (plan, id, home, account, asset, amount, lease, limit_key, ends_at_ms, used, kept, extension, priority,
            expires_at_ms, shares, mark)
    where is_done[o.plan];
    insert into entries (namespace, vault, number, gate, place, at_ms, wall_ms, kind, lease, actor, body)
    select v_namespace[e.home], v_vault[e.home], numbers[e.entry], p_gate[e.plan], e.place,
        e.at_ms, e.wall_ms, e.kind, e.lease, e.actor, e.body::json
    from unnest(e_plan, e_home, e_place, e_at, e_wall, e_kind, e_lease, e_actor, e_body) with ordinality
        e (plan, home, place, at_ms, wall_ms, kind, lease, actor, body, entry)
    where is_done[e.plan];
    insert into changes (namespace, vault, number, account, asset, amount, held)
    select v_namespace[e_home[c.entry]], v_vault[e_home[c.entry]], numbers[c.entry], c.account, c.asset, c.amount::numeric,
        c.held::numeric
    from unnest(c_entry, c_account, c_asset, c_amount, c_held) c (entry, account, asset, amount, held)
    where is_done[e_plan[c.entry]];
    for place in 1..cardinality(v_vault) loop
        update vaults v set last_number = v.last_number + added.count
        from (select count(*) from unnest(e_plan, e_home) e (plan, home) where e.home = place and is_done[e.plan]) added
        where v.namespace = v_namespace[place] and v.vault = v_vault[place] and added.count > 0;
    end loop;
    for place in 1..cardinality(k_kind) loop
        update quota_usage u set used = u.used + k_added[place]
        where u.namespace = k_namespace[place] and u.vault = k_vault[place] and u.kind = k_kind[place]
            and k_added[place] > 0;
    end loop;
    if cardinality(t_plan) > 0 then
        insert into assets (namespace, vault, asset, issued, retired, expired)
        select v_namespace[t.home], v_vault[t.home], t.asset, least(sum(t.issued::numeric), most),
            least(sum(t.retired::numeric), most), least(sum(t.expired::numeric), most)
        from unnest(t_plan, t_home, t_asset, t_issued, t_retired, t_expired)
            t (plan, home, asset, issued, retired, expired)
        where is_done[t.plan] group by t.home, t.asset
        on conflict (namespace, vault, asset) do update
        set issued = least(assets.issued + excluded.issued, most),
            retired = least(assets.retired + excluded.retired, most),
            expired = least(assets.expired + excluded.expired, most);
    end if;
    insert into clients (namespace, vault, client, last_sequence, owner)
    select v_namespace[s.home], v_vault[s.home], s.client, s.sequence, s.owner
    from unnest(p_home, p_client, p_sequence, p_owner) with ordinality s (home, client, sequence, owner, plan)
    where s.client is not null and is_done[s.plan]
    on conflict (namespace, vault, client) do update set last_sequence = excluded.last_sequence,
        owner = coalesce(excluded.owner, clients.owner);
    return is_done;
end
$$;

comment on function write_changes is 'Makes steps of sagas. Only Earmark calls it.';
comment on function record_entries is 'Part of write_changes.';
comment on function commit_plans is 'Commits whole plans. Only Earmark calls it.';

-- Views for people. Earmark does not read them.

create view balances as
select namespace, vault, account, asset,
    coalesce(sum(amount) filter (where lease is null), 0) as spendable_or_owed,
    coalesce(sum(amount) filter (where lease is not null), 0) as held,
    count(*) as postings
from postings
where state <> 'inactive'
group by namespace, vault, account, asset;
comment on view balances is 'Balances by account and asset.';

create view grants as
select namespace, vault, account, asset, priority, to_timestamp(expires_at_ms / 1000.0) as expires_at, sum(amount) as remaining
from postings
where priority is not null and plan is null and state <> 'inactive'
group by namespace, vault, account, asset, priority, expires_at_ms;
comment on view grants is 'The free credit of grants by account, asset, priority and expiry.';

create view plans as
select namespace, vault, account, plan, to_timestamp(expires_at_ms / 1000.0) as next_at
from postings
where plan is not null and state <> 'inactive';
comment on view plans is 'The plans of accounts and when they issue next. A plan that was removed has no terms.';

create view live_holds as
select namespace, lease, vault, account, asset, amount, limit_key, used, kept, extension, shares,
    to_timestamp(ends_at_ms / 1000.0) as ends_at, state
from postings
where lease is not null and state <> 'inactive';
comment on view live_holds is 'Live holds and their timeouts.';

create view history as
select c.namespace, c.vault, c.number, to_timestamp(e.wall_ms / 1000.0) as at, e.kind, c.account, c.asset, c.amount, c.held, e.lease, e.gate, e.body
from changes c
join entries e on e.namespace = c.namespace and e.vault = c.vault and e.number = c.number;
comment on view history is 'The history of each account.';

create view sagas_under_way as
select s.gate, s.phase, s.owner, to_timestamp(s.begun_at_ms / 1000.0) as begun_at,
    to_timestamp(o.heartbeat_at_ms / 1000.0) as owner_heartbeat_at, s.reservation_id, s.plan
from sagas s
left join owners o on o.owner = s.owner;
comment on view sagas_under_way is 'Sagas in progress, with the last heartbeat of their owners.';
