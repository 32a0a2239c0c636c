use super::*;
use crate::*;

fn whole(book: &mut Book) -> Vec<u8> {
    book.freeze().encode().flatten().collect()
}

fn restored(bytes: &[u8]) -> Result<Book, SnapshotError> {
    let mut restore = Restore::new(1);
    restore.feed(bytes)?;
    restore.finish()
}

/// A Book with a live, a settled and a denied lease.
fn small_book() -> Book {
    let mut book = Book::new(Config::default(), 0);
    let (now, namespace) = (UnixMs::new(1_700_000_000_000), NamespaceId::DEFAULT);
    let definition = Definition {
        key: "tpm".parse().unwrap(),
        kind: Kind::Rolling { window_seconds: 60 },
        capacity: 100,
        unit: "tokens".into(),
        description: "tokens per minute".into(),
        overage: Overage::Debt,
        shared: false,
        enforce: true,
    };
    book.apply(now, Command::PutLimit(PutLimit { namespace, definition: &definition, expected_revision: None }));
    for (number, amount) in [(1, 60), (2, 30), (3, 50)] {
        let lease = LeaseId::from_parts(now, number);
        let requirements = &[Part { limit: LimitRef::Id(LimitId::default()), amount }];
        book.apply(
            now,
            Command::Reserve(Reserve { namespace, lease, job: None, call: None, by_gateway: false, requirements }),
        );
    }
    let lease = LeaseId::from_parts(now, 1);
    let actuals = &[Part { limit: LimitRef::Id(LimitId::default()), amount: 20 }];
    let (claim, labels) = (LeaseClaim::default(), &crate::SettleLabels::NONE);
    book.apply(now.plus_ms(5), Command::Complete(Complete { namespace, lease, claim, actuals, labels }));
    book
}

/// A changed format must not pass unnoticed: from the first release on, it needs a new version.
#[test]
fn a_small_book_has_the_bytes_it_always_had() {
    let bytes = whole(&mut small_book());
    assert_eq!(&bytes[..12], b"EARMARK\n\x01\0\0\0");
    assert_eq!((bytes.len(), crc32fast::hash(&bytes)), (562, 653_916_415));
    assert_eq!(whole(&mut restored(&bytes).unwrap()), bytes);
}

/// The same with credit and then limits kept elsewhere.
#[test]
fn a_small_book_with_credit_elsewhere_has_the_bytes_it_always_had() {
    let mut book = small_book();
    let now = UnixMs::new(1_700_000_001_000);
    book.apply(now, Command::SetExternal(ExternalParts { limits: false, credit: true }.into()));
    let terms = CreditTerms {
        timeout_seconds: 30,
        vault: "main".parse().unwrap(),
        account: "acme".parse().unwrap(),
        asset: "usd".parse().unwrap(),
        revenue: "revenue".parse().unwrap(),
        on_timeout: Default::default(),
    };
    let namespace = NamespaceId::DEFAULT;
    let definition =
        Definition { overage: Overage::Deny, ..Definition::new("usd".parse().unwrap(), Kind::Credit(terms), 0) };
    book.apply(now, Command::PutLimit(PutLimit { namespace, definition: &definition, expected_revision: None }));
    let job = "job".parse().unwrap();
    for number in [4, 5] {
        let lease = LeaseId::from_parts(now, number);
        let requirements = [(0, 1), (1, 9)]
            .map(|(id, amount)| Part { limit: LimitRef::Id(LimitId { slot: id, generation: 0 }), amount });
        book.apply(
            now,
            Command::Reserve(Reserve {
                namespace,
                lease,
                job: (number == 5).then_some(&job),
                call: None,
                by_gateway: false,
                requirements: &requirements,
            }),
        );
    }
    book.apply(now, Command::SetExternal(ExternalParts { limits: true, credit: true }.into()));
    book.apply(now, Command::Release(Release { namespace, lease: LeaseId::from_parts(now, 5) }));
    let key = "tpm".parse().unwrap();
    book.apply(now, Command::DeleteLimit(DeleteLimit { namespace, key: &key, expected_revision: None }));
    let bytes = whole(&mut book);
    assert_eq!((bytes.len(), crc32fast::hash(&bytes)), (808, 1_379_234_202));
    assert_eq!(whole(&mut restored(&bytes).unwrap()), bytes);
    // The number of the ledger is told where limits are, and nowhere else.
    book.apply(now, Command::SetExternal(ExternalSetup { parts: book.external_parts(), ledger: Some(7) }));
    let numbered = whole(&mut book);
    assert_eq!((numbered.len(), restored(&numbered).unwrap().external_setup().ledger), (bytes.len() + 16, Some(7)));
}

