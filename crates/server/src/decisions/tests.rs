use earmark_admission::{
    AppliedUsage, LocalBook, LocalOptions, MemoryRecords, RECORDS_BYTES_MIN, RecordBounds, RecordSegment, StoredRecord,
};

use super::record::{Record, decode, encode_repeats};
use super::*;
use crate::decisions::query::DecisionQuery;

fn key(text: &str) -> LimitKey {
    LimitKey::parse_qualified(text).unwrap()
}

struct Example {
    namespace: NamespaceName,
    actor: Actor,
    job: JobId,
    attributes: Attributes,
}

impl Example {
    fn new() -> Example {
        Example {
            namespace: NamespaceName::new("team").unwrap(),
            actor: Actor::new("client:web").unwrap(),
            job: JobId::new("job-1").unwrap(),
            attributes: Attributes::new([("model", "gpt-4o"), ("user", "ü 1")]).unwrap(),
        }
    }

    fn decision<'a>(&'a self, limits: &'a [(&'a LimitKey, u64)]) -> Decision<'a> {
        Decision {
            outcome: Outcome::Denied,
            namespace: &self.namespace,
            actor: &self.actor,
            lease: LeaseId::from_parts(UnixMs::new(1_700_000_000_000), 7),
            job: Some(&self.job),
            attributes: Some(&self.attributes),
            limits,
        }
    }

    fn query(&self, page_size: usize) -> DecisionQuery {
        DecisionQuery {
            namespace: self.namespace.clone(),
            key: None,
            actor: None,
            job: None,
            outcome: None,
            since: UnixMs::default(),
            until: UnixMs::MAX,
            after: u64::MAX,
            page_size,
        }
    }
}

#[test]
fn a_record_is_read_as_it_was_written_and_damage_is_not_a_record() {
    let example = Example::new();
    let (own, foreign) = (key("a:rpm"), key("!default:b"));
    let limits = [(&own, 5), (&foreign, 6)];
    let usage = AppliedUsage { available: Some(1), capacity: Some(u64::MAX) };
    let bytes = encode(&example.decision(&limits), &[usage, usage]);
    let at = UnixMs::new(1_700_000_000_123);
    let Some(Record::Decision(read)) = decode(at, &bytes) else { panic!("not a decision") };
    let limit =
        |key: &LimitKey, asked, available, capacity| LoggedLimit { key: key.clone(), asked, available, capacity };
    let expected = LoggedDecision {
        at,
        outcome: Outcome::Denied,
        namespace: example.namespace.clone(),
        actor: example.actor.clone(),
        lease: LeaseId::from_parts(UnixMs::new(1_700_000_000_000), 7),
        job: Some(example.job.clone()),
        attributes: vec![("model".into(), "gpt-4o".into()), ("user".into(), "ü 1".into())],
        limits: vec![limit(&own, Some(5), Some(1), Some(u64::MAX)), limit(&foreign, None, None, None)],
        repeated: 0,
    };
    assert_eq!(*read, expected);
    for cut in 0..bytes.len() {
        assert_eq!(decode(at, &bytes[..cut]), None, "{cut}");
    }
    assert_eq!(decode(at, &[&bytes[..], &[0]].concat()), None);
    assert_eq!(decode(at, &encode_repeats(7, 9)), Some(Record::Repeats { of: 7, count: 9 }));
    assert_eq!(decode(at, &[9, 1, 2]), None);
}

async fn log(store: Arc<dyn RecordStore>) -> DecisionLog {
    let backend: Arc<dyn Backend> = Arc::new(LocalBook::open(LocalOptions::default()).await.unwrap());
    let counters = DecisionCounters { dropped: Counter::noop(), expired_leases: Counter::noop() };
    let feeds = Feeds::new(metrics::Gauge::noop(), Counter::noop());
    DecisionLog::start(Some(store), &backend, feeds, counters).unwrap()
}

fn bounds() -> RecordBounds {
    RecordBounds { bytes: RECORDS_BYTES_MIN, age_ms: 60_000 }
}

/// Repeats are in the segment of their record, also when segments are closed while they are counted, and none is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn repeats_survive_the_change_of_segments() {
    let store = Arc::new(MemoryRecords::new(RecordBounds { bytes: RECORDS_BYTES_MIN * 16, age_ms: 60_000 }));
    let log = Arc::new(log(store.clone()).await);
    let keys: Arc<Vec<LimitKey>> =
        Arc::new((0..200).map(|number| key(&format!("{number}:{}", "k".repeat(200)))).collect());
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let (log, keys) = (Arc::clone(&log), Arc::clone(&keys));
            tokio::spawn(async move {
                let example = Example::new();
                for round in 0..500 {
                    for key in keys.iter() {
                        log.record(&example.decision(&[(key, 1)]));
                    }
                    // Over two seconds in all: each second keeps ten records of a key, and three seconds fill a segment.
                    if round % 20 == 0 {
                        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let example = Example::new();
    let (mut total, mut after, mut segments) = (0, u64::MAX, 0);
    while let Some(page) = log.read(DecisionQuery { after, ..example.query(1_000) }).await.unwrap() {
        total += page.decisions.iter().map(|decision| 1 + decision.repeated).sum::<u64>();
        match page.next {
            Some(next) => after = next,
            None => break,
        }
    }
    let mut before = u64::MAX;
    while let Some(segment) = store.segment_before(before).unwrap() {
        segments += 1;
        before = segment.first;
    }
    assert!(segments > 1, "{segments}");
    assert_eq!(total, 4 * 500 * 200);
}

#[derive(Debug)]
struct Stuck(MemoryRecords, std::sync::Mutex<()>);

impl RecordStore for Stuck {
    fn bounds(&self) -> RecordBounds {
        self.0.bounds()
    }
    fn next_number(&self) -> u64 {
        1
    }
    fn append(&self, records: &[StoredRecord]) -> Result<bool, String> {
        drop(self.1.lock());
        self.0.append(records)
    }
    fn rotate(&self, now: UnixMs) -> Result<(), String> {
        self.0.rotate(now)
    }
    fn segment_before(&self, number: u64) -> Result<Option<RecordSegment>, String> {
        self.0.segment_before(number)
    }
}

/// A disk that does not answer slows no request down: records are dropped and the queue stays bounded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_hangs_makes_no_request_wait() {
    let store = Arc::new(Stuck(MemoryRecords::new(bounds()), std::sync::Mutex::default()));
    let log = log(store.clone()).await;
    let example = Example::new();
    let keys: Vec<LimitKey> = (0..20_000).map(|number| key(&format!("k{number}"))).collect();
    let took = {
        let _stuck = store.1.lock().unwrap();
        let started = std::time::Instant::now();
        keys.iter().for_each(|key| log.record(&example.decision(&[(key, 1)])));
        started.elapsed()
    };
    assert!(took < std::time::Duration::from_secs(5), "{took:?}");
    let mut kept = 0;
    let mut before = u64::MAX;
    log.read(example.query(1)).await.unwrap();
    while let Some(segment) = store.segment_before(before).unwrap() {
        kept += segment.records.len();
        before = segment.first;
    }
    assert!((1..20_000).contains(&kept), "{kept}");
    log.stop().await;
    // Stopped: nothing is recorded, nothing waits.
    log.record(&example.decision(&[(&keys[0], 1)]));
    log.stop().await;
    assert_eq!(log.read(example.query(1)).await.unwrap().unwrap().decisions.len(), 1);
}
