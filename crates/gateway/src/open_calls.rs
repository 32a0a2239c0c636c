//! The calls that are not settled, on disk.
//!
//! A call is written down before it is reserved, and again before its first byte goes upstream. After a crash the
//! gateway settles what it finds: a call that was not sent is released, one that was sent pays its usage if that was
//! written down, else its bound. The file has leases and attributes, no content and no keys.
//!
//! The file is a list of records, one on each line with its checksum. Records are written at once, so that they survive
//! a kill of the process. Only `sent` waits for the disk, one flush for all calls that wait. The flush covers the earlier
//! records of the call too. The file is written anew when most of it is about calls that are settled.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use earmark_client::core::LeaseId;
use earmark_client::{CallResult, CallUsage};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

/// The name of the file with the records.
const FILE: &str = "calls";
/// The name of the file whose lock keeps other gateways out.
const LOCK: &str = "lock";
/// Bytes of records before the file is written anew, if most of them are about settled calls: 8 MiB.
const REWRITE_BYTES: u64 = 8 << 20;

/// Why a folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// Another gateway uses the folder.
    #[error("--calls: {} is in use by another gateway; every gateway needs a folder of its own", path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// The file system failed.
    #[error("--calls: {}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

/// A call that is not settled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenCall {
    /// The namespace of the call, if its client has a key.
    pub namespace: Option<String>,
    /// All attributes of the call, the labels of the key included.
    #[serde(with = "shared")]
    pub attributes: Arc<BTreeMap<String, String>>,
    /// The revision of the policy that admitted the call.
    pub policy_revision: Option<u64>,
    /// Whether a byte of it may have gone upstream.
    pub is_sent: bool,
    /// The end of the call, once it is known.
    pub end: Option<End>,
}

/// Attributes that the parts of a running call share, in a record.
mod shared {
    use super::{Arc, BTreeMap, Deserialize, Serialize};

    pub(super) fn serialize<S: serde::Serializer>(
        attributes: &Arc<BTreeMap<String, String>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        attributes.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Arc<BTreeMap<String, String>>, D::Error> {
        BTreeMap::deserialize(deserializer).map(Arc::new)
    }
}

/// The end of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// The upstream reported this usage.
    Used(CallUsage),
    /// The upstream answered without a usage.
    Done,
    /// The upstream refused it, or never got it.
    Refused,
    /// Nobody knows.
    Unknown,
}

impl From<&End> for CallResult {
    fn from(end: &End) -> CallResult {
        match end {
            End::Used(usage) => CallResult::Used(usage.clone()),
            End::Done => CallResult::Done,
            End::Refused => CallResult::Refused,
            End::Unknown => CallResult::Unknown,
        }
    }
}

