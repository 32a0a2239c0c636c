//! Simulated disk that loses what a real disk may lose.
//!
//! A write is visible at once and durable only after a sync. A power cut drops, keeps or tears every unsynced write,
//! sector by sector. It does the same to file names that were created, renamed or removed since the last sync of
//! their folder. A failed sync loses its writes, although they stay visible until the power cut, as on Linux.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use earmark_node::{Disk, DiskFile, DiskSpace};

use super::random::Random;

const SECTOR: usize = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Write,
    Sync,
    SetLen,
    Name,
    SyncDir,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskError {
    /// ENOSPC; a write keeps half of its bytes.
    Full,
    Broken,
}

#[derive(Clone, Debug)]
enum Change {
    Write { offset: usize, bytes: Vec<u8> },
    SetLen(usize),
}

#[derive(Clone, Debug, Default)]
struct Content {
    /// Contents as programs see them.
    seen: Vec<u8>,
    /// Contents that are durable.
    synced: Vec<u8>,
    /// Changes that lead from `synced` to `seen`.
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
    /// Incremented by a crash or kill; older handles fail.
    life: u64,
    /// Changes left until the power cut.
    power: Option<u64>,
    /// Kind of call to fail, how many to let pass first, and the error.
    disk_error: Option<(Kind, u64, DiskError)>,
    /// Changes left until the disk is full: then every change fails, and a write keeps half of its bytes.
    space: Option<u64>,
    /// Free space as the disk reports it, of 1,000 bytes.
    free: Option<u64>,
    /// Whether a fault was injected since the last crash or kill.
    is_faulty: bool,
    changes: u64,
    read_bytes: u64,
    on_read: OnRead,
    latency: Option<(Random, u64)>,
}

/// Runs once during the next read.
struct OnRead(Option<Box<dyn FnOnce() + Send>>);

impl Clone for OnRead {
    fn clone(&self) -> OnRead {
        OnRead(None)
    }
}

impl std::fmt::Debug for OnRead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnRead")
    }
}

