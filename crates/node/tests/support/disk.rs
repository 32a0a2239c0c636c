//! A disk in memory that loses what a real one may lose.
//!
//! A write is in the file at once, as it is on a real system, and on the platter only after a sync. A power cut drops,
//! keeps or tears every write since the last sync, sector by sector, and does the same to names that were made, changed
//! or removed since their folder was synced. A sync that fails loses what it was to write, although it can be read
//! until the power goes: that is how Linux does it.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use earmark_node::{Disk, DiskFile};

use super::random::Random;

const SECTOR: usize = 512;

/// What can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Write,
    Sync,
    SetLen,
    Name,
    SyncDir,
}

/// How it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// ENOSPC; a write leaves half of its bytes.
    Full,
    /// EIO.
    Broken,
}

#[derive(Clone, Debug)]
enum Change {
    Write { offset: usize, bytes: Vec<u8> },
    SetLen(usize),
}

#[derive(Clone, Debug, Default)]
struct Content {
    /// What programs see.
    seen: Vec<u8>,
    /// What is on the platter for sure.
    synced: Vec<u8>,
    /// How `synced` becomes `seen`.
    pending: Vec<Change>,
}

#[derive(Clone, Debug)]
enum NameChange {
    Made { path: String, file: u64 },
    Renamed { from: String, to: String, file: u64 },
    Removed { path: String },
}

#[derive(Clone, Debug)]
struct State {
    files: BTreeMap<u64, Content>,
    names: BTreeMap<String, u64>,
    synced_names: BTreeMap<String, u64>,
    pending_names: Vec<NameChange>,
    folders: BTreeSet<String>,
    locks: BTreeSet<String>,
    next_file: u64,
    /// Handles from before the last crash are dead.
    life: u64,
    /// How many more changes there are until the power goes.
    power: Option<u64>,
    /// The kind of call, how many of them to let pass, and what then happens.
    trouble: Option<(Kind, u64, Trouble)>,
    /// Something was made to fail since the last crash or kill.
    troubled: bool,
    changes: u64,
    latency: Option<(Random, u64)>,
}

/// The disk; clones are the same disk.
#[derive(Clone, Debug)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
    /// The life that this one is good for, if not for all.
    life: Option<u64>,
}

#[derive(Debug)]
struct SimFile {
    disk: SimDisk,
    file: u64,
    life: u64,
}

impl SimDisk {
    pub fn new() -> SimDisk {
        let state = State {
            files: BTreeMap::new(),
            names: BTreeMap::new(),
            synced_names: BTreeMap::new(),
            pending_names: Vec::new(),
            folders: BTreeSet::from([String::new()]),
            locks: BTreeSet::new(),
            next_file: 0,
            life: 0,
            power: None,
            trouble: None,
            troubled: false,
            changes: 0,
            latency: None,
        };
        SimDisk { state: Arc::new(Mutex::new(state)), life: None }
    }