impl OpenCall {
    /// The end of the call after a crash.
    #[must_use]
    pub fn end_after_crash(&self) -> End {
        match (&self.end, self.is_sent) {
            (Some(end), _) => end.clone(),
            (None, false) => End::Refused,
            (None, true) => End::Unknown,
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Record {
    Open { lease: LeaseText, call: OpenCall },
    Sent { lease: LeaseText, policy_revision: Option<u64> },
    End { lease: LeaseText, end: End },
    Settled { lease: LeaseText },
}

/// A lease as text.
#[derive(Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[derive(Clone, Copy)]
struct LeaseText(LeaseId);

impl TryFrom<String> for LeaseText {
    type Error = String;

    fn try_from(text: String) -> Result<LeaseText, String> {
        text.parse().map(LeaseText).map_err(|_| format!("found {text:?}, which is no lease"))
    }
}

impl From<LeaseText> for String {
    fn from(lease: LeaseText) -> String {
        lease.0.to_string()
    }
}

/// A caller that waits for the disk. `None` only asks whether the file should be written anew.
type Waiter = Option<oneshot::Sender<io::Result<()>>>;

/// The calls that are not settled.
pub struct OpenCalls {
    state: Arc<Mutex<State>>,
    /// `None` in memory.
    flushes: Option<mpsc::Sender<Waiter>>,
    _lock: Option<File>,
}

struct State {
    open: BTreeMap<LeaseId, OpenCall>,
    /// `None` in memory.
    file: Option<Arc<File>>,
    bytes: u64,
    /// Bytes of the file after it was last written anew.
    bytes_fresh: u64,
    /// After the first error nothing can be relied on.
    failed: Option<io::ErrorKind>,
}

impl OpenCalls {
    /// Calls that are lost with the process.
    #[must_use]
    pub fn in_memory() -> OpenCalls {
        let state = State { open: BTreeMap::new(), file: None, bytes: 0, bytes_fresh: 0, failed: None };
        OpenCalls { state: Arc::new(Mutex::new(state)), flushes: None, _lock: None }
    }

    /// Opens a folder, creates it if it is missing, and reads the calls that an earlier process left.
    ///
    /// # Errors
    /// When another gateway uses it, or the file system fails.
    pub fn open(folder: &Path) -> Result<OpenCalls, FolderError> {
        let failed = |source| FolderError::Io { path: folder.to_owned(), source };
        create_private_dir(folder).map_err(failed)?;
        let lock = private_file().write(true).create(true).truncate(false).open(folder.join(LOCK)).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Err(FolderError::InUse { path: folder.to_owned() }),
            Err(fs::TryLockError::Error(error)) => return Err(failed(error)),
        }
        let open = read(&folder.join(FILE)).map_err(failed)?;
        let (file, bytes) = rewrite(folder, &open).map_err(failed)?;
        let state = State { open, file: Some(Arc::new(file)), bytes, bytes_fresh: bytes, failed: None };
        let state = Arc::new(Mutex::new(state));
        let (flushes, waiters) = mpsc::channel();
        let (shared, folder) = (Arc::clone(&state), folder.to_owned());
        let thread = std::thread::Builder::new().name("open-calls".into());
        thread.spawn(move || flush_for(&waiters, &shared, &folder)).map_err(failed)?;
        Ok(OpenCalls { state, flushes: Some(flushes), _lock: Some(lock) })
    }

    /// The calls that are not settled.
    #[must_use]
    pub fn list(&self) -> Vec<(LeaseId, OpenCall)> {
        lock(&self.state).open.iter().map(|(lease, call)| (*lease, call.clone())).collect()
    }

    /// Whether the disk failed. Then no call may begin.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        lock(&self.state).failed.is_some()
    }

    /// Writes down a call before it is reserved.
    ///
    /// # Errors
    /// When the disk fails, now or before.
    pub fn begin(&self, lease: LeaseId, call: OpenCall) -> io::Result<()> {
        let mut state = lock(&self.state);
        state.write(&Record::Open { lease: LeaseText(lease), call: call.clone() })?;
        state.open.insert(lease, call);
        Ok(())
    }

    /// Writes down that a call goes upstream, and waits until that is on disk.
    ///
    /// # Errors
    /// When the disk fails, now or before: then nothing may be sent.
    pub async fn sent(&self, lease: LeaseId, policy_revision: Option<u64>) -> io::Result<()> {
        {
            let mut state = lock(&self.state);
            state.write(&Record::Sent { lease: LeaseText(lease), policy_revision })?;
            if let Some(call) = state.open.get_mut(&lease) {
                (call.is_sent, call.policy_revision) = (true, policy_revision);
            }
        }
        let Some(flushes) = &self.flushes else { return Ok(()) };
        let (waiter, flushed) = oneshot::channel();
        let gone = || io::Error::other("the thread that flushes has ended");
        flushes.send(Some(waiter)).map_err(|_| gone())?;
        flushed.await.map_err(|_| gone())?
    }

    /// Writes down how a call ended, before it is settled. An error is not returned: the call is settled anyway,
    /// and after a crash by its bound.
    pub fn ended(&self, lease: LeaseId, end: &End) {
        let mut state = lock(&self.state);
        if let Err(error) = state.write(&Record::End { lease: LeaseText(lease), end: end.clone() }) {
            tracing::error!(%error, "cannot write down how a call ended");
        }
        if let Some(call) = state.open.get_mut(&lease) {
            call.end = Some(end.clone());
        }
    }

    /// Forgets a call that is settled, or that took nothing.
    pub fn settled(&self, lease: LeaseId) {
        let mut state = lock(&self.state);
        if state.open.remove(&lease).is_none() {
            return;
        }
        // After a crash a settled call is settled again, which changes nothing.
        if let Err(error) = state.write(&Record::Settled { lease: LeaseText(lease) }) {
            tracing::debug!(%error, "cannot write down that a call is settled");
        }
        if state.is_mostly_settled()
            && let Some(flushes) = &self.flushes
        {
            _ = flushes.send(None);
        }
    }
}

impl State {
    fn write(&mut self, record: &Record) -> io::Result<()> {
        if let Some(kind) = self.failed {
            return Err(io::Error::new(kind, "the disk of --calls failed before"));
        }
        let Some(file) = &self.file else { return Ok(()) };
        let line = line(record)?;
        let written = (&**file).write_all(&line);
        match &written {
            Ok(()) => self.bytes += line.len() as u64,
            Err(error) => self.failed = Some(error.kind()),
        }
        written
    }

