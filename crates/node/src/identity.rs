//! Whose data folder this is. The file `identity` is the last thing that is made in a new folder, so a folder that has
//! it is whole; until then a file `forming` says that what lies there is nothing yet.

use std::any::Any;
use std::io;

use bytes::Bytes;

use crate::disk::Disk;
use crate::entry::{CodecError, Input};
use crate::fault::{At, Fault, Operation};

const IDENTITY: &str = "identity";
const UNFINISHED: &str = "identity.unfinished";
const FORMING: &str = "forming";
const LOCK: &str = "lock";
/// What is found in folders that nobody has used yet.
const NOBODYS: [&str; 2] = [LOCK, "lost+found"];

const MAGIC: [u8; 4] = *b"EMid";
const FORMING_TEXT: &[u8] = b"Earmark is making this data folder. It holds nothing yet.\n";
const FORMAT: u32 = 1;

/// Which node a data folder belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster.
    pub cluster: u128,
    /// The node in it.
    pub node: u64,
    /// Drawn when the folder was made: a node that lost its folder is another node.
    pub incarnation: u128,
    /// Whether it began the cluster. Any other node waits to be made a member.
    pub is_founder: bool,
}

/// What a data folder is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Folder {
    /// Empty, or its making was cut off.
    New,
    /// That of a node.
    Made(Identity),
}

/// Whose folder is expected; `None` takes any.
#[derive(Clone, Copy, Debug, Default)]
pub struct Expected {
    /// The cluster.
    pub cluster: Option<u128>,
    /// The node.
    pub node: Option<u64>,
}

/// Keeps other processes out of a data folder until it is dropped.
#[derive(Debug)]
pub struct FolderLock {
    _held: Box<dyn Any + Send + Sync>,
}

impl Folder {
    /// Says what a folder is. One that is not there is new.
    ///
    /// # Errors
    /// If it belongs to somebody else, is damaged, or of a newer format.
    pub(crate) fn look(disk: &dyn Disk, expected: Expected) -> Result<Folder, Fault> {
        look(disk, expected)
    }

    /// Takes a folder for this process, and says what it is.
    ///
    /// # Errors
    /// If it belongs to somebody else, is damaged, of a newer format, or in use. Nothing is written then.
    pub fn take(disk: &dyn Disk, expected: Expected) -> Result<(Folder, FolderLock), Fault> {
        // Looked at before it is locked, for the lock is a file, and a stranger's folder gets none.
        look(disk, expected)?;
        let held = disk.lock(LOCK).at(Operation::Lock, || disk.show(LOCK))?;
        let held = held.ok_or_else(|| Fault::InUse { path: disk.show("") })?;
        let folder = look(disk, expected)?;
        if matches!(folder, Folder::Made(_)) && names(disk)?.iter().any(|name| name == FORMING) {
            remove(disk, FORMING)?;
            sync(disk)?;
        }
        Ok((folder, FolderLock { _held: held }))
    }
}

impl Identity {
    /// Makes a new folder; `make` puts into it what a node needs. What a former attempt left is removed. A crash at any
    /// point leaves a folder that is new, or this.
    ///
    /// # Errors
    /// What the file system says.
    pub fn format(
        &self,
        disk: &dyn Disk,
        make: impl FnOnce(&dyn Disk) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        write(disk, FORMING, FORMING_TEXT)?;
        sync(disk)?;
        for name in names(disk)?.iter().filter(|name| *name != FORMING && !NOBODYS.contains(&name.as_str())) {
            // Only what is a folder can be listed. Folders are left, since they are made again.
            match disk.list(name) {
                Ok(inner) => inner.iter().try_for_each(|inner| remove(disk, &format!("{name}/{inner}")))?,
                Err(_) => remove(disk, name)?,
            }
        }
        make(disk)?;
        write(disk, UNFINISHED, &self.encode())?;
        disk.rename(UNFINISHED, IDENTITY).at(Operation::Rename, || disk.show(UNFINISHED))?;
        sync(disk)?;
        remove(disk, FORMING)?;
        sync(disk)
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&FORMAT.to_le_bytes());
        out.extend_from_slice(&self.cluster.to_le_bytes());
        out.extend_from_slice(&self.node.to_le_bytes());
        out.extend_from_slice(&self.incarnation.to_le_bytes());
        out.push(u8::from(self.is_founder));
        let sum = crc32fast::hash(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        out
    }
}

