//! The vote of this node. A node that forgets its vote could vote twice in a term. So the file is created with the
//! data folder, and a missing or damaged file stops the node.

use crate::disk::Disk;
use crate::entry::{CodecError, Input, put_vote, take_vote};
use crate::fault::Fault;
use crate::slots::{SlotKind, Slots};
use crate::storage::header::FileKind;
use crate::types::Vote;

const KIND: SlotKind = SlotKind { path: "vote", kind: FileKind { magic: *b"EMvt", format: 1 } };

#[derive(Debug)]
pub(crate) struct VoteFile {
    slots: Slots,
}

impl VoteFile {
    /// Creates the file of a node that has not voted. The caller syncs the folder.
    pub(crate) fn create(disk: &dyn Disk, cluster: u128) -> Result<(), Fault> {
        Slots::create(disk, KIND, cluster, &encode(None)).map(|_| ())
    }

    /// Reads the vote. A vote that a killed process may not have synced is written again, because this node will act
    /// on it.
    pub(crate) fn open(disk: &dyn Disk, cluster: u128) -> Result<(VoteFile, Option<Vote>), Fault> {
        let mut found = Slots::open(disk, KIND, cluster)?;
        let mut input = Input::new(found.body.clone());
        let vote = decode(&mut input).map_err(|error| found.slots.damaged(error))?;
        if !found.settled {
            found.slots.write_both(&found.body)?;
        }
        Ok((VoteFile { slots: found.slots }, vote))
    }

    pub(crate) fn save(&mut self, vote: Vote) -> Result<(), Fault> {
        self.slots.write_both(&encode(Some(vote)))
    }
}

fn encode(vote: Option<Vote>) -> Vec<u8> {
    let mut out = vec![u8::from(vote.is_some())];
    if let Some(vote) = vote {
        put_vote(vote, &mut out);
    }
    out
}

fn decode(input: &mut Input) -> Result<Option<Vote>, CodecError> {
    let vote = if input.flag()? { Some(take_vote(input)?) } else { None };
    input.end()?;
    Ok(vote)
}
