use earmark_core::{
    Actor, AssetName, ClientId, Command, Complete, Config, CreditTerms, Definition, GrantTerms, Kind, LeaseId,
    LimitKey, LimitRef, NamespaceId, Operation, Outcome, Overdraft, Part, PutLimit, Reserve, ReserveOutcome,
    Transaction, TxId, VaultName, Write,
};

use super::*;
use crate::credit_lists::EntryQuery;
use crate::writes::{EntryKind, EntryView};

const NOW: UnixMs = UnixMs::new(1_700_000_000_000);

fn account(name: &str) -> AccountName {
    AccountName::new(name).unwrap()
}

fn issue(amount: u128, memo: &str) -> Operation {
    let asset = AssetName::new("usd").unwrap();
    Operation::Issue { account: account("acme"), asset, amount, memo: memo.into(), terms: GrantTerms::PLAIN }
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
        shop.write(vec![Operation::OpenAccount { account: account("acme"), overdraft: Overdraft::Deny, plan: None }]);
        shop
    }

    fn write(&mut self, operations: Vec<Operation>) {
        self.sequence += 1;
        let write = Write {
            namespace: NamespaceId::DEFAULT,
            vault: Some(VaultName::new(VaultName::MAIN).unwrap()),
            id: earmark_core::WriteId::Sequence { client: ClientId::new("test").unwrap(), sequence: self.sequence },
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
        let page = self.page("acme", after, page_size);
        (page.entries.iter().map(|entry| entry.changes[0].amount).collect(), page.next)
    }

    fn page(&self, name: &str, after: u64, page_size: usize) -> EntryPage {
        let id = self.book.account(VaultId::MAIN, &account(name)).unwrap().id;
        self.history.entries(&self.book, (id, &account(name)), EntryQuery::oldest_first(after, page_size))
    }

    /// Puts a credit limit `usd` on `acme` with revenue account `payee`.
    fn put_usd(&mut self, payee: &str) {
        let terms = CreditTerms {
            timeout_seconds: 60,
            vault: VaultName::new(VaultName::MAIN).unwrap(),
            account: account("acme"),
            asset: AssetName::new("usd").unwrap(),
            revenue: account(payee),
            on_timeout: Default::default(),
        };
        let definition = Definition::new(LimitKey::new("usd").unwrap(), Kind::Credit(terms), 0);
        let namespace = NamespaceId::DEFAULT;
        let put = PutLimit { namespace, definition: &definition, expected_revision: None };
        self.book.apply(NOW, Command::PutLimit(put));
    }

    fn hold(&mut self, number: u128, amount: u64) -> LeaseId {
        let lease = LeaseId::from_parts(NOW, number);
        let requirements = [Part { limit: LimitRef::Key(LimitKey::new("usd").unwrap()), amount }];
        let reserve = Reserve {
            namespace: NamespaceId::DEFAULT,
            lease,
            job: None,
            call: None,
            by_gateway: false,
            requirements: &requirements,
        };
        let outcome = self.book.apply(NOW, Command::Reserve(reserve));
        assert!(matches!(outcome, Outcome::Reserve(ReserveOutcome::Created { reserved_at: NOW, .. })));
        self.history.extend(self.book.drain_journal());
        lease
    }

    fn settle(&mut self, lease: LeaseId, amount: u64) {
        let actuals = [Part { limit: LimitRef::Key(LimitKey::new("usd").unwrap()), amount }];
        let complete = Complete {
            namespace: NamespaceId::DEFAULT,
            lease,
            claim: earmark_core::LeaseClaim::default(),
            actuals: &actuals,
            labels: &earmark_core::SettleLabels::NONE,
        };
        self.book.apply(NOW, Command::Complete(complete));
        self.history.extend(self.book.drain_journal());
    }
}

/// The kind of each entry, with its change of the available and of the held amount.
fn told(page: &EntryPage) -> Vec<(&'static str, i128, i128)> {
    let tell = |entry: &EntryView| {
        let kind = match entry.what {
            EntryKind::Transaction { .. } => "transaction",
            EntryKind::Hold(_) => "hold",
            EntryKind::Settle { .. } => "settle",
            EntryKind::Release(_) => "release",
            EntryKind::Expire(_) => "expire",
            EntryKind::Plan { .. } => "plan",
        };
        (kind, entry.changes[0].amount, entry.changes[0].held)
    };
    page.entries.iter().map(tell).collect()
}

