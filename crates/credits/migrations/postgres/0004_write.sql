-- Takes the place of `write`, which stays for processes of versions before this one: their decisions do not say what a saga
-- takes. A process of this version finds no `write_4` in an older schema, and does nothing there.
--
-- Makes changes, one after the other, and says of each how many rows it changed. A change is an object: `do` names it,
-- the rest is what it needs; long texts are in `texts`, and `text` is where. All steps of a saga carry its ticket, and
-- change nothing unless the record has the same one and is in the phase of the step.
--
-- `vaults` are locked first, and in order: whoever writes an entry waits there, before anybody can wait for it. The record is
-- locked when its ticket comes up, so that nobody takes it over between two steps, and its phase is written back when another
-- ticket comes up: most records are deleted before. Inputs that are reserved are locked too, and become pending no earlier: most
-- are consumed before.
create function write_4(changes jsonb, texts text[], vaults_of jsonb, is_promised boolean) returns bigint[]
language plpgsql as $$
declare
    c jsonb;
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
    epoch constant timestamptz := 'epoch';
begin
    if not is_promised then
        perform set_config('synchronous_commit', 'off', true);
    end if;
    if vaults_of is not null then
        perform 1 from vaults v join jsonb_array_elements(vaults_of) k
            on v.namespace = k->>0 and v.vault = k->>1
            order by v.namespace, v.vault for no key update of v;
    end if;
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
            -- Only the gate may choose the index: rows of records that ended stay in all of them until a vacuum comes.
            select s.phase, s.gate into t_phase, t_gate from sagas s
                where s.gate = c->>'gate' and s.reservation_id is not distinct from t_rid
                    and s.owner is not distinct from t_owner for no key update;
            t_gate := coalesce(t_gate, '');
        end if;
        case c->>'do'
        when 'begin' then
            insert into sagas (gate, reservation_id, owner, phase, lease_namespace, lease, begun_at,
                client_namespace, client_vault, client, plan)
            values (c->>'gate', c->>'rid', c->>'owner', 'reserving', c->>'lease_namespace', c->>'lease',
                epoch + (c->>'begun_at')::bigint * interval '1 millisecond',
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
                -- Whoever holds a lock on a posting is about to take it, so there is no point in waiting.
                select array_agg(free.id) into ids from (
                    select p.id from postings p
                    where p.id = any (array(select jsonb_array_elements_text(c->'ids'))) and p.state = 'active'
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
                -- Nobody who closes or freezes an account may come between this look and the entry. A record that was begun in
                -- this call is seen by nobody yet, so that not even those would wait who wait for records.
                perform 1 from accounts a join jsonb_array_elements(c->'needs') k
                    on a.namespace = k->>0 and a.vault = k->>1 and a.account = k->>2
                    order by a.namespace, a.vault, a.account for share of a;
                t_is_recorded := exists (select from entries e where e.gate = t_gate);
                -- What the same call has reserved and claimed is counted already, and nobody can have changed it.
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
                then
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
        when 'create' then
            if t_gate <> '' and t_phase = 'finalizing' then
                insert into postings (id, namespace, vault, account, asset, amount, lease, limit_key, ends_at)
                select k->>0, k->>1, k->>2, k->>3, k->>4, (k->>5)::numeric, k->>6, k->>7,
                    epoch + (k->>8)::bigint * interval '1 millisecond'
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
                    and o.heard_at >= epoch + (c->>'silent_since')::bigint * interval '1 millisecond');
            get diagnostics n = row_count;
        when 'beat' then
            insert into owners (owner, heard_at)
            values (c->>'of', epoch + (c->>'at')::bigint * interval '1 millisecond')
            on conflict (owner) do update set heard_at = excluded.heard_at;
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
        when 'nothing' then
            null;
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

comment on function write_4 is 'Makes the steps of sagas; called by Earmark and by nobody else.';
comment on function write is 'The same for earlier versions of Earmark.';
