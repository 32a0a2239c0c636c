-- So that transactions of all vaults can be listed in the order in which they came. A trigger adds them, for processes of
-- earlier versions may still write.
create table transactions (
    place integer primary key,
    namespace text not null,
    vault text not null,
    number integer not null
) strict;

insert into transactions (namespace, vault, number)
select namespace, vault, number from entries where kind = 'transaction' order by at_ms, namespace, vault, number;

create trigger transactions_come after insert on entries when new.kind = 'transaction'
begin
    insert into transactions (namespace, vault, number) values (new.namespace, new.vault, new.number);
end;
