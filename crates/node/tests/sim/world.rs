//! One simulation, from its seed to its digest.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, UNIX_EPOCH};

use earmark_admission::Cluster;
use earmark_node::seed_randomness;
use turmoil::{Builder, Sim};

use crate::caller::{Caller, CallerContext, WRITERS};
use crate::faults::{Faults, LATENCY, Profile};
use crate::finish;
use crate::host::{BEGIN_US, Host, Size, TIMING, name};
use crate::keyed::REPLICAS;
use crate::oracle::{Oracle, fold};
use crate::support::disk::SimDisk;
use crate::support::random::Random;

const TICK: Duration = Duration::from_millis(2);
/// Maximum simulated time, to detect hangs.
const LONGEST: Duration = Duration::from_secs(1_200);
const LEASE_CALLERS: usize = 6;
const READERS: usize = 3;

/// Hash of a simulation. Equal digests mean equal runs.
#[derive(Debug, PartialEq, Eq)]
pub struct Digest {
    /// Hash of all requests, answers and their times.
    pub history: u64,
    /// Hash of all files of each node.
    pub disks: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Callers send requests and faults happen.
    Run,
    /// The callers are done.
    Over,
    /// All faults are repaired and the nodes are compared.
    Finish,
}

/// How long a leader may use a reading of a peer's wall clock, and the time to apply its decision.
const WALLS_AGE: Duration = Duration::from_secs(15);

struct World<'a> {
    seed: u64,
    sim: Sim<'a>,
    hosts: Rc<Vec<Host>>,
    oracle: Rc<RefCell<Oracle>>,
    steps: u64,
    /// When each host last had no process, or one without log time.
    unknowing: Vec<Duration>,
    /// Wall clock errors of all nodes in the last seconds, in milliseconds.
    walls: Vec<(Duration, Vec<i64>)>,
}

pub fn simulate(seed: u64, nodes: u64, steps: u64) -> Digest {
    let mut random = Random::new(seed.wrapping_mul(31).wrapping_add(nodes));
    let profile = Profile::of(&mut random);
    let size = Size {
        segment_bytes: random.pick(&[4 << 10, 64 << 10, 1 << 20]),
        cache_bytes: random.pick(&[1 << 10, 1 << 20]),
        snapshot_bytes: random.pick(&[8 << 10, 40 << 10, 1 << 30]),
        keep_entries: random.pick(&[5, 100, 1_000]),
    };
    let mut world = World::new(seed, nodes, steps, size, &mut random);
    world.oracle.borrow_mut().is_clock_wrong = profile.jump_ms > 0;
    world.oracle.borrow_mut().note(&format!("{profile:?} {size:?}"));
    world.begin();
    world.run(Faults::new(profile, Random::new(random.next())), &mut random);
    world.digest()
}

/// Kills the leader right after an acknowledgement, restarts it, and reads through followers that do not know the
/// commit yet.
pub fn start_leader_again(seed: u64) {
    let mut random = Random::new(seed);
    let size = Size { segment_bytes: 1 << 20, cache_bytes: 1 << 20, snapshot_bytes: 1 << 30, keep_entries: 100 };
    let mut world = World::new(seed, 5, 1, size, &mut random);
    world.begin();
    let context = world.context();
    let phase = Rc::new(Cell::new(None));
    let its_phase = Rc::clone(&phase);
    let caller = move |name: String| Caller { context: context.clone(), name, random: random.clone() };
    world.sim.client("callers", async move {
        caller("founder".into()).set_up().await;
        its_phase.set(Some(Phase::Over));
        let mut tasks = Vec::new();
        for node in 1..5 {
            let mut caller = caller(format!("r{node}"));
            tasks.push(tokio::task::spawn_local(async move {
                while !caller.read_balance(node, 0).await {
                    tokio::time::sleep(TICK).await;
                }
            }));
        }
        for task in tasks {
            task.await?;
        }
        Ok(())
    });
    while phase.get().is_none() {
        world.step();
    }
    world.hosts[0].disk.kill();
    world.sim.crash(name(1));
    world.hosts[0].bury();
    world.sim.bounce(name(1));
    while !world.step() {
        world.look();
    }
    world.look();
}