    fn is_mostly_settled(&self) -> bool {
        self.bytes > REWRITE_BYTES && self.bytes / 2 > self.bytes_fresh
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Flushes for all callers that wait, until the last sender is gone.
fn flush_for(waiters: &mpsc::Receiver<Waiter>, state: &Mutex<State>, folder: &Path) {
    while let Ok(first) = waiters.recv() {
        let mut waiting: Vec<oneshot::Sender<io::Result<()>>> = first.into_iter().collect();
        waiting.extend(waiters.try_iter().flatten());
        // The records of all that wait are in this file, or in one that was written anew since.
        let file = lock(state).file.clone();
        let mut flushed = file.map_or(Ok(()), |file| file.sync_data());
        let mut state = lock(state);
        if flushed.is_ok() && state.is_mostly_settled() {
            flushed = rewrite(folder, &state.open).map(|(file, bytes)| {
                (state.file, state.bytes, state.bytes_fresh) = (Some(Arc::new(file)), bytes, bytes);
            });
        }
        if let Err(error) = &flushed {
            tracing::error!(%error, "the disk of --calls failed; no call is sent any more");
            state.failed = Some(error.kind());
        }
        drop(state);
        for waiter in waiting {
            let answer = flushed.as_ref().copied().map_err(|error| io::Error::new(error.kind(), error.to_string()));
            _ = waiter.send(answer);
        }
    }
}

/// A record with its checksum, on one line.
fn line(record: &Record) -> io::Result<Vec<u8>> {
    let json = serde_json::to_string(record)?;
    Ok(format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes())).into_bytes())
}

/// The open calls of a file. The last line may be incomplete; a damaged one before it is logged and left out.
fn read(path: &Path) -> io::Result<BTreeMap<LeaseId, OpenCall>> {
    let mut open = BTreeMap::new();
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(open),
        Err(error) => return Err(error),
    };
    let is_whole = bytes.ends_with(b"\n");
    let mut lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
    // Behind the last line break is nothing, or a record whose write was interrupted.
    let torn = lines.pop().filter(|_| !is_whole);
    for (place, line) in lines.into_iter().enumerate() {
        match parsed(line) {
            Some(record) => apply(&mut open, record),
            None => tracing::error!(path = %path.display(), line = place + 1, "a record is damaged and left out"),
        }
    }
    if torn.is_some() {
        tracing::info!(path = %path.display(), "the last record was not written completely and is left out");
    }
    Ok(open)
}

fn parsed(line: &[u8]) -> Option<Record> {
    let (sum, json) = line.split_at_checked(8)?;
    let json = json.strip_prefix(b" ")?;
    let sum = u32::from_str_radix(std::str::from_utf8(sum).ok()?, 16).ok()?;
    (sum == crc32fast::hash(json)).then(|| serde_json::from_slice(json).ok())?
}

fn apply(open: &mut BTreeMap<LeaseId, OpenCall>, record: Record) {
    match record {
        Record::Open { lease, call } => {
            open.insert(lease.0, call);
        }
        Record::Sent { lease, policy_revision } => {
            if let Some(call) = open.get_mut(&lease.0) {
                (call.is_sent, call.policy_revision) = (true, policy_revision);
            }
        }
        Record::End { lease, end } => {
            if let Some(call) = open.get_mut(&lease.0) {
                call.end = Some(end);
            }
        }
        Record::Settled { lease } => {
            open.remove(&lease.0);
        }
    }
}

/// Writes a new file with these calls, and puts it in the place of the old one.
fn rewrite(folder: &Path, open: &BTreeMap<LeaseId, OpenCall>) -> io::Result<(File, u64)> {
    let (path, fresh) = (folder.join(FILE), folder.join("calls.new"));
    let mut bytes = Vec::new();
    for (lease, call) in open {
        bytes.extend(line(&Record::Open { lease: LeaseText(*lease), call: call.clone() })?);
    }
    let mut file = private_file().write(true).create(true).truncate(true).open(&fresh)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    fs::rename(&fresh, &path)?;
    File::open(folder)?.sync_all()?;
    Ok((file, bytes.len() as u64))
}

fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Creates a folder for its owner only, and takes the permissions of others from one that exists.
fn create_private_dir(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)?;
    #[cfg(unix)]
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
    Ok(())
}

#[cfg(test)]
mod tests;