    /// Work that is handed over takes up to so long, by tokio's clock; how long is drawn from the seed.
    pub fn with_latency(self, seed: u64, up_to: Duration) -> SimDisk {
        let micros = u64::try_from(up_to.as_micros()).unwrap();
        self.state().latency = Some((Random::new(seed), micros + 1));
        self
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// The state for a program that may have been dead for a while.
    fn alive(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.state();
        match self.life {
            Some(life) if life != state.life => Err(io::Error::other("this process is dead")),
            _ => Ok(state),
        }
    }

    /// Another disk with the same bytes on it, synced or not.
    pub fn copy(&self) -> SimDisk {
        SimDisk { state: Arc::new(Mutex::new(self.state().clone())), life: None }
    }

    /// The disk for a process that is started now, until it is killed or the power goes.
    pub fn mount(&self) -> Arc<dyn Disk> {
        Arc::new(SimDisk { life: Some(self.state().life), ..self.clone() })
    }

    /// How many changes there were so far.
    pub fn changes(&self) -> u64 {
        self.state().changes
    }

    /// Lets so many more changes happen; then nothing does until a crash or a kill.
    pub fn cut_power_after(&self, changes: u64) {
        let mut state = self.state();
        state.power = Some(changes);
        state.troubled = true;
    }

    /// Makes one call fail, after so many of its kind that do not.
    pub fn fail(&self, kind: Kind, after: u64, trouble: Trouble) {
        let mut state = self.state();
        state.trouble = Some((kind, after, trouble));
        state.troubled = true;
    }

    /// Whether the power is cut, or something is to fail, or did.
    pub fn is_troubled(&self) -> bool {
        self.state().troubled
    }

    /// The process is killed: what it wrote is seen by the next one, synced or not.
    pub fn kill(&self) {
        let mut state = self.state();
        state.life += 1;
        state.power = None;
        state.trouble = None;
        state.troubled = false;
        state.locks.clear();
    }

    /// The power goes, and comes back.
    pub fn crash(&self, seed: u64) {
        self.kill();
        let mut random = Random::new(seed);
        let mut state = self.state();
        let state = &mut *state;
        let mut names = std::mem::take(&mut state.synced_names);
        // Most file systems keep changes of names in order; nobody promises it.
        let in_order = random.chance(50);
        let pending = std::mem::take(&mut state.pending_names);
        let kept = random.index(pending.len() + 1);
        for (at, change) in pending.into_iter().enumerate() {
            if if in_order { at < kept } else { random.chance(50) } {
                change.apply(&mut names);
            }
        }
        state.files.retain(|file, _| names.values().any(|named| named == file));
        for content in state.files.values_mut() {
            content.crash(&mut random);
        }
        state.names = names.clone();
        state.synced_names = names;
    }

    /// The files there are, by name.
    pub fn paths(&self) -> Vec<String> {
        self.state().names.keys().cloned().collect()
    }

    pub fn bytes(&self, path: &str) -> Vec<u8> {
        let state = self.state();
        state.files[&state.names[path]].seen.clone()
    }

    /// Damages a byte, on the platter too.
    pub fn corrupt(&self, path: &str, offset: usize, xor: u8) {
        self.damage(path, |bytes| bytes[offset] ^= xor);
    }

    /// Cuts a file, on the platter too.
    pub fn truncate(&self, path: &str, len: usize) {
        self.damage(path, |bytes| bytes.truncate(len));
    }

    /// Puts a file there, or other bytes into it.
    pub fn put(&self, path: &str, bytes: &[u8]) {
        let file = self.open(path, true).unwrap();
        file.set_len(0).unwrap();
        file.write_at(bytes, 0).unwrap();
        file.sync().unwrap();
        self.sync_dir(folder(path)).unwrap();
    }

    fn damage(&self, path: &str, change: impl Fn(&mut Vec<u8>)) {
        let mut state = self.state();
        let file = state.names[path];
        let content = state.files.get_mut(&file).unwrap();
        change(&mut content.seen);
        content.synced = content.seen.clone();
        content.pending.clear();
    }
}

impl State {
    /// Counts a change, or says that the power is gone or that this is the call that fails.
    fn change(&mut self, kind: Kind) -> io::Result<Option<Trouble>> {
        if self.power == Some(0) {
            return Err(io::Error::other("the power is gone"));
        }
        self.power = self.power.map(|left| left - 1);
        self.changes += 1;
        match &mut self.trouble {
            Some((of, 0, trouble)) if *of == kind => {
                let trouble = *trouble;
                self.trouble = None;
                Ok(Some(trouble))
            }
            Some((of, left, _)) if *of == kind => {
                *left -= 1;
                Ok(None)
            }
            _ => Ok(None),
        }
    }

    fn change_name(&mut self, change: NameChange) -> io::Result<()> {
        if let Some(trouble) = self.change(Kind::Name)? {
            return Err(trouble.error());
        }
        change.apply(&mut self.names);
        self.pending_names.push(change);
        Ok(())
    }
}

impl Trouble {
    fn error(self) -> io::Error {
        io::Error::from_raw_os_error(match self {
            Trouble::Full => 28,
            Trouble::Broken => 5,
        })
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            NameChange::Made { path, file } => {
                names.insert(path.clone(), *file);
            }
            NameChange::Renamed { from, to, file } => {
                if names.get(from) == Some(file) {
                    names.remove(from);
                }
                names.insert(to.clone(), *file);
            }
            NameChange::Removed { path } => {
                names.remove(path);
            }
        }
    }

    fn is_in(&self, wanted: &str) -> bool {
        let (NameChange::Made { path, .. }
        | NameChange::Renamed { to: path, .. }
        | NameChange::Removed { path }) = self;
        folder(path) == wanted
    }
}

