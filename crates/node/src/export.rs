//! Audit exports: the whole journal as a hash chain, the balances of the Book, and a signature over both.

mod format;
mod verify;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use earmark_admission::FileStream;
use earmark_core::{AccountId, AssetId, Frozen, VaultId};

use crate::journal::{ChainHead, JournalStream, split_record};
use crate::signing_key::SigningKey;
use format::{EndFrame, Signed, put_account, put_end, put_vault};

pub use format::ExportHeader;
pub use verify::{ExpectedKey, ExportDefect, ExportExpected, Verified, VerifiedAsset, verify_export};

/// Bytes of ledger frames that are sent at once.
const PIECE_BYTES: usize = 256 << 10;

/// An export on its way to the caller. It is made while it is read, in flat memory.
pub(crate) struct Export {
    stage: Stage,
    header: ExportHeader,
    records: JournalStream,
    head: ChainHead,
    frozen: Frozen,
    /// The sums of all accounts by vault and asset.
    live: BTreeMap<(VaultId, AssetId), i128>,
    signed: Signed,
    key: Arc<SigningKey>,
    counts: (u64, u64),
}

/// The part of the file that comes next.
enum Stage {
    Header,
    Records,
    Accounts(AccountId),
    Vaults(VaultId),
    Over,
}

impl Export {
    pub(crate) fn new(header: ExportHeader, records: JournalStream, frozen: Frozen, key: Arc<SigningKey>) -> Export {
        let signed = Signed::new(&header.encode());
        let (head, live) = (ChainHead::default(), BTreeMap::new());
        Export { stage: Stage::Header, header, records, head, frozen, live, signed, key, counts: (0, 0) }
    }

    /// The next records, each followed by the head of the chain.
    fn records(&mut self) -> io::Result<Option<Vec<u8>>> {
        let Some(chunk) = self.records.next() else { return Ok(None) };
        let chunk = chunk.map_err(io::Error::other)?;
        let (mut rest, mut piece) = (&chunk[..], Vec::with_capacity(chunk.len() / 2 * 3));
        while !rest.is_empty() {
            let raw = split_record(rest).map_err(io::Error::other)?;
            self.head = self.head.after(raw);
            piece.extend_from_slice(raw);
            piece.extend_from_slice(&self.head.0);
            rest = &rest[raw.len()..];
        }
        Ok(Some(piece))
    }

    fn accounts(&mut self, from: AccountId) -> Vec<u8> {
        let (mut piece, mut id) = (Vec::new(), from);
        while piece.len() < PIECE_BYTES {
            let Some((found, account)) = self.frozen.account_from(id) else {
                self.stage = Stage::Vaults(VaultId(0));
                break;
            };
            put_account(&mut piece, found, &account);
            for (asset, amount) in account.amounts {
                let live = self.live.entry((account.vault, asset)).or_default();
                *live = live.wrapping_add(amount);
            }
            self.counts.0 += 1;
            id = AccountId(found.0.saturating_add(1));
            self.stage = Stage::Accounts(id);
        }
        self.signed.add(&piece);
        piece
    }

    fn vaults(&mut self, from: VaultId) -> Vec<u8> {
        let (mut piece, mut id) = (Vec::new(), from);
        while piece.len() < PIECE_BYTES {
            let Some((found, vault)) = self.frozen.vault_from(id) else {
                self.stage = Stage::Over;
                break;
            };
            let live = |asset| self.live.get(&(found, asset)).copied().unwrap_or(0);
            put_vault(&mut piece, (found, &vault), self.frozen.assets(found).collect(), live);
            self.counts.1 += 1;
            id = VaultId(found.0.saturating_add(1));
            self.stage = Stage::Vaults(id);
        }
        self.signed.add(&piece);
        if matches!(self.stage, Stage::Over) {
            let message = self.signed.clone().message();
            let mut signature = [0; 64];
            signature.iter_mut().zip(self.key.sign(&message)).for_each(|(to, from)| *to = from);
            put_end(&mut piece, &EndFrame { accounts: self.counts.0, vaults: self.counts.1, signature });
        }
        piece
    }
}

impl FileStream for Export {
    fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            let piece = match self.stage {
                Stage::Header => {
                    self.stage = Stage::Records;
                    self.header.encode()
                }
                Stage::Records => match self.records()? {
                    Some(piece) => piece,
                    None if self.head == self.header.journal.head => self.accounts(AccountId(0)),
                    None => return Err(io::Error::other("the journal does not lead to the head of its chain")),
                },
                Stage::Accounts(id) => self.accounts(id),
                Stage::Vaults(id) => self.vaults(id),
                Stage::Over => return Ok(None),
            };
            if !piece.is_empty() {
                return Ok(Some(piece));
            }
        }
    }
}
