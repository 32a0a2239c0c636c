//! The examples do what they say.

#[path = "../../examples/killed_writer.rs"]
mod killed_writer;
#[path = "../../examples/out_of_credit.rs"]
mod out_of_credit;
#[path = "../../examples/worker_pool.rs"]
mod worker_pool;

use crate::support::soon;

#[tokio::test]
async fn the_worker_pool_is_never_refused_by_its_provider() {
    let report = worker_pool::run().await.unwrap();
    assert_eq!((report.done, report.refused), (200, 0));
    assert!((1..=5).contains(&report.most_at_once), "{} at once", report.most_at_once);
    // Only the actual usage counts.
    let used = |number: u64| format!("Question number {number}: what is the answer?").len() / 4 + 2;
    assert_eq!(report.tokens, (0..200).map(|number| used(number) as u64).sum::<u64>());
}

#[tokio::test]
async fn the_tenant_spends_what_it_has_and_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let report = out_of_credit::run(folder.path()).await.unwrap();
    // A call holds 300 and costs 250: 1,000 pay for 3 calls, and 750 for 2 more.
    assert_eq!((report.before, report.after), (3, 2));
    assert_eq!((report.left, report.earned), (250, 1_250));
}

#[test]
fn the_killed_writer_writes_every_number_once() {
    let name = "examples::the_killed_writer_writes_every_number_once";
    if let Some((kills, available)) = killed_writer::run(&[name, "--exact"]).unwrap() {
        assert_eq!(available, killed_writer::EXPECTED);
        assert_eq!(kills, killed_writer::KILLS);
    }
}

/// The writer was killed after a commit and before it noted the result. On restart it found the commit and continued
/// without a note. Killed again after the next write, it took that write for the older one and repeated the first.
#[tokio::test]
async fn the_killed_writer_notes_the_outcome_of_an_unfinished_write() {
    let folder = tempfile::tempdir().unwrap();
    let (url, client) = killed_writer::serve(folder.path()).await.unwrap();
    let options = killed_writer::options(folder.path()).unwrap();
    let mut killed = earmark_client::Writer::open(&client, options, soon()).await.unwrap();
    killed.write(killed_writer::issue(1).unwrap(), soon()).await.unwrap();
    drop(killed);
    killed_writer::write(&url, folder.path(), 1).await.unwrap();
    assert_eq!(killed_writer::done(folder.path()), 1);
    killed_writer::write(&url, folder.path(), 3).await.unwrap();
    let balances = client.balances(&"main".parse().unwrap(), &"acme".parse().unwrap(), soon()).await.unwrap();
    assert_eq!(balances[0].available, 1 + 2 + 3);
}