/// Looks at a folder without changing anything.
fn look(disk: &dyn Disk, expected: Expected) -> Result<Folder, Fault> {
    let names = names(disk)?;
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    if has(IDENTITY) {
        let identity = decode(disk, &read(disk, IDENTITY)?)?;
        return check(disk, identity, expected).map(|()| Folder::Made(identity));
    }
    if has(FORMING) && read(disk, FORMING)? == FORMING_TEXT {
        return Ok(Folder::New);
    }
    if has("log") && has("vote") {
        return Err(Fault::Missing { path: disk.show(IDENTITY) });
    }
    // The text of a `forming` that was cut off right after it was made may be lost; then there is nothing else.
    let strange = names.iter().find(|name| *name != FORMING && !NOBODYS.contains(&name.as_str()));
    let strange = match strange {
        Some(name) => Some(name.clone()),
        None if has(FORMING) && !is_rest_of_forming(&read(disk, FORMING)?) => Some(FORMING.to_owned()),
        None => None,
    };
    strange.map_or(Ok(Folder::New), |found| Err(Fault::NotEmpty { path: disk.show(""), found }))
}

/// A text whose writing was cut off: some of its bytes never came.
fn is_rest_of_forming(bytes: &[u8]) -> bool {
    bytes.len() <= FORMING_TEXT.len()
        && bytes.iter().zip(FORMING_TEXT).all(|(found, byte)| found == byte || *found == 0)
}

fn check(disk: &dyn Disk, identity: Identity, expected: Expected) -> Result<(), Fault> {
    let path = || disk.show(IDENTITY);
    match (expected.cluster, expected.node) {
        (Some(cluster), _) if cluster != identity.cluster => {
            Err(Fault::OtherCluster { path: path(), found: identity.cluster, expected: cluster })
        }
        (_, Some(node)) if node != identity.node => {
            Err(Fault::OtherNode { path: path(), found: identity.node, expected: node })
        }
        _ => Ok(()),
    }
}

fn decode(disk: &dyn Disk, bytes: &[u8]) -> Result<Identity, Fault> {
    let damaged =
        |found: &str| Fault::Damaged { path: disk.show(IDENTITY), offset: 0, found: found.to_owned() };
    let Some((summed, sum)) = bytes.len().checked_sub(4).map(|at| bytes.split_at(at)) else {
        return Err(damaged("it is cut short"));
    };
    if sum != crc32fast::hash(summed).to_le_bytes() || !summed.starts_with(&MAGIC) {
        return Err(damaged("its checksum is wrong"));
    }
    let mut input = Input::new(Bytes::copy_from_slice(summed));
    let mut format = || input.u32().and_then(|_| input.u32());
    match format() {
        Ok(found) if found > FORMAT => {
            return Err(Fault::NewerFormat { path: disk.show(IDENTITY), found, known: FORMAT });
        }
        _ => {}
    }
    let mut read = || {
        let (cluster, node, incarnation) = (input.u128()?, input.u64()?, input.u128()?);
        let identity = Identity { cluster, node, incarnation, is_founder: input.flag()? };
        input.end()?;
        Ok(identity)
    };
    read().map_err(|error: CodecError| damaged(&error.to_string()))
}

fn names(disk: &dyn Disk) -> Result<Vec<String>, Fault> {
    disk.list("").at(Operation::List, || disk.show(""))
}

fn read(disk: &dyn Disk, path: &str) -> Result<Vec<u8>, Fault> {
    /// More than any of these files ever has.
    const BYTES_MAX: u64 = 4096;
    let read = || {
        let file = disk.open(path, false)?;
        let mut bytes = vec![0; usize::try_from(file.len()?.min(BYTES_MAX)).unwrap_or_default()];
        file.read_at(&mut bytes, 0)?;
        Ok::<_, io::Error>(bytes)
    };
    read().at(Operation::Read, || disk.show(path))
}

fn write(disk: &dyn Disk, path: &str, bytes: &[u8]) -> Result<(), Fault> {
    let write = || {
        let file = disk.open(path, true)?;
        file.set_len(0)?;
        file.write_at(bytes, 0)?;
        file.sync()
    };
    write().at(Operation::Write, || disk.show(path))
}

fn remove(disk: &dyn Disk, path: &str) -> Result<(), Fault> {
    disk.remove(path).at(Operation::Remove, || disk.show(path))
}

fn sync(disk: &dyn Disk) -> Result<(), Fault> {
    disk.sync_dir("").at(Operation::Sync, || disk.show(""))
}
