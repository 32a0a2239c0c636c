//! Archives of backups: a tar file whose last member, `SHA256SUMS`, has the checksums of the others.
//!
//! `tar xf` and `sha256sum --check SHA256SUMS` read an archive too. An archive without its last member is incomplete.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use earmark_admission::{create_private_dir, private_file};
use sha2::{Digest, Sha256};

/// Unit of a tar file, in bytes.
const BLOCK: usize = 512;
/// Bytes that are read from a file at once: large enough for a fast disk, small beside a connection's buffers.
const PIECE: usize = 256 << 10;
/// The last member.
const SUMS: &str = "SHA256SUMS";
/// The file that every complete data folder has.
const IDENTITY: &str = "identity";
/// Lock file of a data folder, which is not part of a backup.
const LOCK: &str = "lock";
/// Longest name of a member: that of a tar header.
const NAME_MAX: usize = 100;
/// Folders above a file. A data folder has one level of folders.
const DEPTH_MAX: usize = 2;
/// Files of an archive. A journal of 10 TiB has fewer segments.
const FILES_MAX: usize = 1 << 20;
/// Sizes below this are written in octal digits, others in base 256.
const OCTAL_MAX: u64 = 1 << 33;

/// Why an archive is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// The bytes are not an archive of a backup, or were changed.
    #[error("{0}")]
    Damaged(String),
    /// It ends before its last member.
    #[error("the archive ends early, so the backup is incomplete; make it again")]
    Incomplete,
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: String,
        /// The cause.
        source: io::Error,
    },
}

fn damaged(what: impl ToString) -> ArchiveError {
    ArchiveError::Damaged(what.to_string())
}

/// Packs the files of a folder, piece by piece.
#[derive(Debug)]
pub(crate) struct Packer {
    root: PathBuf,
    /// The files still to pack, in reverse order.
    files: Vec<String>,
    open: Option<Packing>,
    sums: String,
    is_finished: bool,
}

/// A file that is being packed.
#[derive(Debug)]
struct Packing {
    name: String,
    file: File,
    size: u64,
    left: u64,
    digest: Sha256,
}

impl Packer {
    pub(crate) fn new(root: &Path) -> io::Result<Packer> {
        let mut files = Vec::new();
        list(root, "", &mut files)?;
        files.retain(|name| name != LOCK);
        files.sort_unstable_by(|one, other| other.cmp(one));
        Ok(Packer { root: root.to_owned(), files, open: None, sums: String::new(), is_finished: false })
    }

    /// The next bytes of the archive; `None` at its end.
    pub(crate) fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        if let Some(packing) = &mut self.open {
            if packing.left > 0 {
                return packing.read().map(Some);
            }
            let end = vec![0; padding(packing.size)];
            if let Some(Packing { name, digest, .. }) = self.open.take() {
                self.sums += &format!("{}  {name}\n", hex(&digest.finalize()));
            }
            if !end.is_empty() {
                return Ok(Some(end));
            }
        }
        if let Some(name) = self.files.pop() {
            let file = File::open(self.root.join(&name))?;
            let size = file.metadata()?.len();
            let head = header(&name, size)?;
            self.open = Some(Packing { name, file, size, left: size, digest: Sha256::new() });
            return Ok(Some(head));
        }
        if self.is_finished {
            return Ok(None);
        }
        self.is_finished = true;
        let size = self.sums.len() as u64;
        let mut end = header(SUMS, size)?;
        end.extend_from_slice(self.sums.as_bytes());
        end.resize(end.len() + padding(size) + 2 * BLOCK, 0);
        Ok(Some(end))
    }
}

impl Packing {
    fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut piece = vec![0; PIECE.min(usize::try_from(self.left).unwrap_or(PIECE))];
        self.file.read_exact(&mut piece)?;
        self.left = self.left.saturating_sub(piece.len() as u64);
        self.digest.update(&piece);
        Ok(piece)
    }
}

fn list(root: &Path, folder: &str, found: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let name = format!("{folder}{}", entry.file_name().to_string_lossy());
        match entry.file_type()?.is_dir() {
            true => list(root, &format!("{name}/"), found)?,
            false => found.push(name),
        }
    }
    Ok(())
}

