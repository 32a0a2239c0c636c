//! A full disk that gets room again.

use std::io::{BufRead, Write, stdin};
use std::time::Duration;

use crate::process::{self, report};
use crate::support::{account, fill, namespace, usd, vault, write};
use earmark_admission::{Credits, WriteAnswer, Writer};
use earmark_core::Operation;
use earmark_credits::Options;
use sqlx::sqlite::SqliteConnection;
use sqlx::{Connection, Row};

/// Limits every file to 1 MiB. The write-ahead log reaches that after a few dozen writes. Without the signal a write
/// fails as on a full disk.
const SMALL_DISK: &str = "trap '' XFSZ; ulimit -f 2048; exec \"$0\" \"$@\"";
const WRITES_MAX: u64 = 10_000;
/// Failures in a row after which no write of any size fits.
const FAILURES: usize = 5;

fn transfer() -> Vec<Operation> {
    let (from, to, memo) = (account(0), account(1), String::new());
    vec![Operation::Transfer { from, to, asset: usd(), amount: 1, memo }]
}

/// Writes until the disk is full, then again after the parent reports room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the test below starts it"]
async fn writer() {
    let Some((store, _)) = process::assignment() else { return };
    let options = Options { deadline: Duration::from_secs(2), ..Options::default() };
    let credits = process::start(&store, options).await;
    fill(&credits, 2).await;
    let (mut sequence, mut failures) = (1, Vec::new());
    // A write that changes fewer pages may still fit.
    while failures.len() < FAILURES {
        assert!(sequence < WRITES_MAX, "a disk that becomes full");
        match credits.write(Writer::system(), write("writer", sequence, transfer())).await {
            Ok(WriteAnswer::Committed(_)) => {
                sequence += 1;
                failures.clear();
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) => failures.push(error),
        }
    }
    report(&format!("full {}", failures[0]));
    stdin().lock().lines().next().expect("a word").expect("a word");
    let mut written = credits.write(Writer::system(), write("writer", sequence, transfer())).await;
    for _ in 0..10 {
        if written.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        written = credits.write(Writer::system(), write("writer", sequence, transfer())).await;
    }
    assert!(matches!(written, Ok(WriteAnswer::Committed(_))), "{written:?}");
    credits.maintain().await.expect("a store that answers");
    assert_eq!(credits.ready(), Ok(()));
    let audit = credits.audit(namespace(), vault()).await.expect("a store that answers");
    assert!(audit.balanced, "{audit:?}");
    report(&format!("written {sequence}"));
    credits.shut_down().await;
}

/// After a commit failed on a full disk, SQLite had ended the transaction but the driver had not. It refused to begin
/// another, and all credit failed until a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_stops_credit_only_for_as_long_as_it_is_full() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("credits.db");
    let mut child = process::spawn_by(SMALL_DISK, "full::writer", &format!("sqlite:{}", path.display()));
    let (mut output, input) =
        (process::lines_of(child.stdout.take().expect("an output")), child.stdin.take().expect("an output"));
    let full = output.find(|line| line.starts_with("full ")).expect("a disk that becomes full");
    println!("{full}");
    // The checkpoint moves the log into the database file and truncates it.
    let mut other = SqliteConnection::connect(&format!("sqlite:{}", path.display())).await.expect("a file");
    let checkpoint = sqlx::query("pragma wal_checkpoint(truncate)").fetch_one(&mut other).await;
    assert_eq!(checkpoint.expect("a checkpoint").get::<i64, _>(0), 0, "no reader blocked it");
    other.close().await.expect("a close");
    let mut input = input;
    input.write_all(b"room\n").expect("a process that listens");
    let rest: Vec<String> = output.collect();
    assert!(rest.iter().any(|line| line.starts_with("written ")), "{rest:?}");
    assert!(child.wait().expect("a process that ends").success());
}
