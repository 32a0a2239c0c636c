//! Clusters that form themselves: founders under faults, a founder that loses its data folder, and nodes that come later.
//! Whatever happens, there is one cluster.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use earmark_admission::{Cluster as _, ClusterStatus};
use earmark_node::{Node, NodeOptions, seed_randomness};
use tokio::sync::mpsc;
use tokio::time::Instant;
use turmoil::{Builder, Sim};

use crate::faults::LATENCY;
use crate::host::{BEGIN_US, Job, Process, SimNet, SimTime, TIMING, address, name};
use crate::support::client::{MINUTE, TestClient, definition};
use crate::support::disk::SimDisk;
use crate::support::random::Random;

const TICK: Duration = Duration::from_millis(5);
/// Simulated time within which a healthy network must reach a goal.
const PATIENCE: Duration = Duration::from_secs(120);
const FOUNDERS: [u64; 3] = [1, 2, 3];

/// A machine: its disk and its process.
#[derive(Clone)]
struct Machine {
    id: u64,
    disk: Arc<Mutex<SimDisk>>,
    /// The value of `--bootstrap`.
    bootstrap: Arc<Mutex<Vec<u64>>>,
    process: Arc<Mutex<Option<Process>>>,
}

impl Machine {
    async fn run(self) -> turmoil::Result {
        let disk = self.disk.lock().unwrap().clone();
        let bootstrap = self.bootstrap.lock().unwrap().iter().map(|id| address(*id)).collect();
        let options = NodeOptions {
            peer_listen: Some(address(self.id)),
            bootstrap,
            timing: TIMING,
            time: Arc::new(SimTime { start: Instant::now(), wall_off_us: Arc::default() }),
            net: Arc::new(SimNet),
            ..NodeOptions::new(disk.mount())
        };
        let node = match Node::open(options).await {
            Ok(node) => Arc::new(node),
            Err(error) if disk.is_faulty() => {
                tracing::info!("{}: {error}", name(self.id));
                return std::future::pending().await;
            }
            Err(error) => return Err(format!("{} cannot start: {error}", name(self.id)).into()),
        };
        let (sender, mut jobs) = mpsc::unbounded_channel::<Job>();
        *self.process.lock().unwrap() = Some(Process { node: Arc::clone(&node), jobs: sender });
        while let Some(job) = jobs.recv().await {
            tokio::spawn(job(Arc::clone(&node)));
        }
        Ok(())
    }

    /// The status of its node, once the node has started.
    fn status(&self) -> Option<ClusterStatus> {
        self.process.lock().unwrap().as_ref().map(|process| process.node.status())
    }
}

struct World<'a> {
    seed: u64,
    sim: Sim<'a>,
    random: Random,
    machines: Vec<Machine>,
    /// Clusters that ever had a leader.
    clusters: BTreeSet<u128>,
}

