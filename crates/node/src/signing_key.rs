//! The key with which a node signs its exports: Ed25519, in a file of its data folder that only its owner may read.

use std::sync::Arc;

use ring::rand::{SecureRandom as _, SystemRandom};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};

use crate::disk::Disk;
use crate::entry::Input;
use crate::fault::Fault;
use crate::storage::header::FileKind;

const PATH: &str = "signing-key";
const UNFINISHED: &str = "signing-key.unfinished";
const KIND: FileKind = FileKind { magic: *b"EMky", format: 1 };
/// Bytes of an Ed25519 seed.
const SEED_BYTES: usize = 32;
/// Bytes of an Ed25519 signature.
pub(crate) const SIGNATURE_BYTES: usize = 64;

/// Public part of a signing key. Displayed as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PublicKey(pub [u8; 32]);

impl PublicKey {
    /// Length in bytes.
    pub const BYTES: usize = 32;

    /// Whether a signature of a message was made with this key.
    pub(crate) fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, &self.0).verify(message, signature).is_ok()
    }
}

impl std::fmt::Display for PublicKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for PublicKey {
    type Err = String;

    fn from_str(text: &str) -> Result<PublicKey, String> {
        unhex(text).map(PublicKey).ok_or_else(|| "a public key is 64 hexadecimal digits".to_owned())
    }
}

/// 32 bytes from 64 hexadecimal digits.
pub(crate) fn unhex(text: &str) -> Option<[u8; 32]> {
    let digits: Vec<u8> =
        text.chars().map(|digit| digit.to_digit(16).map(|digit| digit as u8)).collect::<Option<_>>()?;
    let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    if digits.len() == 64 { bytes.try_into().ok() } else { None }
}

/// A signing key.
#[derive(Debug)]
pub(crate) struct SigningKey {
    pair: Ed25519KeyPair,
    pub(crate) public: PublicKey,
}

impl SigningKey {
    /// The key of a data folder. It is made at its first use.
    pub(crate) fn open(disk: &dyn Disk, cluster: u128) -> Result<Arc<SigningKey>, Fault> {
        let file = match disk.open_file(PATH) {
            Err(Fault::Missing { .. }) => return SigningKey::make(disk, cluster),
            file => file?,
        };
        let mut input = Input::new(KIND.read(&file, cluster)?.body);
        let seed: [u8; SEED_BYTES] = input.array().map_err(|error| file.damaged(0, error))?;
        SigningKey::of(&seed).ok_or_else(|| file.damaged(0, "this is not an Ed25519 key"))
    }

    fn make(disk: &dyn Disk, cluster: u128) -> Result<Arc<SigningKey>, Fault> {
        let mut seed = [0; SEED_BYTES];
        let unmade = || Fault::Stopped { why: "no signing key can be made: the system has no randomness".to_owned() };
        SystemRandom::new().fill(&mut seed).map_err(|_| unmade())?;
        let key = SigningKey::of(&seed).ok_or_else(unmade)?;
        let mut file = disk.create_file(UNFINISHED)?;
        file.write(&KIND.encode(cluster, &seed), 0)?;
        file.sync()?;
        disk.rename_file(&mut file, UNFINISHED, PATH)?;
        disk.sync_folder("")?;
        Ok(key)
    }

    fn of(seed: &[u8; SEED_BYTES]) -> Option<Arc<SigningKey>> {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed).ok()?;
        let public = PublicKey(pair.public_key().as_ref().try_into().ok()?);
        Some(Arc::new(SigningKey { pair, public }))
    }

    pub(crate) fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.pair.sign(message).as_ref().to_vec()
    }
}