/// A node panics in the middle of a step, so the replay command is printed on unwind.
impl Drop for World<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let World { seed, steps, .. } = self;
            let count = if self.hosts.len() == 3 { "three" } else { "five" };
            eprintln!(
                "again: EARMARK_SEED={seed} EARMARK_SIM_STEPS={steps} cargo test -p earmark-node --test sim \
                 {count}_nodes"
            );
        }
    }
}

impl World<'_> {
    fn new(seed: u64, nodes: u64, steps: u64, size: Size, random: &mut Random) -> Self {
        seed_randomness(seed);
        let disk = |random: &mut Random| SimDisk::new().with_latency(random.next(), Duration::from_millis(4));
        let hosts: Vec<_> = (1..=nodes).map(|id| Host::new(id, disk(random), size)).collect();
        let sim = Builder::new()
            .rng_seed(random.next())
            .epoch(UNIX_EPOCH + Duration::from_micros(BEGIN_US))
            .tick_duration(TICK)
            .simulation_duration(LONGEST)
            .min_message_latency(Duration::ZERO)
            .max_message_latency(LATENCY)
            .tcp_capacity(4_096)
            .enable_random_order()
            .build();
        let oracle = Rc::new(RefCell::new(Oracle::new(WRITERS)));
        let unknowing = vec![Duration::ZERO; hosts.len()];
        World { seed, sim, hosts: Rc::new(hosts), oracle, steps, unknowing, walls: Vec::new() }
    }

    fn context(&self) -> CallerContext {
        CallerContext {
            hosts: Rc::clone(&self.hosts),
            oracle: Rc::clone(&self.oracle),
            steps_max: self.steps,
            leases: Rc::default(),
        }
    }

    fn fail(&self, why: &str) -> ! {
        panic!("{}\nseed {} of {} nodes: {why}", self.oracle.borrow().recent(), self.seed, self.hosts.len());
    }

    /// Starts the nodes one by one until all vote.
    fn begin(&mut self) {
        for place in 0..self.hosts.len() {
            let host = self.hosts[place].clone();
            self.sim.host(name(host.id), move || host.clone().run());
            let host = self.hosts[place].clone();
            self.until(|| {
                host.node().is_some_and(|node| {
                    let status = node.status();
                    let voters = status.members.iter().filter(|member| member.is_voter).count();
                    status.leader.is_some() && voters == place + 1
                })
            });
        }
    }

    fn until(&mut self, mut happened: impl FnMut() -> bool) {
        let start = self.sim.elapsed();
        while !happened() {
            self.step();
            if self.sim.elapsed() > start + Duration::from_secs(60) {
                self.fail("the cluster does not come up");
            }
        }
    }

    /// One tick of the simulation. Returns whether the callers are done.
    fn step(&mut self) -> bool {
        match self.sim.step() {
            Ok(is_over) => is_over,
            Err(error) => self.fail(&error.to_string()),
        }
    }

    fn run(&mut self, mut faults: Faults, random: &mut Random) {
        let phase = Rc::new(Cell::new(None));
        let context = self.context();
        let seed = random.next();
        self.sim.client("callers", call(context, Random::new(seed), Rc::clone(&phase)));
        let mut last = String::new();
        loop {
            let said = match phase.get() {
                Some(Phase::Run) => faults.step(&mut self.sim, &self.hosts),
                Some(Phase::Over) => {
                    phase.set(Some(Phase::Finish));
                    faults.end(&mut self.sim, &self.hosts)
                }
                Some(Phase::Finish) | None => Vec::new(),
            };
            for text in said {
                self.oracle.borrow_mut().note(&format!("at {} ms: {text}", self.sim.elapsed().as_millis()));
            }
            self.heed_clocks();
            let is_over = self.step();
            self.trace(&mut last);
            self.look();
            if is_over {
                return;
            }
        }
    }

    /// A node without log time may use its wall clock, but only while a majority has none. A leader may briefly act
    /// on an outdated reply of a follower. Log time may also jump to a wall clock that a majority has passed.
    fn heed_clocks(&mut self) {
        let now = self.sim.elapsed();
        let offs: Vec<i64> = self.hosts.iter().map(|host| host.wall_off_us.load(Ordering::Relaxed) / 1_000).collect();
        self.walls.retain(|(seen, _)| now - *seen <= WALLS_AGE);
        if self.walls.last().is_none_or(|(_, last)| *last != offs) {
            self.walls.push((now, offs.clone()));
        }
        let latest = |host: usize| self.walls.iter().map(|(_, offs)| offs[host]).max().max(Some(offs[host]));
        let mut latest: Vec<i64> = (0..offs.len()).filter_map(latest).collect();
        latest.sort_unstable_by(|a, b| b.cmp(a));
        let passed = latest[offs.len() / 2];
        let mut oracle = self.oracle.borrow_mut();
        oracle.ahead_ms = oracle.ahead_ms.max(u64::try_from(passed).unwrap_or(0));
        drop(oracle);
        for (host, unknowing) in self.hosts.iter().zip(&mut self.unknowing) {
            if !host.node().is_some_and(|node| node.knows_time()) {
                *unknowing = now;
            }
        }
        let is_recent = |unknowing: &Duration| now - *unknowing <= TIMING.election * 2;
        let recent = self.hosts.iter().zip(&self.unknowing).filter(|(_, unknowing)| is_recent(unknowing));
        let off_ms = recent.map(|(host, _)| host.wall_off_us.load(Ordering::Relaxed) / 1_000);
        let off_ms: Vec<i64> = off_ms.collect();
        if off_ms.len() * 2 > self.hosts.len() {
            let most = off_ms.into_iter().max().unwrap_or(0);
            let mut oracle = self.oracle.borrow_mut();
            oracle.ahead_ms = oracle.ahead_ms.max(u64::try_from(most).unwrap_or(0));
        }
    }

    /// Prints the position of all nodes when it changes.
    fn trace(&self, last: &mut String) {
        if self.oracle.borrow().is_loud {
            let place = |host: &Host| {
                host.node().map(|node| {
                    let status = node.status();
                    let (end, applied) = (status.last_log_index, status.applied_index);
                    (status.term, status.leader, end, applied, status.snapshot_index)
                })
            };
            let now = format!("{:?}", self.hosts.iter().map(place).collect::<Vec<_>>());
            if now != *last {
                println!("{:>14} ms {now}", self.sim.elapsed().as_millis());
                *last = now;
            }
        }
    }

    /// Fails the test if something is wrong.
    fn look(&self) {
        if let Some(why) = self.oracle.borrow().wrong.first() {
            self.fail(why);
        }
        for host in self.hosts.iter().filter(|host| !host.disk.is_faulty()) {
            if let Some(why) = host.node().and_then(|node| node.failure().get().map(str::to_owned)) {
                self.fail(&format!("n{} has stopped: {why}", host.id));
            }
        }
    }

    fn digest(&self) -> Digest {
        let of = |host: &Host| {
            let disk = &host.disk;
            let fold_file = |digest, path: String| fold(fold(digest, path.as_bytes()), &disk.bytes(&path));
            disk.paths().into_iter().fold(0, fold_file)
        };
        Digest { history: self.oracle.borrow().digest(), disks: self.hosts.iter().map(of).collect() }
    }
}