impl World<'_> {
    fn new(seed: u64) -> World<'static> {
        seed_randomness(seed);
        let mut random = Random::new(seed.wrapping_mul(97).wrapping_add(13));
        let sim = Builder::new()
            .rng_seed(random.next())
            .epoch(UNIX_EPOCH + Duration::from_micros(BEGIN_US))
            .tick_duration(TICK)
            .simulation_duration(Duration::from_secs(1_200))
            .min_message_latency(Duration::ZERO)
            .max_message_latency(LATENCY)
            .tcp_capacity(4_096)
            .enable_random_order()
            .build();
        World { seed, sim, random, machines: Vec::new(), clusters: BTreeSet::new() }
    }

    /// Starts a machine with an empty disk.
    fn start(&mut self, id: u64, bootstrap: &[u64]) {
        let disk = SimDisk::new().with_latency(self.random.next(), Duration::from_millis(4));
        let (disk, bootstrap) = (Arc::new(Mutex::new(disk)), Arc::new(Mutex::new(bootstrap.to_vec())));
        let machine = Machine { id, disk, bootstrap, process: Arc::default() };
        self.machines.push(machine.clone());
        self.sim.host(name(id), move || machine.clone().run());
    }

    fn machine(&self, id: u64) -> &Machine {
        self.machines.iter().find(|machine| machine.id == id).unwrap()
    }

    /// Ends a process. With `power`, its disk also loses writes that were not synced; with `volume`, everything.
    fn crash(&mut self, id: u64, power: bool, volume: bool) {
        let (machine, seed) = (self.machine(id).clone(), self.random.next());
        let mut disk = machine.disk.lock().unwrap();
        if power {
            disk.crash(seed);
        } else {
            disk.kill();
        }
        if volume {
            *disk = SimDisk::new().with_latency(seed, Duration::from_millis(4));
        }
        drop(disk);
        self.sim.crash(name(id));
        *machine.process.lock().unwrap() = None;
    }

    fn partition(&mut self, one: &[u64], other: &[u64]) {
        for (a, b) in one.iter().flat_map(|a| other.iter().map(move |b| (*a, *b))) {
            self.sim.partition(name(a), name(b));
        }
    }

    fn heal(&mut self) {
        let ids: Vec<u64> = self.machines.iter().map(|machine| machine.id).collect();
        for (place, a) in ids.iter().enumerate() {
            for b in &ids[place + 1..] {
                self.sim.repair(name(*a), name(*b));
            }
        }
    }

    fn step(&mut self) {
        if let Err(error) = self.sim.step() {
            self.fail(&error.to_string());
        }
        for status in self.machines.iter().filter_map(Machine::status) {
            if status.leader.is_some() {
                self.clusters.insert(status.cluster);
            }
        }
        if self.clusters.len() > 1 {
            self.fail("there are two clusters");
        }
    }

    fn run_for(&mut self, time: Duration) {
        let end = self.sim.elapsed() + time;
        while self.sim.elapsed() < end {
            self.step();
        }
    }

    fn until(&mut self, what: &str, happened: impl Fn(&Self) -> bool) {
        let end = self.sim.elapsed() + PATIENCE;
        while !happened(self) {
            self.step();
            if self.sim.elapsed() > end {
                let states: Vec<_> = self.machines.iter().map(Machine::status).collect();
                self.fail(&format!("not met: {what}: {states:?}"));
            }
        }
    }

    fn fail(&self, why: &str) -> ! {
        let seed = self.seed;
        panic!("seed {seed}: {why}\nagain: EARMARK_SEED={seed} cargo test -p earmark-node --test sim founding");
    }

    /// Whether these machines are the voters of one cluster, and it has a leader.
    fn is_formed_by(&self, ids: &[u64]) -> bool {
        let names: BTreeSet<String> = ids.iter().map(|id| address(*id)).collect();
        ids.iter().all(|id| {
            let Some(status) = self.machine(*id).status() else { return false };
            let voters: BTreeSet<String> =
                status.members.iter().filter(|member| member.is_voter).map(|member| member.address.clone()).collect();
            status.leader.is_some() && voters == names && status.members.len() == ids.len()
        })
    }

    /// Puts a limit through a node, and waits until it is acknowledged.
    fn put(&mut self, id: u64, key: &'static str) {
        let done = Arc::new(Mutex::new(false));
        let said = Arc::clone(&done);
        let job: Job = Box::new(move |node| {
            Box::pin(async move {
                TestClient(node.backend()).put(definition(key, MINUTE, 10)).await;
                *said.lock().unwrap() = true;
            })
        });
        assert!(self.machine(id).process.lock().unwrap().as_ref().unwrap().jobs.send(job).is_ok());
        self.until(key, |_| *done.lock().unwrap());
    }

    /// Founders start at different times, and are cut off or die meanwhile.
    fn found(&mut self, faults: u64) {
        let mut order = FOUNDERS;
        self.random.shuffle(&mut order);
        for id in order {
            self.start(id, &FOUNDERS);
            let pause = self.random.pick(&[0, 20, 300, 3_000]);
            self.run_for(Duration::from_millis(pause));
        }
        for _ in 0..faults {
            let [a, b] = [self.random.pick(&FOUNDERS), self.random.pick(&FOUNDERS)];
            match self.random.below(3) {
                0 if a != b => self.partition(&[a], &[b]),
                1 => self.heal(),
                _ => {
                    let power = self.random.chance(50);
                    self.crash(a, power, false);
                    let pause = self.random.below(400);
                    self.run_for(Duration::from_millis(pause));
                    self.sim.bounce(name(a));
                }
            }
            let pause = self.random.below(500);
            self.run_for(Duration::from_millis(pause));
        }
        self.heal();
    }
}

