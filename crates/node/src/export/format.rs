//! The format of an export. docs/operating.md describes it for auditors; the layout is permanent.
//!
//! A header, the journal records with the head of the chain after each, a frame per account, a frame per vault, and an
//! end frame with the signature.

use bytes::Bytes;
use earmark_core::{AccountId, AssetId, FrozenAccount, FrozenAsset, FrozenVault, VaultId};
use sha2::{Digest as _, Sha256};

use crate::entry::{CodecError, Input};
use crate::journal::JournalPosition;
use crate::signing_key::{PublicKey, SIGNATURE_BYTES};
use crate::storage::frame::{Framing, Seed};
use crate::storage::header::{FileKind, OVERHEAD_BYTES};

pub(super) const KIND: FileKind = FileKind { magic: *b"EMax", format: 1 };
/// Bytes of the header.
pub(super) const HEADER_BYTES: usize = OVERHEAD_BYTES + 3 * 8 + JournalPosition::BYTES + PublicKey::BYTES;
/// Metadata: kind and number. A vault with the most assets and the longest names is far below the maximum payload.
pub(super) const FRAMING: Framing = Framing { meta_bytes: 8 + 8, payload_bytes_max: 1 << 20 };

pub(super) const ACCOUNT: u64 = 1;
pub(super) const VAULT: u64 = 2;
pub(super) const END: u64 = 3;

/// First bytes of the signed message, so that a signature means nothing elsewhere.
const DOMAIN: &[u8] = b"earmark audit export 1\n";

/// The header of an export: its origin, its key and the end of its journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportHeader {
    /// The cluster.
    pub cluster: u128,
    /// The node that made it.
    pub node: u64,
    /// Index of the last log entry whose records it contains.
    pub log_index: u64,
    /// Wall time of the export, in milliseconds since 1970.
    pub at_unix_ms: u64,
    /// Number, bytes and hash of the records.
    pub journal: JournalPosition,
    /// The key that signed it.
    pub public_key: PublicKey,
}

impl ExportHeader {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        for number in [self.node, self.log_index, self.at_unix_ms] {
            body.extend_from_slice(&number.to_le_bytes());
        }
        self.journal.put(&mut body);
        body.extend_from_slice(&self.public_key.0);
        KIND.encode(self.cluster, &body)
    }

    pub(super) fn decode(cluster: u128, body: Bytes) -> Result<ExportHeader, CodecError> {
        let mut input = Input::new(body);
        let (node, log_index, at_unix_ms) = (input.u64()?, input.u64()?, input.u64()?);
        let journal = JournalPosition::take(&mut input)?;
        let public_key = PublicKey(input.array()?);
        input.end()?;
        Ok(ExportHeader { cluster, node, log_index, at_unix_ms, journal, public_key })
    }
}

/// The hash that is signed: of the header, which has the head of the journal, and of all frames of the ledger.
#[derive(Clone)]
pub(super) struct Signed(Sha256);

impl Signed {
    pub(super) fn new(header: &[u8]) -> Signed {
        Signed(Sha256::new().chain_update(header))
    }

    pub(super) fn add(&mut self, frames: &[u8]) {
        self.0.update(frames);
    }

    pub(super) fn message(self) -> Vec<u8> {
        [DOMAIN, self.0.finalize().as_slice()].concat()
    }
}

/// An account in an export.
pub(super) struct AccountFrame {
    pub(super) vault: VaultId,
    pub(super) name: String,
    pub(super) amounts: Vec<(AssetId, i128)>,
}

/// A vault in an export.
pub(super) struct VaultFrame {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) assets: Vec<AssetFrame>,
}

/// An asset of a vault in an export.
pub(super) struct AssetFrame {
    pub(super) name: String,
    pub(super) issued: i128,
    pub(super) retired: i128,
    pub(super) expired: i128,
    pub(super) live: i128,
}

/// The end of an export.
pub(super) struct EndFrame {
    pub(super) accounts: u64,
    pub(super) vaults: u64,
    pub(super) signature: [u8; SIGNATURE_BYTES],
}