/// The same for a key made and another revoked.
#[test]
fn a_book_with_keys_has_the_bytes_it_always_had() {
    let mut book = Book::new(Config::default(), 0);
    let now = UnixMs::new(1_700_000_000_000);
    let key = |id: &str, client: Option<&str>| CreateKey {
        id: id.parse().unwrap(),
        secret: SecretHash::from_bytes([7; 32]),
        name: "billing".parse().unwrap(),
        role: Role::Admin,
        namespace: "default".parse().unwrap(),
        client: client.map(|client| client.parse().unwrap()),
        labels: crate::Labels::default(),
        may_set: crate::MaySet::default(),
        valid_seconds: client.map(|_| 60),
        is_first: false,
        actor: "system:bootstrap".parse().unwrap(),
    };
    book.apply(now, Command::CreateKey(&key("k1", None)));
    book.apply(now, Command::CreateKey(&key("k2", Some("c"))));
    let revoke = RevokeKey { id: "k2".parse().unwrap(), namespace: None, actor: "client:k1".parse().unwrap() };
    book.apply(now.plus_ms(5), Command::RevokeKey(&revoke));
    let bytes = whole(&mut book);
    assert_eq!((bytes.len(), crc32fast::hash(&bytes)), (547, 4_062_508_161));
    assert_eq!(whole(&mut restored(&bytes).unwrap()), bytes);
}

#[test]
fn what_is_no_snapshot_is_told_from_one_that_is_damaged_newer_or_cut_off() {
    let bytes = whole(&mut Book::new(Config::default(), 0));
    let error = |bytes: &[u8]| restored(bytes).map(drop).unwrap_err();
    assert_eq!(error(b"{\"limits\": []}"), SnapshotError::NotASnapshot);
    assert_eq!(error(b"PK"), SnapshotError::NotASnapshot);
    assert_eq!(error(b""), SnapshotError::Truncated { blocks: 0 });
    assert_eq!(error(&bytes[..40]), SnapshotError::Truncated { blocks: 0 });
    let mut newer = bytes.clone();
    newer[8] = 4;
    assert_eq!(error(&newer), SnapshotError::OtherVersion { found: 4 });
    let mut damaged = bytes.clone();
    damaged[30] ^= 1;
    assert_eq!(error(&damaged), SnapshotError::Damaged { block: 0, what: "its checksum does not match" });
    let mut longer = bytes;
    longer.push(0);
    assert!(matches!(error(&longer), SnapshotError::Damaged { what: "something follows its end", .. }));
}

#[test]
fn a_restore_that_failed_stays_failed() {
    let bytes = whole(&mut small_book());
    let mut damaged = bytes.clone();
    damaged[30] ^= 1;
    let mut restore = Restore::new(1);
    let error = restore.feed(&damaged).unwrap_err();
    assert_eq!(restore.feed(&bytes), Err(error.clone()));
    assert_eq!(restore.finish().map(drop), Err(error));
}

mod forged {
    //! Snapshots with correct checksums that no Book writes.

    use super::super::block::{self, Kind as Block};
    use super::super::records::{BookRecord, LeaseRecord, put_limit, put_tombstone};
    use super::*;
    use crate::limits::{Ending, Limit, LimitSlot, PartKind, Phase, Reservation, Tombstone};
    use crate::wire::Put;

    const NOW: UnixMs = UnixMs::new(1_700_000_000_000);

    struct Forgery {
        sweep: u32,
        limit: Limit,
        reservation: Reservation,
        tombstone: Tombstone,
    }

    fn definition() -> Definition {
        Definition::new("tpm".parse().unwrap(), Kind::Rolling { window_seconds: 60 }, 100)
    }

