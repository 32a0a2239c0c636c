-- For people. Earmark does not read these.

create view balances as
select namespace, vault, account, asset,
    coalesce(sum(amount) filter (where lease is null), 0) as spendable_or_owed,
    coalesce(sum(amount) filter (where lease is not null), 0) as held,
    count(*) as postings
from postings
where state <> 'inactive'
group by namespace, vault, account, asset;
comment on view balances is 'What each account has of each asset.';

create view live_holds as
select namespace, lease, vault, account, asset, amount, limit_key, ends_at, state
from postings
where lease is not null and state <> 'inactive';
comment on view live_holds is 'What leases hold, and until when.';

create view history as
select c.namespace, c.vault, c.number, e.at, e.kind, c.account, c.asset, c.amount, c.held, e.lease, e.gate, e.body
from changes c
join entries e on e.namespace = c.namespace and e.vault = c.vault and e.number = c.number;
comment on view history is 'What happened to each account, entry by entry.';

create view sagas_under_way as
select s.gate, s.phase, s.owner, s.begun_at, o.heard_at as owner_heard_at, s.reservation_id, s.plan
from sagas s
left join owners o on o.owner = s.owner;
comment on view sagas_under_way is 'What is about to happen, and whether who drives it lives.';