/// Founders that die, lose power and are cut off found one cluster with all of them, and keep what was acknowledged.
pub fn founders_under_faults(seed: u64) {
    let mut world = World::new(seed);
    world.found(seed % 12);
    world.until("the founders form a cluster", |world| world.is_formed_by(&FOUNDERS));
    world.put(1 + seed % 3, "first");
    let statuses: Vec<ClusterStatus> = FOUNDERS.iter().map(|id| world.machine(*id).status().unwrap()).collect();
    let members: Vec<(u64, String)> =
        statuses[0].members.iter().map(|member| (member.node, member.address.clone())).collect();
    assert_eq!(members, FOUNDERS.map(|id| (id, address(id))), "seed {seed}");
}

/// Three founders; one loses its volume while the other two are cut off; the set is scaled to five. The lost one and the
/// two new ones can reach each other, and must not begin a second cluster.
pub fn a_founder_loses_its_volume_and_the_set_is_scaled(seed: u64) {
    let mut world = World::new(seed);
    world.found(0);
    world.until("the founders form a cluster", |world| world.is_formed_by(&FOUNDERS));
    world.put(1, "first");
    let mut ids = FOUNDERS;
    world.random.shuffle(&mut ids);
    let [lost, rest @ ..] = ids;
    // The new list may name the founders only, or all five.
    let list: &[u64] = if world.random.chance(50) { &FOUNDERS } else { &[1, 2, 3, 4, 5] };
    world.partition(&[lost], &rest);
    if world.random.chance(30) {
        world.partition(&rest[..1], &rest[1..]);
    }
    world.crash(lost, true, true);
    *world.machine(lost).bootstrap.lock().unwrap() = list.to_vec();
    for id in [4, 5] {
        world.start(id, list);
    }
    world.partition(&rest, &[4, 5]);
    world.sim.bounce(name(lost));
    let time = world.random.pick(&[1, 5, 20]);
    world.run_for(Duration::from_secs(time));
    for id in [lost, 4, 5] {
        assert!(world.machine(id).status().is_none(), "seed {seed}: {} has a cluster", name(id));
    }
    if world.random.chance(50) {
        // The two that are left may restart with the new list too.
        let id = rest[0];
        world.crash(id, false, false);
        *world.machine(id).bootstrap.lock().unwrap() = list.to_vec();
        world.sim.bounce(name(id));
    }
    world.heal();
    let all = [1, 2, 3, 4, 5];
    world.until("all five form one cluster", |world| world.is_formed_by(&all));
    let status = world.machine(lost).status().unwrap();
    assert!(status.members.iter().all(|member| member.node != lost), "seed {seed}: an id was used again");
    assert_eq!(status.members.len(), 5);
    world.put(lost, "second");
    assert_eq!(world.clusters.len(), 1, "seed {seed}");
}

/// A founder loses its volume while the cluster begins. Then no cluster begins, or one with the others that it joins.
pub fn a_founder_loses_its_volume_while_the_cluster_begins(seed: u64) {
    let mut world = World::new(seed);
    for id in FOUNDERS {
        world.start(id, &FOUNDERS);
    }
    let time = Duration::from_millis(world.random.below(400));
    world.run_for(time);
    let lost = world.random.pick(&FOUNDERS);
    world.crash(lost, true, true);
    let pause = Duration::from_millis(world.random.below(600));
    world.run_for(pause);
    world.sim.bounce(name(lost));
    world.run_for(Duration::from_secs(8));
    let has_leader = |machine: &Machine| machine.status().is_some_and(|status| status.leader.is_some());
    if world.machines.iter().any(has_leader) {
        world.until("all three are voters", |world| world.is_formed_by(&FOUNDERS));
        world.put(lost, "first");
    }
}