/// Appends a frame. Names and counts of the Book are bounded, so its payload is never too long.
pub(super) fn put_frame(out: &mut Vec<u8>, kind: u64, number: u64, payload: impl FnOnce(&mut Vec<u8>)) {
    let mut meta = [0; 16];
    meta[..8].copy_from_slice(&kind.to_le_bytes());
    meta[8..].copy_from_slice(&number.to_le_bytes());
    let put = FRAMING.put(&Seed::default(), &meta, out, payload);
    debug_assert!(put.is_ok(), "a frame of an export is too long");
}

/// Appends the frame of an account.
pub(super) fn put_account(out: &mut Vec<u8>, id: AccountId, account: &FrozenAccount<'_>) {
    put_frame(out, ACCOUNT, id.0.into(), |out| {
        out.extend_from_slice(&account.vault.0.to_le_bytes());
        put_text(out, account.name.as_str());
        put_len(out, account.amounts.len());
        for (asset, amount) in &account.amounts {
            out.extend_from_slice(&asset.0.to_le_bytes());
            out.extend_from_slice(&amount.to_le_bytes());
        }
    });
}

/// Appends the frame of a vault. `live` gives the sum of all accounts in an asset.
pub(super) fn put_vault(
    out: &mut Vec<u8>,
    (id, vault): (VaultId, &FrozenVault<'_>),
    assets: Vec<FrozenAsset<'_>>,
    live: impl Fn(AssetId) -> i128,
) {
    put_frame(out, VAULT, id.0.into(), |out| {
        put_text(out, vault.namespace_name.as_str());
        put_text(out, vault.name.as_str());
        put_len(out, assets.len());
        for (asset, number) in assets.iter().zip(0..) {
            put_text(out, asset.name.as_str());
            for amount in [asset.issued, asset.retired, asset.expired, live(AssetId(number))] {
                out.extend_from_slice(&amount.to_le_bytes());
            }
        }
    });
}

pub(super) fn put_end(out: &mut Vec<u8>, end: &EndFrame) {
    put_frame(out, END, 0, |out| {
        out.extend_from_slice(&end.accounts.to_le_bytes());
        out.extend_from_slice(&end.vaults.to_le_bytes());
        out.extend_from_slice(&end.signature);
    });
}

impl AccountFrame {
    pub(super) fn decode(payload: Bytes) -> Result<AccountFrame, CodecError> {
        let mut input = Input::new(payload);
        let (vault, name) = (VaultId(input.u32()?), text(&mut input)?);
        let mut amounts = Vec::new();
        for _ in 0..input.u32()? {
            amounts.push((AssetId(u16::from_le_bytes(input.array()?)), i128::from_le_bytes(input.array()?)));
        }
        input.end()?;
        Ok(AccountFrame { vault, name, amounts })
    }
}

impl VaultFrame {
    pub(super) fn decode(payload: Bytes) -> Result<VaultFrame, CodecError> {
        let mut input = Input::new(payload);
        let (namespace, name) = (text(&mut input)?, text(&mut input)?);
        let mut assets = Vec::new();
        for _ in 0..input.u32()? {
            let name = text(&mut input)?;
            let mut amount = || Ok::<_, CodecError>(i128::from_le_bytes(input.array()?));
            assets.push(AssetFrame {
                name,
                issued: amount()?,
                retired: amount()?,
                expired: amount()?,
                live: amount()?,
            });
        }
        input.end()?;
        Ok(VaultFrame { namespace, name, assets })
    }
}

impl EndFrame {
    pub(super) fn decode(payload: Bytes) -> Result<EndFrame, CodecError> {
        let mut input = Input::new(payload);
        let end = EndFrame { accounts: input.u64()?, vaults: input.u64()?, signature: input.array()? };
        input.end()?;
        Ok(end)
    }
}

fn put_len(out: &mut Vec<u8>, len: usize) {
    out.extend_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_len(out, text.len());
    out.extend_from_slice(text.as_bytes());
}

fn text(input: &mut Input) -> Result<String, CodecError> {
    let len = input.u32()? as usize;
    Ok(String::from_utf8_lossy(&input.take(len)?).into_owned())
}
