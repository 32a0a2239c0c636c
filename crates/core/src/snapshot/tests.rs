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

/// A Book with a lease that is live, one that is settled, and one that was denied.
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
    };
    book.apply(
        now,
        Command::PutLimit(PutLimit { namespace, definition: &definition, expected_revision: None }),
    );
    for (number, amount) in [(1, 60), (2, 30), (3, 50)] {
        let lease = LeaseId::from_parts(now, number);
        let requirements = &[Part { limit: LimitRef::Id(LimitId(0)), amount }];
        book.apply(now, Command::Reserve(Reserve { namespace, lease, wall: now, requirements }));
    }
    let lease = LeaseId::from_parts(now, 1);
    let actuals = &[Part { limit: LimitRef::Id(LimitId(0)), amount: 20 }];
    book.apply(now.plus_ms(5), Command::Complete(Complete { namespace, lease, wall: now, actuals }));
    book
}

/// A snapshot that was written once must be readable for ever. When this fails, the format has changed:
/// raise the version and keep reading the old one.
#[test]
fn a_small_book_has_the_bytes_it_always_had() {
    let bytes = whole(&mut small_book());
    assert_eq!(&bytes[..12], b"EARMARK\n\x01\0\0\0");
    assert_eq!((bytes.len(), crc32fast::hash(&bytes)), (436, 697_467_468));
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
    newer[8] = 2;
    assert_eq!(error(&newer), SnapshotError::NewerVersion { found: 2 });
    let mut damaged = bytes.clone();
    damaged[30] ^= 1;
    assert_eq!(error(&damaged), SnapshotError::Damaged { block: 0, what: "its checksum does not match" });
    let mut longer = bytes;
    longer.push(0);
    assert!(matches!(error(&longer), SnapshotError::Damaged { what: "something follows its end", .. }));
}
