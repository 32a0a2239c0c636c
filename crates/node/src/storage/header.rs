//! The header of every file: magic, format, cluster, body length, body, and a checksum of all of it.

use bytes::Bytes;

use super::StoredFile;
use crate::entry::Input;
use crate::fault::Fault;

/// Header bytes beside the body.
pub(crate) const OVERHEAD_BYTES: usize = LEAD_BYTES + SUM_BYTES;
/// Maximum body length in bytes. The largest is the member list of a snapshot.
pub(crate) const BODY_BYTES_MAX: usize = 1 << 20;
/// Bytes before the body: magic, format, cluster and body length.
const LEAD_BYTES: usize = 4 + 4 + 16 + 4;
const SUM_BYTES: usize = 4;

/// Magic number and format version of one kind of file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileKind {
    pub(crate) magic: [u8; 4],
    pub(crate) format: u32,
}

/// A header with a valid checksum.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) cluster: u128,
    pub(crate) body: Bytes,
}

impl Header {
    pub(crate) fn len(&self) -> u64 {
        (OVERHEAD_BYTES + self.body.len()) as u64
    }
}

/// Why bytes are not a usable header.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HeaderDefect {
    Damaged(&'static str),
    NewerFormat { found: u32 },
}

impl FileKind {
    pub(crate) fn encode(self, cluster: u128, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(OVERHEAD_BYTES + body.len());
        out.extend_from_slice(&self.magic);
        out.extend_from_slice(&self.format.to_le_bytes());
        out.extend_from_slice(&cluster.to_le_bytes());
        out.extend_from_slice(&u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
        out.extend_from_slice(body);
        let sum = crc32fast::hash(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        out
    }

    /// Decodes the header at the front of some bytes. Only a header with a valid checksum can name a newer format.
    pub(crate) fn decode(self, bytes: &Bytes) -> Result<Header, HeaderDefect> {
        let truncated = HeaderDefect::Damaged("the header is truncated");
        let Some(len) = body_len(bytes).filter(|len| OVERHEAD_BYTES + len <= bytes.len()) else {
            return Err(truncated);
        };
        let summed = bytes.slice(..LEAD_BYTES + len);
        let sum = &bytes[LEAD_BYTES + len..OVERHEAD_BYTES + len];
        if !summed.starts_with(&self.magic) || sum != crc32fast::hash(&summed).to_le_bytes() {
            return Err(HeaderDefect::Damaged("the header has a wrong checksum"));
        }
        let mut input = Input::new(summed.slice(self.magic.len()..));
        let (Ok(found), Ok(cluster), Ok(_)) = (input.u32(), input.u128(), input.u32()) else {
            return Err(truncated);
        };
        if found != self.format {
            return Err(HeaderDefect::NewerFormat { found });
        }
        Ok(Header { cluster, body: input.rest() })
    }

    pub(crate) fn read(self, file: &StoredFile, cluster: u128) -> Result<Header, Fault> {
        let lead = file.read(0, LEAD_BYTES)?;
        let bytes = file.read(0, body_len(&lead).map_or(0, |len| OVERHEAD_BYTES + len))?;
        let header = self.decode(&bytes).map_err(|defect| self.fault(file, defect))?;
        self.check_cluster(file, &header, cluster)?;
        Ok(header)
    }

    pub(crate) fn check_cluster(self, file: &StoredFile, header: &Header, expected: u128) -> Result<(), Fault> {
        if header.cluster == expected {
            return Ok(());
        }
        Err(Fault::OtherCluster { path: file.path.clone(), found: header.cluster, expected })
    }

    pub(crate) fn fault(self, file: &StoredFile, defect: HeaderDefect) -> Fault {
        match defect {
            HeaderDefect::Damaged(found) => file.damaged(0, found),
            HeaderDefect::NewerFormat { found } => {
                Fault::NewerFormat { path: file.path.clone(), found, known: self.format }
            }
        }
    }
}

/// Length of the body, from the bytes before it.
fn body_len(bytes: &[u8]) -> Option<usize> {
    let len = bytes.get(LEAD_BYTES - 4..LEAD_BYTES)?.first_chunk()?;
    Some(u32::from_le_bytes(*len) as usize).filter(|len| *len <= BODY_BYTES_MAX)
}