/// The disk. Clones share it.
#[derive(Clone, Debug)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
    /// The process life that this handle belongs to; `None` for all.
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
            disk_error: None,
            space: None,
            free: None,
            is_faulty: false,
            changes: 0,
            read_bytes: 0,
            on_read: OnRead(None),
            latency: None,
        };
        SimDisk { state: Arc::new(Mutex::new(state)), life: None }
    }

    /// Offloaded work takes a random time up to `up_to`, by tokio's clock.
    pub fn with_latency(self, seed: u64, up_to: Duration) -> SimDisk {
        let micros = u64::try_from(up_to.as_micros()).unwrap();
        self.state().latency = Some((Random::new(seed), micros + 1));
        self
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// The state, or an error if this handle's process is dead.
    fn alive(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.state();
        match self.life {
            Some(life) if life != state.life => Err(io::Error::other("this process is dead")),
            _ => Ok(state),
        }
    }

    /// Independent copy of the disk, including unsynced writes.
    pub fn copy(&self) -> SimDisk {
        SimDisk { state: Arc::new(Mutex::new(self.state().clone())), life: None }
    }

    /// Handle for a new process, valid until it is killed or loses power.
    pub fn mount(&self) -> Arc<dyn Disk> {
        Arc::new(SimDisk { life: Some(self.state().life), ..self.clone() })
    }

    pub fn changes(&self) -> u64 {
        self.state().changes
    }

    /// Allows a number of further changes; all later ones fail until a crash or kill.
    pub fn cut_power_after(&self, changes: u64) {
        let mut state = self.state();
        state.power = Some(changes);
        state.is_faulty = true;
    }

    /// Fails one call of a kind, after letting `after` of them pass.
    pub fn fail(&self, kind: Kind, after: u64, disk_error: DiskError) {
        let mut state = self.state();
        state.disk_error = Some((kind, after, disk_error));
        state.is_faulty = true;
    }

    /// Allows a number of further changes; then the disk is full until a crash or kill.
    pub fn fill_after(&self, changes: u64) {
        self.state().space = Some(changes);
    }

    /// Sets the reported free space, of 1,000 bytes.
    pub fn set_free(&self, free: u64) {
        self.state().free = Some(free);
    }

    /// Runs `action` once, during the next read.
    pub fn on_read(&self, action: impl FnOnce() + Send + 'static) {
        self.state().on_read = OnRead(Some(Box::new(action)));
    }

    pub fn read_bytes(&self) -> u64 {
        self.state().read_bytes
    }

    pub fn files(&self) -> BTreeMap<String, Vec<u8>> {
        self.paths().into_iter().map(|path| (path.clone(), self.bytes(&path))).collect()
    }

    /// A disk with these files, all of them synced.
    pub fn of(files: &BTreeMap<String, Vec<u8>>) -> SimDisk {
        let disk = SimDisk::new();
        for (path, bytes) in files {
            disk.create_dir(folder(path)).unwrap();
            disk.put(path, bytes);
        }
        disk.state().changes = 0;
        disk
    }

    /// Whether a fault is pending or has happened.
    pub fn is_faulty(&self) -> bool {
        self.state().is_faulty
    }

    /// Kills the process. The next one sees its writes, synced or not.
    pub fn kill(&self) {
        let mut state = self.state();
        state.life += 1;
        state.power = None;
        state.disk_error = None;
        state.space = None;
        state.is_faulty = false;
        state.locks.clear();
    }

    /// Cuts the power and restores it.
    pub fn crash(&self, seed: u64) {
        self.kill();
        let mut random = Random::new(seed);
        let mut state = self.state();
        let state = &mut *state;
        let mut names = std::mem::take(&mut state.synced_names);
        // Most file systems keep name changes in order, but none promises it.
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

    pub fn paths(&self) -> Vec<String> {
        self.state().names.keys().cloned().collect()
    }

    pub fn bytes(&self, path: &str) -> Vec<u8> {
        let state = self.state();
        state.files[&state.names[path]].seen.clone()
    }

    /// Flips bits of a byte, durably.
    pub fn corrupt(&self, path: &str, offset: usize, xor: u8) {
        self.damage(path, |bytes| bytes[offset] ^= xor);
    }

    /// Truncates a file, durably.
    pub fn truncate(&self, path: &str, len: usize) {
        self.damage(path, |bytes| bytes.truncate(len));
    }

    /// Creates or replaces a file, durably.
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
    /// Counts a change. Returns the fault to inject, or an error after the power cut.
    fn change(&mut self, kind: Kind) -> io::Result<Option<DiskError>> {
        if self.power == Some(0) {
            return Err(io::Error::other("the power is gone"));
        }
        if self.space == Some(0) {
            return Ok(Some(DiskError::Full));
        }
        self.power = self.power.map(|left| left - 1);
        self.space = self.space.map(|left| left - 1);
        self.changes += 1;
        match &mut self.disk_error {
            Some((of, 0, disk_error)) if *of == kind => {
                let disk_error = *disk_error;
                self.disk_error = None;
                Ok(Some(disk_error))
            }
            Some((of, left, _)) if *of == kind => {
                *left -= 1;
                Ok(None)
            }
            _ => Ok(None),
        }
    }

    fn change_name(&mut self, change: NameChange) -> io::Result<()> {
        if let Some(disk_error) = self.change(Kind::Name)? {
            return Err(disk_error.error());
        }
        change.apply(&mut self.names);
        self.pending_names.push(change);
        Ok(())
    }
}

impl DiskError {
    fn error(self) -> io::Error {
        io::Error::from_raw_os_error(match self {
            DiskError::Full => 28,
            DiskError::Broken => 5,
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
        let (NameChange::Made { path, .. } | NameChange::Renamed { to: path, .. } | NameChange::Removed { path }) =
            self;
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
                // The length reached the disk, the bytes did not.
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
        // Folders are created once, so losing one would test nothing new.
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
        if let Some(disk_error) = state.change(Kind::SyncDir)? {
            // Names are in the file system's journal, so a failed sync does not lose them.
            return Err(disk_error.error());
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

    fn space(&self) -> io::Result<Option<DiskSpace>> {
        Ok(self.state().free.map(|free| DiskSpace { free, total: 1_000 }))
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
        let action = self.disk.state().on_read.0.take();
        if let Some(action) = action {
            action();
        }
        self.with(|state, file| {
            let start = usize::try_from(offset).unwrap();
            state.read_bytes += buffer.len() as u64;
            let bytes = state.files[&file].seen.get(start..start + buffer.len());
            buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        })
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.with(|state, file| {
            let disk_error = state.change(Kind::Write)?;
            let bytes = if disk_error == Some(DiskError::Full) { &bytes[..bytes.len() / 2] } else { bytes };
            let content = state.files.get_mut(&file).unwrap();
            let offset = usize::try_from(offset).unwrap();
            if disk_error != Some(DiskError::Broken) {
                write(&mut content.seen, offset, bytes);
                content.pending.push(Change::Write { offset, bytes: bytes.to_vec() });
            }
            disk_error.map_or(Ok(()), |disk_error| Err(disk_error.error()))
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.with(|state, file| {
            let disk_error = state.change(Kind::Sync)?;
            let content = state.files.get_mut(&file).unwrap();
            let pending = std::mem::take(&mut content.pending);
            if let Some(disk_error) = disk_error {
                return Err(disk_error.error());
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
            if let Some(disk_error) = state.change(Kind::SetLen)? {
                return Err(disk_error.error());
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