fn transaction(record: &mut JournalRecord) -> &mut Transaction {
    match record {
        JournalRecord::Transaction(transaction) => transaction,
        other => panic!("{other:?}"),
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
        damage(transaction(&mut shop.history.records[1]));
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

/// Pages used to be bounded by entry count only. 300 transactions with 256 memos each made a page of 20 MB (118 MB as
/// JSON), copied while every reserve waited for the Book. gRPC clients accept 4 MiB by default.
#[test]
fn a_page_ends_when_its_memos_are_long_and_the_next_goes_on() {
    let mut shop = Shop::open();
    for amount in 1..=40 {
        let long = "m".repeat(256);
        let mut operations = vec![issue(1, &long); 255];
        operations.push(issue(amount, &long));
        shop.write(operations);
    }
    let (first, next) = shop.entries(0, 1_000);
    assert_eq!((first.len(), next), (16, Some(17)));
    let (second, next) = shop.entries(17, 1_000);
    assert_eq!((second.len(), next), (16, Some(33)));
    let (third, next) = shop.entries(33, 1_000);
    assert_eq!((third.len(), next), (8, None));
    let all = [first, second, third].concat();
    assert_eq!(all, (1..=40).map(|amount| 255 + amount).collect::<Vec<i128>>());
    // A page that ends at the byte limit has a successor only if entries follow.
    assert_eq!(shop.entries(25, 16), (all[24..].to_vec(), None));
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
    assert!(message.contains("no longer reaches back to the start: of its oldest 2 records"), "{message}");
    // The remaining records are compared together with the sums of the dropped ones.
    transaction(&mut shop.history.records[0]).changes[0].amount += 1;
    assert!(!shop.audit().balanced);
}

#[test]
fn holds_settlements_and_releases_are_entries_of_their_accounts() {
    let mut shop = Shop::open();
    shop.write(vec![issue(100, "")]);
    shop.put_usd("revenue");
    let (first, second) = (shop.hold(1, 40), shop.hold(2, 30));
    shop.settle(first, 25);
    shop.settle(second, 0);
    let third = shop.hold(3, 10);
    shop.settle(third, 90);
    let page = shop.page("acme", 0, 99);
    assert_eq!(
        told(&page),
        [
            ("transaction", 100, 0),
            ("hold", -40, 40),
            ("hold", -30, 30),
            ("settle", 15, -40),
            ("release", 30, -30),
            ("hold", -10, 10),
            ("settle", -80, -10),
        ]
    );
    match &page.entries[6].what {
        EntryKind::Settle { hold, paid, debt, uncollected, .. } => {
            assert_eq!((hold.lease, hold.limit.as_str(), hold.amount), (third, "usd", 10));
            assert_eq!((*paid, *debt, *uncollected), (90, 15, 0));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(told(&shop.page("revenue", 0, 99)), [("settle", 25, 0), ("settle", 90, 0)]);
    assert_eq!((shop.audit().balanced, shop.audit().message), (true, None));
    // Reading page by page gives the same entries.
    let (mut after, mut pages) = (0, Vec::new());
    loop {
        let page = shop.page("acme", after, 3);
        pages.extend(told(&page));
        match page.next {
            Some(next) => after = next,
            None => break,
        }
    }
    assert_eq!(pages, told(&shop.page("acme", 0, 99)));
    // The same holds once the oldest records are dropped.
    (0..5).for_each(|_| shop.history.drop_oldest());
    assert_eq!(told(&shop.page("acme", 0, 99)).len(), 3);
    assert!(shop.audit().balanced);
}

#[test]
fn an_account_that_pays_itself_sees_one_entry_that_adds_up() {
    let mut shop = Shop::open();
    shop.write(vec![issue(100, "")]);
    shop.put_usd("acme");
    let lease = shop.hold(1, 40);
    shop.settle(lease, 25);
    let told = told(&shop.page("acme", 0, 9));
    assert_eq!(told, [("transaction", 100, 0), ("hold", -40, 40), ("settle", 40, -40)]);
    assert!(shop.audit().balanced);
}

#[test]
fn the_audit_finds_a_settlement_that_was_changed() {
    let mut shop = Shop::open();
    shop.write(vec![issue(100, "")]);
    shop.put_usd("revenue");
    let lease = shop.hold(1, 40);
    shop.settle(lease, 25);
    assert!(shop.audit().balanced);
    match shop.history.records.back_mut() {
        Some(JournalRecord::Settle(settle)) => settle.paid = 26,
        other => panic!("{other:?}"),
    }
    let message = shop.audit().message.unwrap();
    assert!(message.contains("the journal adds up to"), "{message}");
}

#[test]
fn the_journal_is_bounded_by_records_and_by_what_is_in_them() {
    let mut shop = Shop::open();
    shop.write(vec![issue(1, "")]);
    let record = transaction(&mut shop.history.records[1]).clone();
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
