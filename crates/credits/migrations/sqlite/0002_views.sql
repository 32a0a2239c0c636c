-- For people. Earmark does not read these. Sums of amounts beyond 64 bits are rounded here, and exact in Earmark.

create view balances as
select namespace, vault, account, asset,
    sum(case when lease is null then cast(amount as numeric) else 0 end) as spendable_or_owed,
    sum(case when lease is not null then cast(amount as numeric) else 0 end) as held,
    count(*) as postings
from postings
where state <> 'inactive'
group by namespace, vault, account, asset;

create view live_holds as
select namespace, lease, vault, account, asset, amount, limit_key,
    strftime('%Y-%m-%dT%H:%M:%fZ', ends_at_ms / 1000.0, 'unixepoch') as ends_at, state
from postings
where lease is not null and state <> 'inactive';

create view history as
select c.namespace, c.vault, c.number, strftime('%Y-%m-%dT%H:%M:%fZ', e.at_ms / 1000.0, 'unixepoch') as at,
    e.kind, c.account, c.asset, c.amount, c.held, e.lease, e.gate, e.body
from changes c
join entries e on e.namespace = c.namespace and e.vault = c.vault and e.number = c.number;

create view sagas_under_way as
select s.gate, s.phase, s.owner, strftime('%Y-%m-%dT%H:%M:%fZ', s.begun_at_ms / 1000.0, 'unixepoch') as begun_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', o.heard_at_ms / 1000.0, 'unixepoch') as owner_heard_at, s.reservation_id, s.plan
from sagas s
left join owners o on o.owner = s.owner;
