-- Commits sagas whose steps all came in one call, the first to the last, and that claim no account: nearly all. Says of
-- each whether it happened; one that did not has changed nothing, but that the row of a vault may be there. What a saga would have
-- written and deleted again, its record above all, is never written.
--
-- Columns of the same letter belong together: v the vaults, in order, s the sagas, i what they consume, in order of id, n the accounts
-- that they need, in order, o what they create, e their entries, c what these change, t what is issued and retired. `saga`, `home` and
-- `entry` are places, counted from 1. No two sagas have the same gate, client or input.
--
-- The vaults are locked first, as in `write_4`, until the commit: nobody else writes entries or counts clients there. What else is
-- looked at below is locked for itself, or is a gate: those of leases may be written in several vaults, and if two write one at the same
-- moment the index of entries lets one of them in. The other is tried again, and then sees the entry.
--
-- Nothing is joined to a table here: while a table is thought to be empty PostgreSQL may choose to go through all of it, and keep to
-- that when it has grown.
create function commit_sagas(
    v_namespace text[], v_vault text[],
    s_gate text[], s_rid text[], s_inputs int[], s_needs int[], s_home int[], s_client text[], s_sequence bigint[],
    i_saga int[], i_id text[],
    n_saga int[], n_home int[], n_account text[], n_spends boolean[],
    o_saga int[], o_id text[], o_home int[], o_account text[], o_asset text[], o_amount text[], o_lease text[], o_limit text[],
    o_ends bigint[],
    e_saga int[], e_home int[], e_place int[], e_at bigint[], e_kind text[], e_lease text[], e_body text[],
    c_entry int[], c_account text[], c_asset text[], c_amount text[], c_held text[],
    t_saga int[], t_home int[], t_asset text[], t_issued text[], t_retired text[]
) returns boolean[]
language plpgsql as $$
declare
    is_done boolean[];
    lasts bigint[];
    numbers bigint[];
    epoch constant timestamptz := 'epoch';
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
    -- Whoever holds a lock on a posting is about to take it, so there is no point in waiting. Nobody who closes or freezes an
    -- account may come between this look and the entry, and whoever is about to is waited for.
    with free as materialized (
        select i_saga[width_bucket(p.id, i_id)] as saga from postings p
        where p.id = any (i_id) and p.state = 'active' order by p.id for no key update skip locked
    ), fit as materialized (
        select n.saga from unnest(n_saga, n_home, n_account, n_spends) n (saga, home, account, spends)
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
        order by s.saga) into is_done
    from unnest(s_gate, s_inputs, s_needs, s_home, s_client, s_sequence) with ordinality
        s (gate, inputs, needs, home, client, sequence, saga)
    left join (select free.saga, count(*) from free group by free.saga) f on f.saga = s.saga
    left join (select fit.saga, count(*) from fit group by fit.saga) m on m.saga = s.saga;
    if not true = any (is_done) then
        return is_done;
    end if;
    select array_agg(n.number order by n.entry) into numbers from (
        select e.entry, lasts[e.home] + count(*) filter (where is_done[e.saga])
            over (partition by e.home order by e.entry) as number
        from unnest(e_saga, e_home) with ordinality e (saga, home, entry)) n;
    update postings p set state = 'inactive', reservation_id = s_rid[i_saga[width_bucket(p.id, i_id)]]
    where p.id = any (i_id) and is_done[i_saga[width_bucket(p.id, i_id)]];
    insert into postings (id, namespace, vault, account, asset, amount, lease, limit_key, ends_at)
    select o.id, v_namespace[o.home], v_vault[o.home], o.account, o.asset, o.amount::numeric, o.lease, o.limit_key,
        epoch + o.ends_at * interval '1 millisecond'
    from unnest(o_saga, o_id, o_home, o_account, o_asset, o_amount, o_lease, o_limit, o_ends)
        o (saga, id, home, account, asset, amount, lease, limit_key, ends_at)
    where is_done[o.saga];
    insert into entries (namespace, vault, number, gate, place, at, kind, lease, body)
    select v_namespace[e.home], v_vault[e.home], numbers[e.entry], s_gate[e.saga], e.place,
        epoch + e.at * interval '1 millisecond', e.kind, e.lease, e.body::json
    from unnest(e_saga, e_home, e_place, e_at, e_kind, e_lease, e_body) with ordinality
        e (saga, home, place, at, kind, lease, body, entry)
    where is_done[e.saga];
    insert into changes (namespace, vault, number, account, asset, amount, held)
    select v_namespace[e_home[c.entry]], v_vault[e_home[c.entry]], numbers[c.entry], c.account, c.asset, c.amount::numeric,
        c.held::numeric
    from unnest(c_entry, c_account, c_asset, c_amount, c_held) c (entry, account, asset, amount, held)
    where is_done[e_saga[c.entry]];
    for place in 1..cardinality(v_vault) loop
        update vaults v set last_number = v.last_number + added.count
        from (select count(*) from unnest(e_saga, e_home) e (saga, home) where e.home = place and is_done[e.saga]) added
        where v.namespace = v_namespace[place] and v.vault = v_vault[place] and added.count > 0;
    end loop;
    if cardinality(t_saga) > 0 then
        insert into assets (namespace, vault, asset, issued, retired)
        select v_namespace[t.home], v_vault[t.home], t.asset, least(sum(t.issued::numeric), most),
            least(sum(t.retired::numeric), most)
        from unnest(t_saga, t_home, t_asset, t_issued, t_retired) t (saga, home, asset, issued, retired)
        where is_done[t.saga] group by t.home, t.asset
        on conflict (namespace, vault, asset) do update
        set issued = least(assets.issued + excluded.issued, most),
            retired = least(assets.retired + excluded.retired, most);
    end if;
    insert into clients (namespace, vault, client, last_sequence)
    select v_namespace[s.home], v_vault[s.home], s.client, s.sequence
    from unnest(s_home, s_client, s_sequence) with ordinality s (home, client, sequence, saga)
    where s.client is not null and is_done[s.saga]
    on conflict (namespace, vault, client) do update set last_sequence = excluded.last_sequence;
    return is_done;
end
$$;

comment on function commit_sagas is 'Makes all steps of sagas at once; called by Earmark and by nobody else.';
