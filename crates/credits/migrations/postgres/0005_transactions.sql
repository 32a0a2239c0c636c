-- So that transactions of all vaults can be listed in an order in which nothing ever appears before what was read: commits
-- appear in another order than they began, and a page shows only what is older than all that are still under way. A column
-- without a default would stay empty where processes of earlier versions still write.
alter table entries add column tx xid8 not null default '0';
comment on column entries.tx is 'The transaction of PostgreSQL that added it. Of entries from before this column, and of a copy that was put back on another server, a number that keeps their order in time.';

-- A hundred entries at a time share a number, and more only if there are not numbers enough below that of this transaction.
create function order_transactions() returns void language sql as $$
    update entries e
    set tx = (1 + p.place / greatest(100, 1 + p.found / (pg_current_xact_id()::text::bigint - 1)))::text::xid8
    from (select namespace, vault, number, count(*) over () as found,
            row_number() over (order by at, namespace, vault, number) - 1 as place
        from entries where kind = 'transaction') p
    where e.namespace = p.namespace and e.vault = p.vault and e.number = p.number
$$;
comment on function order_transactions is 'Numbers all transactions anew, in order of time. Called by Earmark when it finds numbers that this server has not reached.';

select order_transactions();
alter table entries alter column tx set default pg_current_xact_id();
create index entries_transactions on entries (tx) where kind = 'transaction';