/// All caller activity, from setup to the final comparison.
async fn call(context: CallerContext, mut random: Random, phase: Rc<Cell<Option<Phase>>>) -> turmoil::Result {
    let mut caller = |name: String| Caller { context: context.clone(), name, random: Random::new(random.next()) };
    let mut first = caller("founder".into());
    first.set_up().await;
    phase.set(Some(Phase::Run));
    let mut tasks = Vec::new();
    for place in 0..LEASE_CALLERS {
        tasks.push(tokio::task::spawn_local(caller(format!("c{place}")).hold_leases()));
    }
    for place in 0..WRITERS {
        tasks.push(tokio::task::spawn_local(caller(format!("w{place}")).write_on(place)));
    }
    for place in 0..READERS {
        tasks.push(tokio::task::spawn_local(caller(format!("r{place}")).read_on()));
    }
    for place in 0..REPLICAS {
        tasks.push(tokio::task::spawn_local(caller(format!("hook{place}")).deliver_events()));
    }
    tasks.push(tokio::task::spawn_local(caller("planner".into()).change_plans()));
    tasks.push(tokio::task::spawn_local(caller("admin".into()).change_limits()));
    tasks.push(tokio::task::spawn_local(caller("churn".into()).churn_limits()));
    tasks.push(tokio::task::spawn_local(caller("derive".into()).derive_limits()));
    for task in tasks {
        task.await?;
    }
    phase.set(Some(Phase::Over));
    while phase.get() != Some(Phase::Finish) {
        tokio::time::sleep(TICK).await;
    }
    finish::compare(&mut first).await;
    Ok(())
}
