use earmark_core::{Actor, ClientId, Command, Config, NamespaceId, Overdraft, TxId, VaultName, Write};

use super::*;

const NOW: UnixMs = UnixMs::new(1_700_000_000_000);

fn account(name: &str) -> AccountName {
    AccountName::new(name).unwrap()
}

fn issue(amount: u128, memo: &str) -> Operation {
    let asset = AssetName::new("usd").unwrap();
    Operation::Issue { account: account("acme"), asset, amount, memo: memo.into() }
}

struct Shop {
    book: Book,
    history: History,
    sequence: u64,
}

impl Shop {
    fn open() -> Shop {
        let book = Book::new(Config::default(), 0);
        let mut shop = Shop { book, history: History::default(), sequence: 0 };
        shop.write(vec![Operation::OpenAccount { account: account("acme"), overdraft: Overdraft::Deny }]);
        shop
    }

    fn write(&mut self, operations: Vec<Operation>) {
        self.sequence += 1;
        let write = Write {
            namespace: NamespaceId::DEFAULT,
            vault: Some(VaultName::new(VaultName::MAIN).unwrap()),
            client: ClientId::new("test").unwrap(),
            sequence: self.sequence,
            operations,
            tx_id: TxId(u128::from(self.sequence)),
            log_index: self.sequence,
            actor: Actor::new("system:test").unwrap(),
        };
        self.book.apply(NOW, Command::Write(&write));
        self.history.extend(self.book.drain_journal());
    }

    fn audit(&self) -> Audit {
        self.history.audit(&self.book, VaultId::MAIN, NOW)
    }

    fn entries(&self, after: u64, page_size: usize) -> (Vec<i128>, Option<u64>) {
        let id = self.book.account(VaultId::MAIN, &account("acme")).unwrap().id;
        let page = self.history.entries(&self.book, (id, &account("acme")), after, page_size);
        (page.entries.iter().map(|entry| entry.changes[0].1).collect(), page.next)
    }
}

#[test]
fn the_audit_finds_planted_damage() {
    let mut shop = Shop::open();
    shop.write(vec![issue(5, "")]);
    assert_eq!((shop.audit().balanced, shop.audit().message), (true, None));
    for damage in [
        (|record: &mut Transaction| record.changes[0].amount = 6) as fn(&mut Transaction),
        |record| record.operations[0] = issue(6, ""),
        |record| record.changes.clear(),
        |record| record.operations.clear(),
    ] {
        let whole = shop.history.records[1].clone();
        damage(&mut shop.history.records[1]);
        let audit = shop.audit();
        assert!(!audit.balanced, "{audit:?}");
        assert!(audit.message.is_some());
        shop.history.records[1] = whole;
    }
    assert!(shop.audit().balanced);
}

#[test]
fn the_entries_of_an_account_come_page_by_page() {
    let mut shop = Shop::open();
    for amount in 1..=5 {
        shop.write(vec![issue(amount, "")]);
    }
    assert_eq!(shop.entries(0, 2), (vec![1, 2], Some(3)));
    assert_eq!(shop.entries(3, 2), (vec![3, 4], Some(5)));
    assert_eq!(shop.entries(5, 2), (vec![5], None));
    assert_eq!(shop.entries(6, 2), (vec![], None));
    assert_eq!(shop.entries(0, 5), (vec![1, 2, 3, 4, 5], None));
}

#[test]
fn a_journal_that_was_cut_short_says_so_and_forgets_the_oldest() {
    let mut shop = Shop::open();
    for amount in 1..=3 {
        shop.write(vec![issue(amount, "")]);
    }
    shop.history.drop_oldest();
    shop.history.drop_oldest();
    assert_eq!(shop.entries(0, 9), (vec![2, 3], None));
    let audit = shop.audit();
    assert!(audit.balanced);
    let message = audit.message.unwrap();
    assert!(message.contains("no longer reaches back to the start"), "{message}");
}

#[test]
fn the_journal_is_bounded_by_records_and_by_what_is_in_them() {
    let mut shop = Shop::open();
    shop.write(vec![issue(1, "")]);
    let record = shop.history.records[1].clone();
    let many = vec![JournalRecord::Transaction(record.clone()); RECORDS_MAX + 1];
    shop.history.extend(many);
    assert_eq!(shop.history.records.len(), RECORDS_MAX);
    let large = Transaction { operations: vec![issue(1, ""); 255], ..record };
    shop.history.extend(vec![JournalRecord::Transaction(large); PARTS_MAX / 256 + 1]);
    assert!(shop.history.parts <= PARTS_MAX);
    assert_eq!(shop.history.records.iter().map(parts).sum::<usize>(), shop.history.parts);
    let kept: usize = shop.history.of_account.values().map(VecDeque::len).sum();
    assert_eq!(kept, shop.history.records.len());
}