/// Zeros that fill the last block of a file.
fn padding(size: u64) -> usize {
    let rest = usize::try_from(size % BLOCK as u64).unwrap_or(0);
    if rest == 0 { 0 } else { BLOCK - rest }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A tar header (ustar) of a file that only its owner may read.
fn header(name: &str, size: u64) -> io::Result<Vec<u8>> {
    if !is_allowed(name) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} cannot be in an archive")));
    }
    let mut head = vec![0; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| {
        head.iter_mut().skip(at).zip(bytes).for_each(|(to, from)| *to = *from);
    };
    put(0, name.as_bytes());
    put(100, b"0000600\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    match size < OCTAL_MAX {
        true => put(124, format!("{size:011o}\0").as_bytes()),
        false => put(124, &[&[0x80, 0, 0, 0][..], &size.to_be_bytes()].concat()),
    }
    put(136, b"00000000000\0");
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    let sum = checksum(&head);
    head.iter_mut().skip(148).zip(format!("{sum:06o}\0 ").bytes()).for_each(|(to, from)| *to = from);
    Ok(head)
}

/// The sum of a header's bytes, with its own field as spaces.
fn checksum(head: &[u8]) -> u64 {
    let byte = |(at, byte): (usize, &u8)| u64::from(if (148..156).contains(&at) { b' ' } else { *byte });
    head.iter().enumerate().map(byte).sum()
}

/// Whether a member may have this name. It never leads out of the folder.
fn is_allowed(name: &str) -> bool {
    let is_plain = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    name.len() < NAME_MAX && name.split('/').count() <= DEPTH_MAX && name.split('/').all(is_plain)
}

/// Name and size in a header.
fn parse_header(head: &[u8]) -> Result<(String, u64), ArchiveError> {
    let field = |from: usize, to: usize| head.get(from..to).unwrap_or_default();
    let text = |bytes: &[u8]| {
        let end = bytes.iter().position(|byte| matches!(byte, 0 | b' ')).unwrap_or(bytes.len());
        String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned()
    };
    let octal = |bytes: &[u8]| u64::from_str_radix(&text(bytes), 8).ok();
    if field(257, 262) != b"ustar" || octal(field(148, 156)) != Some(checksum(head)) {
        return Err(damaged("this is not an archive of `earmark backup`, or it was changed"));
    }
    let name = text(field(0, NAME_MAX));
    if !is_allowed(&name) || field(156, 157) != b"0" {
        return Err(damaged(format!("{name:?} does not belong into a backup")));
    }
    let size = match field(124, 136) {
        [0x80, 0, 0, 0, size @ ..] => size.try_into().ok().map(u64::from_be_bytes),
        digits => octal(digits),
    };
    size.map(|size| (name, size)).ok_or_else(|| damaged("the size of a file cannot be read"))
}

/// The content of an archive that was read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unpacked {
    /// Files of the data folder.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// Reads an archive from pieces of any size and checks it; with a folder it also writes the files there.
#[derive(Debug)]
pub struct Unpacker {
    folder: Option<PathBuf>,
    /// The bytes of an incomplete header.
    head: Vec<u8>,
    open: Option<Unpacking>,
    /// Zeros still to skip.
    padding: usize,
    digests: BTreeMap<String, String>,
    bytes: u64,
    /// The content of `SHA256SUMS`, once it has begun.
    sums: Option<Vec<u8>>,
}

/// A file that is being unpacked.
#[derive(Debug)]
struct Unpacking {
    name: String,
    file: Option<File>,
    size: u64,
    left: u64,
    digest: Sha256,
}

impl Unpacker {
    /// Unpacks into a folder that exists; without one, only checks.
    #[must_use]
    pub fn new(folder: Option<&Path>) -> Unpacker {
        let (head, digests) = (Vec::with_capacity(BLOCK), BTreeMap::new());
        Unpacker { folder: folder.map(Path::to_owned), head, open: None, padding: 0, digests, bytes: 0, sums: None }
    }