fn folder(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

impl Content {
    fn crash(&mut self, random: &mut Random) {
        for change in std::mem::take(&mut self.pending) {
            match (change, random.below(4)) {
                (_, 0) => {}
                (Change::SetLen(len), _) => self.synced.resize(len, 0),
                (Change::Write { offset, bytes }, 1) => write(&mut self.synced, offset, &bytes),
                // The file has its new length, and its bytes never came.
                (Change::Write { offset, bytes }, 2) if random.chance(30) => {
                    let len = self.synced.len().max(offset + bytes.len());
                    self.synced.resize(len, 0);
                }
                (Change::Write { offset, bytes }, _) => {
                    let mut at = 0;
                    while at < bytes.len() {
                        let end = bytes.len().min(at + SECTOR - (offset + at) % SECTOR);
                        if random.chance(50) {
                            write(&mut self.synced, offset + at, &bytes[at..end]);
                        }
                        at = end;
                    }
                }
            }
        }
        self.seen = self.synced.clone();
    }
}

fn write(into: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    if into.len() < end {
        into.resize(end, 0);
    }
    into[offset..end].copy_from_slice(bytes);
}

fn not_found(path: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{path} is not there"))
}

impl Disk for SimDisk {
    fn open(&self, path: &str, create: bool) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.alive()?;
        let file = match state.names.get(path) {
            Some(&file) => file,
            None if create && state.folders.contains(folder(path)) => {
                let file = state.next_file;
                state.change_name(NameChange::Made { path: path.to_owned(), file })?;
                state.next_file += 1;
                state.files.insert(file, Content::default());
                file
            }
            None => return Err(not_found(path)),
        };
        Ok(Arc::new(SimFile { disk: self.clone(), file, life: state.life }))
    }

    fn create_dir(&self, path: &str) -> io::Result<()> {
        // Folders are made once and always lead somewhere, so losing one would show nothing new.
        self.alive()?.folders.insert(path.to_owned());
        Ok(())
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let state = self.alive()?;
        if !state.folders.contains(path) {
            return Err(not_found(path));
        }
        let inside = |name: &&String| folder(name) == path;
        let files = state.names.keys().filter(inside);
        let folders = state.folders.iter().filter(|name| !name.is_empty()).filter(inside);
        let mut names =
            files.chain(folders).map(|name| name.rsplit('/').next().unwrap().to_owned()).collect::<Vec<_>>();
        names.sort_unstable();
        Ok(names)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.alive()?;
        let file = *state.names.get(from).ok_or_else(|| not_found(from))?;
        state.change_name(NameChange::Renamed { from: from.to_owned(), to: to.to_owned(), file })
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        let mut state = self.alive()?;
        if !state.names.contains_key(path) {
            return Err(not_found(path));
        }
        state.change_name(NameChange::Removed { path: path.to_owned() })
    }

    fn sync_dir(&self, path: &str) -> io::Result<()> {
        let mut state = self.alive()?;
        let state = &mut *state;
        if let Some(trouble) = state.change(Kind::SyncDir)? {
            // Names are in the journal of the file system, which does not forget them as it forgets pages.
            return Err(trouble.error());
        }
        for change in state.pending_names.iter().filter(|change| change.is_in(path)) {
            change.apply(&mut state.synced_names);
        }
        state.pending_names.retain(|change| !change.is_in(path));
        Ok(())
    }

    fn lock(&self, path: &str) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        self.open(path, true)?;
        let mut state = self.alive()?;
        if !state.locks.insert(path.to_owned()) {
            return Ok(None);
        }
        Ok(Some(Box::new(Unlock { disk: self.clone(), path: path.to_owned(), life: state.life })))
    }

    fn offload(&self, work: Box<dyn FnOnce() + Send>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let latency = self.state().latency.as_mut().map(|(random, micros)| random.below(*micros));
        Box::pin(async move {
            if let Some(micros) = latency {
                tokio::time::sleep(Duration::from_micros(micros)).await;
            }
            work();
        })
    }

    fn show(&self, path: &str) -> String {
        format!("sim:/{path}")
    }
}

struct Unlock {
    disk: SimDisk,
    path: String,
    life: u64,
}

impl Drop for Unlock {
    fn drop(&mut self) {
        let mut state = self.disk.state();
        if state.life == self.life {
            state.locks.remove(&self.path);
        }
    }
}

impl SimFile {
    fn with<T>(&self, act: impl FnOnce(&mut State, u64) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.disk.state();
        if state.life != self.life {
            return Err(io::Error::other("this file was open before the crash"));
        }
        act(&mut state, self.file)
    }
}

impl DiskFile for SimFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.with(|state, file| {
            let start = usize::try_from(offset).unwrap();
            let bytes = state.files[&file].seen.get(start..start + buffer.len());
            buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        })
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.with(|state, file| {
            let trouble = state.change(Kind::Write)?;
            let bytes = if trouble == Some(Trouble::Full) { &bytes[..bytes.len() / 2] } else { bytes };
            let content = state.files.get_mut(&file).unwrap();
            let offset = usize::try_from(offset).unwrap();
            if trouble != Some(Trouble::Broken) {
                write(&mut content.seen, offset, bytes);
                content.pending.push(Change::Write { offset, bytes: bytes.to_vec() });
            }
            trouble.map_or(Ok(()), |trouble| Err(trouble.error()))
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.with(|state, file| {
            let trouble = state.change(Kind::Sync)?;
            let content = state.files.get_mut(&file).unwrap();
            let pending = std::mem::take(&mut content.pending);
            if let Some(trouble) = trouble {
                return Err(trouble.error());
            }
            for change in pending {
                match change {
                    Change::Write { offset, bytes } => write(&mut content.synced, offset, &bytes),
                    Change::SetLen(len) => content.synced.resize(len, 0),
                }
            }
            Ok(())
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.with(|state, file| {
            if let Some(trouble) = state.change(Kind::SetLen)? {
                return Err(trouble.error());
            }
            let len = usize::try_from(len).unwrap();
            let content = state.files.get_mut(&file).unwrap();
            content.seen.resize(len, 0);
            content.pending.push(Change::SetLen(len));
            Ok(())
        })
    }

    fn len(&self) -> io::Result<u64> {
        self.with(|state, file| Ok(state.files[&file].seen.len() as u64))
    }
}
