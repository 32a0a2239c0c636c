//! The file of a founder whose cluster has not begun.
//!
//! It holds the random id of the data folder, so that a restarted founder is still the same one, and the promise that the
//! founder has made. A promise is final: a data folder founds one cluster at most.

use earmark_core::SecretHash;

use crate::disk::Disk;
use crate::entry::{CodecError, Input};
use crate::fault::{Fault, Operation};
use crate::storage::header::FileKind;

pub(crate) const PATH: &str = "founding";
pub(crate) const UNFINISHED: &str = "founding.unfinished";
const KIND: FileKind = FileKind { magic: *b"EMfo", format: 1 };
/// Upper bound of the file size, so that a foreign file is never read whole.
const BYTES_MAX: usize = 64 << 10;

/// The founders of a cluster, in the order of their ids, which begin with 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Promise {
    /// Address and incarnation of each.
    pub(crate) founders: Vec<(String, u128)>,
}

impl Promise {
    /// The id of the cluster. All founders derive it from the same content; others get another id.
    pub(crate) fn cluster(&self) -> u128 {
        let mut bytes = Vec::new();
        self.founders.iter().for_each(|founder| put_founder(founder, &mut bytes));
        let hash = SecretHash::of(&bytes);
        hash.as_bytes().first_chunk::<16>().copied().map_or(0, u128::from_le_bytes)
    }
}

/// State of a founder without a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FounderFile {
    /// Random id of the data folder.
    pub(crate) incarnation: u128,
    pub(crate) promise: Option<Promise>,
}

impl FounderFile {
    /// Reads the file of a folder, if there is one.
    pub(crate) fn read(disk: &dyn Disk) -> Result<Option<FounderFile>, Fault> {
        if !disk.list_folder("")?.iter().any(|name| name == PATH) {
            return Ok(None);
        }
        let file = disk.open_file(PATH)?;
        let bytes = file.read(0, BYTES_MAX)?;
        let header = KIND.decode(&bytes).map_err(|defect| KIND.fault(&file, defect))?;
        let mut input = Input::new(header.body);
        let read = FounderFile::take(&mut input).and_then(|found| input.end().map(|()| found));
        read.map(Some).map_err(|error| file.damaged(0, error))
    }

    /// Replaces the file. It is on disk when this returns.
    pub(crate) fn write(&self, disk: &dyn Disk) -> Result<(), Fault> {
        let file = disk.create_file(UNFINISHED)?;
        file.write(&self.encode(), 0)?;
        file.sync()?;
        disk.check(Operation::Rename, UNFINISHED, disk.rename(UNFINISHED, PATH))?;
        disk.sync_folder("")
    }

    /// Removes the file. Its cluster has begun, or the node has joined another.
    pub(crate) fn remove(disk: &dyn Disk) -> Result<(), Fault> {
        let names = disk.list_folder("")?;
        let mut ours = names.iter().filter(|name| [PATH, UNFINISHED].contains(&name.as_str()));
        ours.try_for_each(|name| disk.remove_file(name))
    }

    fn encode(&self) -> Vec<u8> {
        let mut body = self.incarnation.to_le_bytes().to_vec();
        let founders = self.promise.as_ref().map_or(&[][..], |promise| &promise.founders);
        body.extend_from_slice(&u32::try_from(founders.len()).unwrap_or(u32::MAX).to_le_bytes());
        founders.iter().for_each(|founder| put_founder(founder, &mut body));
        KIND.encode(0, &body)
    }

    fn take(input: &mut Input) -> Result<FounderFile, CodecError> {
        let incarnation = input.u128()?;
        let mut founders = Vec::new();
        for _ in 0..input.u32()? {
            let len = input.u32()? as usize;
            let address = String::from_utf8(input.take(len)?.into()).map_err(|_| CodecError::Address)?;
            founders.push((address, input.u128()?));
        }
        let promise = (!founders.is_empty()).then_some(Promise { founders });
        Ok(FounderFile { incarnation, promise })
    }
}

fn put_founder((address, incarnation): &(String, u128), out: &mut Vec<u8>) {
    out.extend_from_slice(&u32::try_from(address.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend_from_slice(address.as_bytes());
    out.extend_from_slice(&incarnation.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RealDisk;

    #[test]
    fn a_founder_finds_its_promise_again_and_another_promise_is_another_cluster() -> Result<(), Fault> {
        let folder = tempfile::tempdir().expect("a folder");
        let disk = RealDisk::new(folder.path()).expect("a disk");
        assert_eq!(FounderFile::read(&disk)?, None);
        let mut file = FounderFile { incarnation: 7, promise: None };
        file.write(&disk)?;
        assert_eq!(FounderFile::read(&disk)?, Some(file.clone()));
        let promise = |last: u128| Promise { founders: vec![("a:1".into(), 7), ("b:1".into(), last)] };
        file.promise = Some(promise(8));
        file.write(&disk)?;
        assert_eq!(FounderFile::read(&disk)?, Some(file));
        assert_eq!(promise(8).cluster(), promise(8).cluster());
        assert_ne!(promise(8).cluster(), promise(9).cluster());
        FounderFile::remove(&disk)?;
        assert_eq!(FounderFile::read(&disk)?, None);
        Ok(())
    }
}
