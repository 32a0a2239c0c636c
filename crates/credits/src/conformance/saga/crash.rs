//! Every saga, hit at every call.

use std::sync::Arc;
use std::time::Duration;

use super::bank::{Bank, Town, impatient, options, soon};
use super::faulty::{Faulty, Mode, When};
use super::scenario::{DEEDS, Deed, Scenario, Told, View};
use crate::store::Store;

/// A process that is woken up ends what it was at.
const SOON: Duration = Duration::from_secs(20);

/// What a deed looks like before and after, and how many calls it takes.
struct Course {
    before: View,
    /// Of a deed that is two sagas: what the first one leaves.
    between: Option<View>,
    after: View,
    calls: u64,
}

/// Does a deed without a fault.
async fn course(store: &Arc<dyn Store>, deed: Deed) -> Course {
    let (town, scenario) = (Town::new(store), Scenario::new(deed));
    let bank = town.bank().await;
    scenario.prepare(&town, &bank).await;
    let before = scenario.view(&town, &bank).await;
    let faulty = Faulty::new(Arc::clone(store));
    let hit = town.bank_on(Arc::clone(&faulty) as Arc<dyn Store>, options()).await;
    faulty.count();
    let told = scenario.act(&hit).await.expect("a store that answers");
    let calls = faulty.calls();
    let after = scenario.view(&town, &bank).await;
    let between = match deed {
        Deed::SettlesLate | Deed::HoldsAndSettles => Some(half(store, deed).await),
        _ => None,
    };
    assert_ne!(before, after, "{deed:?} is seen");
    let again = scenario.act(&hit).await.expect("a store that answers");
    assert!(scenario.is_told_again(&told, &again), "{deed:?}: {told:?}, then {again:?}");
    assert_eq!(scenario.view(&town, &bank).await, after, "{deed:?} happens once");
    is_tidy(&town, &bank).await;
    Course { before, between, after, calls }
}

/// What the first of two sagas leaves.
async fn half(store: &Arc<dyn Store>, deed: Deed) -> View {
    let (town, scenario) = (Town::new(store), Scenario::new(deed));
    let bank = town.bank().await;
    scenario.prepare(&town, &bank).await;
    scenario.half(&bank).await.expect("a store that answers");
    scenario.view(&town, &bank).await
}

impl Course {
    fn allows(&self, view: &View) -> bool {
        [Some(&self.before), self.between.as_ref(), Some(&self.after)].contains(&Some(view))
    }
}

/// Nothing is left behind, and everything adds up.
async fn is_tidy(town: &Town, bank: &Bank) {
    assert_eq!(town.store.orphans(9).await, Ok(vec![]));
    let census = town.store.count(town.home()).await.expect("a store that answers");
    assert_eq!(census.records, 0, "no saga is under way");
    for home in ["main", "eu"] {
        bank.audits(home).await;
    }
}

/// One hit at one call of one deed.
#[derive(Clone, Copy, Debug)]
struct Hit {
    deed: Deed,
    call: u64,
    when: When,
    mode: Mode,
}

/// Makes every hit there is, and counts them.
async fn enumerate<F: Future<Output = ()>>(
    store: &Arc<dyn Store>,
    modes: &[Mode],
    make: impl Fn(Hit, Arc<Course>) -> F,
) -> u64 {
    let (mut made, mut expected) = (0_u64, 0_u64);
    for deed in DEEDS {
        let course = Arc::new(course(store, deed).await);
        expected += course.calls * 2 * modes.len() as u64;
        for call in 1..=course.calls {
            for when in [When::Before, When::After] {
                for mode in modes {
                    make(Hit { deed, call, when, mode: *mode }, Arc::clone(&course)).await;
                    made += 1;
                }
            }
        }
    }
    assert_eq!(made, expected, "every call is hit on both sides");
    assert!(made >= 20 * 2 * 5, "a saga has more than a few calls: {made}");
    println!("{made} hits at {} calls", expected / 2 / modes.len() as u64);
    made
}

