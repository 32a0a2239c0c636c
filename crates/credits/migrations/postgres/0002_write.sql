-- Makes changes, one after the other, and says of each how many rows it changed. A change is an object: `do` names it,
-- the rest is what it needs; long texts are in `texts`, and `text` is where. All steps of a saga carry its ticket, and
-- change nothing unless the record has the same one and is in the phase of the step.
--
-- The record is locked when its ticket comes up, so that nobody takes it over between two steps, and its phase is written
-- back when another ticket comes up: most records are deleted before. `vaults` are locked first and in order where there are
-- several, or two calls could wait for each other.
create function write(changes jsonb, texts text[], vaults_of jsonb, is_promised boolean) returns bigint[]
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
    t_is_new boolean := false;
    t_is_recorded boolean;
    t_is_dirty boolean := false;
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
            t_gate := '';
            t_is_dirty := false;
        end if;
        if t_gate = '' and c ? 'gate' and c->>'do' not in ('begin', 'take_over') then
            t_rid := c->>'rid';
            t_owner := c->>'owner';
            t_is_new := false;
            t_is_recorded := null;
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
                t_is_new := true;
                t_is_recorded := null;
            end if;
        when 'reserve' then
            if t_gate <> '' and t_phase = 'reserving' then
                -- Whoever holds a lock on a posting is about to take it, so there is no point in waiting.
                with free as (
                    select id from postings
                    where id = any (array(select jsonb_array_elements_text(c->'ids'))) and state = 'active'
                    order by id for update skip locked)
                update postings p set state = 'pending', reservation_id = t_rid from free where p.id = free.id;
                get diagnostics n = row_count;
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
            end if;
        when 'decide' then
            if t_gate <> '' and t_phase = 'reserving' then
                if t_is_new then
                    -- Nobody else sees the record yet, so nobody who closes an account would wait for it.
                    perform 1 from accounts a join jsonb_array_elements(c->'needs') k
                        on a.namespace = k->>0 and a.vault = k->>1 and a.account = k->>2
                        order by a.namespace, a.vault, a.account for share of a;
                end if;
                t_is_recorded := exists (select from entries e where e.gate = t_gate);
                if not t_is_recorded
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
                update postings p set state = 'inactive'
                where p.id = any (array(select jsonb_array_elements_text(c->'ids')))
                    and p.state = 'pending' and p.reservation_id = t_rid;
                get diagnostics n = row_count;
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
    return counts;
end
$$;

-- Inserts the entries of a saga under the next numbers of their vaults, with all that is counted with them.
create function record_entries(c jsonb, texts text[], saga text) returns bigint
language plpgsql as $$
declare
    k jsonb;
    n bigint;
    last bigint;
    lasts jsonb := '{}';
    epoch constant timestamptz := 'epoch';
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
        -- No name holds a slash.
        lasts := lasts || jsonb_build_object((k->>0) || '/' || (k->>1), last);
    end loop;
    insert into entries (namespace, vault, number, gate, place, at, kind, lease, body)
    select e->>0, e->>1, (lasts->>((e->>0) || '/' || (e->>1)))::bigint - (e->>2)::bigint, saga, (e->>3)::int,
        epoch + (e->>4)::bigint * interval '1 millisecond', e->>5, e->>6, texts[(e->>7)::int]::json
    from jsonb_array_elements(c->'entries') e;
    get diagnostics n = row_count;
    if c ? 'changes' then
        insert into changes (namespace, vault, number, account, asset, amount, held)
        select e->>0, e->>1, (lasts->>((e->>0) || '/' || (e->>1)))::bigint - (e->>2)::bigint, e->>3, e->>4,
            (e->>5)::numeric, (e->>6)::numeric
        from jsonb_array_elements(c->'changes') e;
    end if;
    if c ? 'totals' then
        insert into assets (namespace, vault, asset, issued, retired)
        select e->>0, e->>1, e->>2, (e->>3)::numeric, (e->>4)::numeric
        from jsonb_array_elements(c->'totals') e order by 1, 2, 3
        on conflict (namespace, vault, asset) do update
        set issued = least(assets.issued + excluded.issued, most),
            retired = least(assets.retired + excluded.retired, most);
    end if;
    if c ? 'client' then
        insert into clients (namespace, vault, client, last_sequence)
        values (c->>'client_namespace', c->>'client_vault', c->>'client', (c->>'sequence')::bigint)
        on conflict (namespace, vault, client) do update set last_sequence = excluded.last_sequence;
    end if;
    return n;
end
$$;

comment on function write is 'Makes the steps of sagas; called by Earmark and by nobody else.';
comment on function record_entries is 'A part of write.';