    /// Reads the next piece.
    ///
    /// # Errors
    /// If the bytes are no archive of a backup, or a file cannot be written.
    pub fn feed(&mut self, mut piece: &[u8]) -> Result<(), ArchiveError> {
        while !piece.is_empty() {
            let wanted = match &self.open {
                _ if self.padding > 0 => self.padding,
                Some(open) => usize::try_from(open.left).unwrap_or(usize::MAX),
                None => BLOCK.saturating_sub(self.head.len()),
            };
            let (now, later) = piece.split_at(wanted.min(piece.len()));
            piece = later;
            if self.padding > 0 {
                self.padding = self.padding.saturating_sub(now.len());
            } else if self.open.is_some() {
                self.write(now)?;
            } else {
                self.head.extend_from_slice(now);
                if self.head.len() == BLOCK {
                    self.begin()?;
                }
            }
        }
        Ok(())
    }

    /// Checks that the archive was complete, and every file as it was written.
    ///
    /// # Errors
    /// If a file is missing, unknown or changed, or the archive ends early.
    pub fn finish(mut self) -> Result<Unpacked, ArchiveError> {
        let sums = self.sums.take().filter(|_| self.open.is_none()).ok_or(ArchiveError::Incomplete)?;
        let sums = String::from_utf8(sums).map_err(|_| damaged("SHA256SUMS is not text"))?;
        let mut files = 0;
        for line in sums.lines() {
            let (sum, name) = line.split_once("  ").ok_or_else(|| damaged("SHA256SUMS has a malformed line"))?;
            match self.digests.remove(name) {
                Some(found) if found == sum => files += 1,
                Some(_) => return Err(damaged(format!("{name}: the checksum is wrong; the archive was changed"))),
                None => return Err(damaged(format!("{name} is missing from the archive"))),
            }
        }
        if let Some(name) = self.digests.keys().next() {
            return Err(damaged(format!("{name} is not in SHA256SUMS; the archive was changed")));
        }
        if !sums.lines().any(|line| line.ends_with(&format!("  {IDENTITY}"))) {
            return Err(damaged("the archive has no data folder"));
        }
        Ok(Unpacked { files, bytes: self.bytes })
    }

    fn begin(&mut self) -> Result<(), ArchiveError> {
        let head = std::mem::take(&mut self.head);
        if head.iter().all(|byte| *byte == 0) && self.sums.is_some() {
            return Ok(());
        }
        if self.sums.is_some() {
            return Err(damaged("the archive goes on after SHA256SUMS"));
        }
        let (name, size) = parse_header(&head)?;
        if self.digests.contains_key(&name) || self.digests.len() >= FILES_MAX {
            return Err(damaged(format!("{name} is in the archive twice, or there are too many files")));
        }
        let file = match &self.folder {
            Some(folder) if name != SUMS => Some(create(folder, &name)?),
            _ => None,
        };
        if name == SUMS {
            self.sums = Some(Vec::new());
        }
        self.open = Some(Unpacking { name, file, size, left: size, digest: Sha256::new() });
        self.write(&[])
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), ArchiveError> {
        let Some(open) = &mut self.open else { return Ok(()) };
        open.left = open.left.saturating_sub(bytes.len() as u64);
        match &mut self.sums {
            Some(sums) if sums.len() + bytes.len() > FILES_MAX * (NAME_MAX + 66) => {
                return Err(damaged("SHA256SUMS is too long"));
            }
            Some(sums) => sums.extend_from_slice(bytes),
            None => {
                open.digest.update(bytes);
                self.bytes = self.bytes.saturating_add(bytes.len() as u64);
            }
        }
        let failed = |name: &str, source| ArchiveError::File { path: name.to_owned(), source };
        if let Some(file) = &mut open.file {
            file.write_all(bytes).map_err(|source| failed(&open.name, source))?;
        }
        if open.left == 0 {
            self.padding = padding(open.size);
            if let Some(Unpacking { name, file, digest, .. }) = self.open.take() {
                file.map_or(Ok(()), |file| file.sync_all()).map_err(|source| failed(&name, source))?;
                if self.sums.is_none() {
                    self.digests.insert(name, hex(&digest.finalize()));
                }
            }
        }
        Ok(())
    }
}

fn create(folder: &Path, name: &str) -> Result<File, ArchiveError> {
    let path = folder.join(name);
    let made = path.parent().map_or(Ok(()), create_private_dir);
    let made = made.and_then(|()| private_file().write(true).create_new(true).open(&path));
    made.map_err(|source| ArchiveError::File { path: path.display().to_string(), source })
}

#[cfg(test)]
mod tests;