/// A process that is killed; another one starts later and finds what it left.
pub async fn every_saga_stopped_at_every_call_ends_in_one_of_two_ways(store: Arc<dyn Store>) {
    let make = async |hit: Hit, course: Arc<Course>| {
        let (town, scenario) = (Town::new(&store), Scenario::new(hit.deed));
        let first = town.bank().await;
        scenario.prepare(&town, &first).await;
        let faulty = Faulty::new(Arc::clone(&store));
        let killed = Arc::new(town.bank_on(Arc::clone(&faulty) as Arc<dyn Store>, options()).await);
        faulty.plan(hit.call, hit.when, hit.mode);
        let acting = Arc::clone(&killed);
        let act = tokio::spawn(async move { scenario.act(&acting).await });
        tokio::time::timeout(SOON, faulty.stopped()).await.unwrap_or_else(|_| panic!("{hit:?} was not made"));
        act.abort();
        killed.credits.abandon();
        town.fall_silent();
        let next = town.bank().await;
        let view = scenario.view(&town, &next).await;
        assert!(course.allows(&view), "{hit:?} ends in a third way: {view:#?}");
        is_tidy(&town, &next).await;
        scenario.act(&next).await.expect("a store that answers");
        assert_eq!(scenario.view(&town, &next).await, course.after, "{hit:?} and a retry");
        is_tidy(&town, &next).await;
    };
    enumerate(&store, &[Mode::Stop], make).await;
}

/// A call that fails, with and without effect, alone or with all that follow; the process lives on.
pub async fn every_saga_failed_at_every_call_ends_in_one_of_two_ways(store: Arc<dyn Store>) {
    let make = async |hit: Hit, course: Arc<Course>| {
        let (town, scenario) = (Town::new(&store), Scenario::new(hit.deed));
        let first = town.bank().await;
        scenario.prepare(&town, &first).await;
        let faulty = Faulty::new(Arc::clone(&store));
        let bank = town.bank_on(Arc::clone(&faulty) as Arc<dyn Store>, options()).await;
        faulty.plan(hit.call, hit.when, hit.mode);
        let told = scenario.act(&bank).await;
        faulty.mend();
        bank.tend().await;
        let view = scenario.view(&town, &bank).await;
        assert!(course.allows(&view), "{hit:?} ends in a third way: {view:#?}");
        let retold = scenario.act(&bank).await.expect("a store that answers");
        if let Ok(told) = &told {
            assert_eq!(view, course.after, "{hit:?} was answered");
            assert!(scenario.is_told_again(told, &retold), "{hit:?}: {told:?}, then {retold:?}");
        }
        assert_eq!(scenario.view(&town, &bank).await, course.after, "{hit:?} and a retry");
        is_tidy(&town, &bank).await;
    };
    enumerate(&store, &[Mode::Fail, Mode::Outage], make).await;
}

/// A process that stops, another that does the same, and the first wakes up too late.
pub async fn every_saga_stopped_at_every_call_is_finished_by_another_process(store: Arc<dyn Store>) {
    let make = async |hit: Hit, course: Arc<Course>| {
        let (town, scenario) = (Town::new(&store), Scenario::new(hit.deed));
        let other = town.bank_on(Arc::clone(&store), impatient()).await;
        scenario.prepare(&town, &other).await;
        let faulty = Faulty::new(Arc::clone(&store));
        let late = Arc::new(town.bank_on(Arc::clone(&faulty) as Arc<dyn Store>, options()).await);
        faulty.plan(hit.call, hit.when, hit.mode);
        let acting = Arc::clone(&late);
        let act = tokio::spawn(async move { scenario.act(&acting).await });
        tokio::time::timeout(SOON, faulty.stopped()).await.unwrap_or_else(|_| panic!("{hit:?} was not made"));
        // The other one may have to wait until nobody hears of the first any more.
        let mut told: Option<Told> = scenario.act(&other).await.ok();
        town.fall_silent();
        other.tend().await;
        if told.is_none() {
            told = Some(soon(async || scenario.act(&other).await).await.expect("a process that took over"));
        }
        assert_eq!(scenario.view(&town, &other).await, course.after, "{hit:?} and another process");
        faulty.mend();
        let late_told = tokio::time::timeout(SOON, act).await.unwrap_or_else(|_| panic!("{hit:?} hangs"));
        if let (Ok(Ok(late_told)), Some(told)) = (&late_told, &told) {
            assert!(scenario.is_told_again(told, late_told), "{hit:?}: {told:?}, then {late_told:?}");
        }
        late.tend().await;
        assert_eq!(scenario.view(&town, &other).await, course.after, "{hit:?} and a late step");
        is_tidy(&town, &other).await;
    };
    enumerate(&store, &[Mode::Stop], make).await;
}
