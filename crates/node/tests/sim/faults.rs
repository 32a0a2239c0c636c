//! Random faults, all drawn from the seed.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use earmark_admission::Cluster;
use turmoil::Sim;

use crate::host::{Host, name};
use crate::support::disk::{DiskError, Kind};
use crate::support::random::Random;

/// Maximum latency of a healthy link.
pub const LATENCY: Duration = Duration::from_millis(8);

#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// Processes and hosts die.
    pub crashes: bool,
    /// Links are cut, in one or both directions, or slow.
    pub cuts: bool,
    /// Maximum change of wall clocks, in milliseconds.
    pub jump_ms: u64,
    pub disks: bool,
    /// Maximum milliseconds between two faults.
    pub pause_ms: u64,
}

impl Profile {
    pub fn of(random: &mut Random) -> Profile {
        Profile {
            crashes: random.chance(75),
            cuts: random.chance(80),
            jump_ms: random.pick(&[0, 0, 1_500, 30_000, 400_000]),
            disks: random.chance(30),
            pause_ms: random.pick(&[500, 1_500, 4_000]),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Power cut of one host.
    Power,
    /// Power cut of all hosts.
    Blackout,
    Kill,
    /// Power cut of one host between two writes.
    MidWrite,
    /// One disk call fails.
    Disk,
    /// One host is cut off.
    Isolate,
    /// The hosts are split into two parts.
    Split,
    /// Messages in one direction are lost.
    OneWay,
    /// Messages in both directions are lost.
    Cut,
    /// Messages between two hosts are slow.
    Slow,
    /// A wall clock is changed.
    Clock,
}

pub struct Faults {
    pub profile: Profile,
    random: Random,
    next: Duration,
    /// Hosts without a process, and when they restart.
    down: BTreeMap<usize, Duration>,
    /// Hosts that lose power soon.
    doomed: BTreeMap<usize, Duration>,
    /// Faulty links, and when they are repaired.
    links: BTreeMap<(usize, usize), Duration>,
}

impl Faults {
    pub fn new(profile: Profile, random: Random) -> Faults {
        let (down, doomed, links) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Faults { profile, random, next: Duration::ZERO, down, doomed, links }
    }

    fn ms(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_millis(self.random.between(low, high))
    }

    /// Runs one step and describes it.
    pub fn step(&mut self, sim: &mut Sim<'_>, hosts: &[Host]) -> Vec<String> {
        let now = sim.elapsed();
        let mut said = Vec::new();
        self.mend(sim, hosts, now, &mut said);
        if now < self.next {
            return said;
        }
        let pause = self.profile.pause_ms;
        self.next = now + self.ms(pause / 10, pause);
        let fault = self.choose();
        self.cause(fault, sim, hosts, now, &mut said);
        said
    }

    /// Repairs what is due.
    fn mend(&mut self, sim: &mut Sim<'_>, hosts: &[Host], now: Duration, said: &mut Vec<String>) {
        for host in due(&mut self.doomed, now) {
            self.power_off(host, sim, hosts, said);
        }
        for host in due(&mut self.down, now) {
            said.push(format!("n{} starts", host + 1));
            sim.bounce(name(hosts[host].id));
        }
        for (from, to) in due(&mut self.links, now) {
            said.push(format!("n{} - n{} is well", from + 1, to + 1));
            well(sim, from, to);
        }
        for (place, host) in hosts.iter().enumerate() {
            let failed = host.disk.is_faulty() && host.node().is_some_and(|node| node.failure().get().is_some());
            if failed && !self.doomed.contains_key(&place) {
                let soon = now + self.ms(1, 300);
                self.doomed.insert(place, soon);
            }
        }
    }

    fn choose(&mut self) -> Fault {
        use Fault::{Blackout, Clock, Cut, Disk, Isolate, Kill, MidWrite, OneWay, Power, Slow, Split};
        let Profile { crashes, cuts, jump_ms, disks, .. } = self.profile;
        let mut choices = Vec::new();
        if crashes {
            choices.extend([Power, Power, Kill, MidWrite, Blackout]);
        }
        if cuts {
            choices.extend([Isolate, Isolate, Isolate, Split, OneWay, Cut, Slow]);
        }
        if jump_ms > 0 {
            choices.extend([Clock, Clock]);
        }
        if disks {
            choices.push(Disk);
        }
        if choices.is_empty() {
            choices.push(Slow);
        }
        self.random.pick(&choices)
    }

    /// A random host, often the leader.
    fn victim(&mut self, hosts: &[Host]) -> usize {
        let leads = |host: &Host| host.node().is_some_and(|node| node.status().leader == Some(host.id));
        match hosts.iter().position(leads) {
            Some(leader) if self.random.chance(60) => leader,
            _ => self.random.index(hosts.len()),
        }
    }

    fn cause(&mut self, fault: Fault, sim: &mut Sim<'_>, hosts: &[Host], now: Duration, said: &mut Vec<String>) {
        let victim = self.victim(hosts);
        let until = now + self.ms(100, self.profile.pause_ms + 300);
        said.push(format!("{fault:?}, n{} or so, until {} ms", victim + 1, until.as_millis()));
        match fault {
            Fault::Power => self.power_off(victim, sim, hosts, said),
            Fault::Blackout => {
                (0..hosts.len()).for_each(|host| self.power_off(host, sim, hosts, said));
            }
            Fault::Kill => {
                hosts[victim].disk.kill();
                self.die(victim, sim, hosts);
            }
            Fault::MidWrite => {
                hosts[victim].disk.cut_power_after(self.random.below(30));
                let soon = now + self.ms(1, 200);
                self.doomed.insert(victim, soon);
            }
            Fault::Disk => {
                let kind = self.random.pick(&[Kind::Write, Kind::Sync, Kind::SetLen, Kind::Name, Kind::SyncDir]);
                let disk_error = self.random.pick(&[DiskError::Full, DiskError::Broken]);
                hosts[victim].disk.fail(kind, self.random.below(20), disk_error);
            }
            Fault::Isolate => {
                for other in (0..hosts.len()).filter(|other| *other != victim) {
                    self.cut(sim, victim, other, until);
                }
            }
            Fault::Split => {
                let side: Vec<bool> = hosts.iter().map(|_| self.random.chance(50)).collect();
                for (one, other) in pairs(hosts.len()).filter(|(one, other)| side[*one] != side[*other]) {
                    self.cut(sim, one, other, until);
                }
            }
            Fault::OneWay | Fault::Cut | Fault::Slow => {
                let other = self.random.index(hosts.len());
                if other != victim {
                    self.one_link(fault, sim, (victim, other), until);
                }
            }
            Fault::Clock => self.set_clock(&hosts[victim], said),
        }
    }

    /// Cuts a link. Data is lost, or delivered after the repair as with TCP retransmission.
    fn cut(&mut self, sim: &mut Sim<'_>, one: usize, other: usize, until: Duration) {
        let (a, b) = names(one, other);
        match self.random.chance(80) {
            true => sim.hold(a, b),
            false => sim.partition(a, b),
        }
        self.links.insert((one.min(other), one.max(other)), until);
    }

    fn one_link(&mut self, fault: Fault, sim: &mut Sim<'_>, (one, other): (usize, usize), until: Duration) {
        let (a, b) = names(one, other);
        match fault {
            Fault::OneWay => sim.partition_oneway(a, b),
            Fault::Slow => sim.set_link_max_message_latency(a, b, self.ms(30, 600)),
            _ => sim.partition(a, b),
        }
        self.links.insert((one.min(other), one.max(other)), until);
    }

    fn set_clock(&mut self, host: &Host, said: &mut Vec<String>) {
        let jump = self.profile.jump_ms;
        let off_ms = i64::try_from(self.random.below(2 * jump + 1)).unwrap() - i64::try_from(jump).unwrap();
        said.push(format!("the clock of n{} is {off_ms} ms ahead", host.id));
        host.wall_off_us.store(off_ms * 1_000, Ordering::Relaxed);
    }

    fn power_off(&mut self, host: usize, sim: &mut Sim<'_>, hosts: &[Host], said: &mut Vec<String>) {
        said.push(format!("n{} loses power", host + 1));
        hosts[host].disk.crash(self.random.next());
        self.die(host, sim, hosts);
    }

    fn die(&mut self, host: usize, sim: &mut Sim<'_>, hosts: &[Host]) {
        sim.crash(name(hosts[host].id));
        hosts[host].bury();
        self.doomed.remove(&host);
        let back = sim.elapsed() + self.ms(5, self.profile.pause_ms);
        self.down.insert(host, back);
    }

    /// Repairs everything: processes, links and clocks.
    pub fn end(&mut self, sim: &mut Sim<'_>, hosts: &[Host]) -> Vec<String> {
        let mut said = vec!["everything is well again".into()];
        for (place, host) in hosts.iter().enumerate() {
            if host.disk.is_faulty() {
                self.power_off(place, sim, hosts, &mut said);
            }
        }
        pairs(hosts.len()).for_each(|(one, other)| well(sim, one, other));
        for host in std::mem::take(&mut self.down).into_keys() {
            sim.bounce(name(hosts[host].id));
        }
        self.doomed.clear();
        self.links.clear();
        said
    }
}

fn names(one: usize, other: usize) -> (String, String) {
    (name(one as u64 + 1), name(other as u64 + 1))
}

fn well(sim: &mut Sim<'_>, one: usize, other: usize) {
    let (a, b) = names(one, other);
    sim.release(a.clone(), b.clone());
    sim.set_link_max_message_latency(a, b, LATENCY);
}

fn pairs(count: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..count).flat_map(move |one| (one + 1..count).map(move |other| (one, other)))
}

fn due<K: Copy + Ord>(waiting: &mut BTreeMap<K, Duration>, now: Duration) -> Vec<K> {
    let due: Vec<K> = waiting.iter().filter(|(_, at)| **at <= now).map(|(key, _)| *key).collect();
    for key in &due {
        waiting.remove(key);
    }
    due
}
