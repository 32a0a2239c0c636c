//! Transactions as bytes. The encoding of the operations is also what the content hash covers.

use super::{CodecError, revision};
use crate::book::{Operation, Write, WriteId};
use crate::id::ClientId;
use crate::wire::{Bytes, Put, Wire, wire_enum, wire_struct};

wire_struct!(Write { namespace, vault, id, tx_id, log_index, actor, operations via operations });

/// A client with its sequence, or no client and a key.
impl Wire for WriteId {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            WriteId::Sequence { client, sequence } => {
                client.write(out);
                sequence.write(out);
            }
            WriteId::Key(key) => {
                out.put_text("");
                key.write(out);
            }
        }
    }

    fn read(input: &mut Bytes<'_>) -> Result<WriteId, CodecError> {
        match input.text()? {
            "" => Ok(WriteId::Key(Wire::read(input)?)),
            client => Ok(WriteId::Sequence { client: ClientId::new(client)?, sequence: input.u64()? }),
        }
    }
}

pub(crate) mod operations {
    use super::{Bytes, CodecError, Operation, Put, Wire};

    pub(crate) fn write(operations: &[Operation], out: &mut Vec<u8>) {
        out.put_len(operations.len());
        operations.iter().for_each(|operation| operation.write(out));
    }

    pub(crate) fn read(input: &mut Bytes<'_>) -> Result<Vec<Operation>, CodecError> {
        let count = input.u32()?;
        (0..count).map(|_| Operation::read(input)).collect()
    }
}

wire_enum!(Operation or "its operation is unknown" {
    1 => PutLimit { expected_revision via revision, definition },
    2 => DeleteLimit { expected_revision via revision, key },
    3 => OpenVault { vault },
    4 => OpenAccount { account, overdraft, plan },
    5 => FreezeAccount { account },
    6 => UnfreezeAccount { account },
    7 => CloseAccount { account },
    8 => Issue { account, asset, amount, memo, terms },
    9 => Transfer { from, to, asset, amount, memo },
    10 => Retire { account, asset, amount, memo },
    11 => RetireClient { client },
    12 => SetPlan { account, plan },
    13 => DeleteVault { vault },
});
