//! Identity of a data folder: its cluster, node and incarnation.
//! ¶ The file `identity` is written last when a folder is made, so a folder that has it is complete. Until then the
//! file `forming` marks the folder as empty.

use std::any::Any;

use bytes::Bytes;

use crate::disk::Disk;
use crate::entry::{CodecError, Input};
use crate::fault::{Fault, Operation};
use crate::founder_file::{self, FounderFile};
use crate::storage::header::FileKind;

const IDENTITY: &str = "identity";
const UNFINISHED: &str = "identity.unfinished";
const FORMING: &str = "forming";
const LOCK: &str = "lock";
/// Names that an unused folder may contain.
const NOBODYS: [&str; 4] = [LOCK, "lost+found", founder_file::PATH, founder_file::UNFINISHED];

const KIND: FileKind = FileKind { magic: *b"EMid", format: 1 };
const FORMING_TEXT: &[u8] = b"Earmark is making this data folder. It holds nothing yet.\n";

/// Upper bound of the size of these files, so that a foreign file is never read whole.
const BYTES_MAX: usize = 4096;

/// The node that owns a data folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Cluster id.
    pub cluster: u128,
    /// Node id, unique in the cluster.
    pub node: u64,
    /// Random id of this folder. A node that lost its folder gets a new incarnation and counts as another node.
    pub incarnation: u128,
    /// Whether this node started the cluster. Other nodes wait until they are added as members.
    pub is_founder: bool,
}

/// State of a data folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Folder {
    /// Empty, or its creation was interrupted.
    New,
    /// Complete, with the identity of its node.
    Made(Identity),
}

/// Identity that the caller requires; `None` accepts any.
#[derive(Clone, Copy, Debug, Default)]
pub struct Expected {
    /// Required cluster id.
    pub cluster: Option<u128>,
    /// Required node id.
    pub node: Option<u64>,
}

/// Lock that keeps other processes out of a data folder until it is dropped.
#[derive(Debug)]
pub struct FolderLock {
    _held: Box<dyn Any + Send + Sync>,
}

impl Folder {
    /// Reads the state of a folder. A folder that does not exist is new.
    ///
    /// # Errors
    /// If it belongs to another node, is damaged, or has a newer format.
    pub(crate) fn inspect(disk: &dyn Disk, expected: Expected) -> Result<Folder, Fault> {
        let names = disk.list_folder("")?;
        let has = |wanted: &str| names.iter().any(|name| name == wanted);
        if has(IDENTITY) {
            let identity = decode(disk)?;
            return check(disk, identity, expected).map(|()| Folder::Made(identity));
        }
        if has(FORMING) && read(disk, FORMING)? == FORMING_TEXT {
            return Ok(Folder::New);
        }
        if has("log") && has("vote") {
            return Err(Fault::Missing { path: disk.show(IDENTITY) });
        }
        // A crash right after `forming` was created may lose its text; no other file exists at that point.
        let foreign = names.iter().find(|name| *name != FORMING && !NOBODYS.contains(&name.as_str()));
        let foreign = match foreign {
            Some(name) => Some(name.clone()),
            None if has(FORMING) && !is_rest_of_forming(&read(disk, FORMING)?) => Some(FORMING.to_owned()),
            None => None,
        };
        foreign.map_or(Ok(Folder::New), |found| Err(Fault::NotEmpty { path: disk.show(""), found }))
    }

    /// Locks a folder for this process and returns its state.
    ///
    /// # Errors
    /// If it belongs to another node, is damaged, has a newer format, or is in use. Nothing is written then.
    pub fn take(disk: &dyn Disk, expected: Expected) -> Result<(Folder, FolderLock), Fault> {
        // The lock creates a file, so the folder is checked first: a foreign folder must stay unchanged.
        Folder::inspect(disk, expected)?;
        let held = disk.check(Operation::Lock, LOCK, disk.lock(LOCK))?;
        let held = held.ok_or_else(|| Fault::InUse { path: disk.show("") })?;
        let folder = Folder::inspect(disk, expected)?;
        if matches!(folder, Folder::Made(_)) && disk.list_folder("")?.iter().any(|name| name == FORMING) {
            disk.remove_file(FORMING)?;
            disk.sync_folder("")?;
        }
        if matches!(folder, Folder::Made(_)) {
            FounderFile::remove(disk)?;
        }
        Ok((folder, FolderLock { _held: held }))
    }
}

impl Identity {
    /// Formats a new folder; `make` writes the files that a node needs. Leftovers of an earlier attempt are removed.
    /// A crash at any point leaves the folder either new or complete.
    pub fn format(&self, disk: &dyn Disk, make: impl FnOnce(&dyn Disk) -> Result<(), Fault>) -> Result<(), Fault> {
        write(disk, FORMING, FORMING_TEXT)?;
        disk.sync_folder("")?;
        for name in disk.list_folder("")?.iter().filter(|name| *name != FORMING && !NOBODYS.contains(&name.as_str())) {
            // Only directories can be listed. They stay, because `make` creates them again.
            match disk.list(name) {
                Ok(inner) => inner.iter().try_for_each(|inner| disk.remove_file(&format!("{name}/{inner}")))?,
                Err(_) => disk.remove_file(name)?,
            }
        }
        make(disk)?;
        write(disk, UNFINISHED, &self.encode())?;
        disk.check(Operation::Rename, UNFINISHED, disk.rename(UNFINISHED, IDENTITY))?;
        disk.sync_folder("")?;
        disk.remove_file(FORMING)?;
        FounderFile::remove(disk)?;
        disk.sync_folder("")
    }

    fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        body.extend_from_slice(&self.node.to_le_bytes());
        body.extend_from_slice(&self.incarnation.to_le_bytes());
        body.push(u8::from(self.is_founder));
        KIND.encode(self.cluster, &body)
    }
}

/// Whether these bytes are a torn write of the `forming` text: a prefix with some bytes still zero.
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

fn decode(disk: &dyn Disk) -> Result<Identity, Fault> {
    let file = disk.open_file(IDENTITY)?;
    let bytes = file.read(0, BYTES_MAX)?;
    let header = KIND.decode(&bytes).map_err(|defect| KIND.fault(&file, defect))?;
    if header.len() != bytes.len() as u64 {
        return Err(file.damaged(header.len(), "bytes follow the header"));
    }
    let cluster = header.cluster;
    let mut input = Input::new(header.body);
    let mut read = || {
        let (node, incarnation) = (input.u64()?, input.u128()?);
        let identity = Identity { cluster, node, incarnation, is_founder: input.flag()? };
        input.end()?;
        Ok(identity)
    };
    read().map_err(|error: CodecError| file.damaged(0, error))
}

fn read(disk: &dyn Disk, path: &str) -> Result<Bytes, Fault> {
    disk.open_file(path)?.read(0, BYTES_MAX)
}

fn write(disk: &dyn Disk, path: &str, bytes: &[u8]) -> Result<(), Fault> {
    let file = disk.create_file(path)?;
    file.write(bytes, 0)?;
    file.sync()
}