    fn bytes(forgery: &Forgery) -> Vec<u8> {
        let (lease, namespace) = (LeaseId::from_parts(NOW, 1), NamespaceId::DEFAULT);
        let book = BookRecord {
            config: Config::default(),
            time: Some(NOW),
            forgotten_before: NOW,
            external: ExternalSetup::default(),
            revision: 1,
            sweep: LimitSlot(forgery.sweep),
            expiry: Default::default(),
        };
        let lease = LeaseRecord { namespace, lease, reserved_at: NOW };
        let mut bytes = block::header();
        let mut before = 0;
        let mut add = |kind, fill: &dyn Fn(&mut Vec<u8>)| {
            let mut block = block::open();
            fill(&mut block);
            before = block::close(&mut block, kind, before);
            bytes.extend(block);
        };
        add(Block::Book, &|out| book.put(out));
        add(Block::Namespaces, &|out| out.put_text("default"));
        add(Block::Vaults, &|out| {
            out.put_u32(0);
            out.put_u16(0);
            out.put_text("main");
            out.put_len(0);
        });
        add(Block::Accounts, &|out| {
            out.put_u32(0);
            out.put_text("revenue");
            out.put_u8(1);
            out.put_u8(1);
            out.put_len(0);
        });
        add(Block::Limits, &|out| put_limit(out, &forgery.limit, &definition(), 0));
        add(Block::Leases, &|out| lease.put(out, &[forgery.reservation], false));
        add(Block::Tombstones, &|out| put_tombstone(out, &forgery.tombstone));
        add(Block::End, &|out| {
            [1, 1, 0, 1].into_iter().for_each(|count| out.put_u64(count));
            out.put_u32(1);
            [1, 0].into_iter().for_each(|count| out.put_u64(count));
            out.put_u32(0);
        });
        bytes
    }

    /// The decoder's complaint about an otherwise valid snapshot with one change.
    fn says(change: impl FnOnce(&mut Forgery)) -> Option<&'static str> {
        let resolved = LeaseId::from_parts(NOW, 2);
        let mut forgery = Forgery {
            sweep: 1,
            limit: Limit { revision: 1, ..Limit::of(&definition()) },
            reservation: Reservation::new(LimitSlot(0), PartKind::Rolling, 60, 7),
            tombstone: Tombstone::new(NamespaceId::DEFAULT, resolved, Ending::Marked, NOW),
        };
        change(&mut forgery);
        match restored(&bytes(&forgery)) {
            Ok(_) => None,
            Err(SnapshotError::Damaged { what, .. }) => Some(what),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused_though_its_checksums_are_right() {
        assert_eq!(says(|_| {}), None);
        let limit = Some("a limit contradicts itself");
        assert_eq!(says(|f| f.limit.revision = 0), limit);
        assert_eq!(says(|f| f.limit.denials = 65), limit);
        let ahead = Some("limits are doubled, in no namespace, or changed in the future");
        assert_eq!(says(|f| f.limit.revision = 2), ahead);
        assert_eq!(says(|f| f.sweep = 2), Some("the sweep of limits is beyond the last one"));
        assert_eq!(says(|f| f.limit.capacity = 99), limit);
        assert_eq!(says(|f| f.limit.phase = Phase::Decreasing), limit);
        assert_eq!(says(|f| f.limit.phase = Phase::Deleted), limit);
        let held = |limit, kind, seconds, amount| {
            says(|f| f.reservation = Reservation::new(LimitSlot(limit), kind, seconds, amount))
        };
        assert_eq!(held(1, PartKind::Rolling, 60, 7), Some("a lease holds a limit that is not there"));
        assert_eq!(held(0, PartKind::Concurrency, 60, 7), Some("a lease holds a limit of another kind"));
        assert_eq!(held(0, PartKind::Rolling, 60, 101), Some("a limit holds more than it has"));
        let too_long = Some("a reservation is held for too short or too long");
        assert_eq!(held(0, PartKind::Rolling, 0, 7), too_long);
        assert_eq!(held(0, PartKind::Rolling, HOLD_SECONDS_MAX + 1, 7), too_long);
        assert!(held(0, PartKind::Rolling, 60, 0).is_some());
        let resolved = Some("a resolved lease contradicts itself");
        assert_eq!(says(|f| f.tombstone.fingerprint = 1), resolved);
        assert_eq!(says(|f| f.tombstone.limited_by = 1), resolved);
        let denied = |rank| {
            move |f: &mut Forgery| {
                f.tombstone.ending = Ending::Denied;
                f.tombstone.limited_by = rank;
            }
        };
        assert_eq!((says(denied(31)), says(denied(32))), (None, resolved));
        assert!(says(|f| f.tombstone.resolved_at = NOW.plus_ms(1)).is_some());
        assert!(says(|f| f.tombstone.namespace = NamespaceId(1)).is_some());
        let same = LeaseId::from_parts(NOW, 1);
        assert!(says(|f| f.tombstone.id = same).is_some());
    }
}
