//! The public keys with which nodes sign exports. They are replicated, so that a signature can be checked after its node is
//! gone.

use earmark_core::UnixMs;

use crate::entry::{CodecError, Input};
use crate::signing_key::PublicKey;

/// Keys kept. Every snapshot header holds them; beyond it the oldest is forgotten. A node has one key, as long as it keeps
/// its data folder.
const KEYS_MAX: usize = 1_024;

/// All published keys, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PublishedKeys(Vec<(NodeKey, UnixMs)>);

/// The public key of a node. A restored backup keeps those of the cluster that it was made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeKey {
    pub(crate) key: PublicKey,
    pub(crate) cluster: u128,
    pub(crate) node: u64,
}

impl NodeKey {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.key.0);
        out.extend_from_slice(&self.cluster.to_le_bytes());
        out.extend_from_slice(&self.node.to_le_bytes());
    }

    pub(crate) fn take(input: &mut Input) -> Result<NodeKey, CodecError> {
        Ok(NodeKey { key: PublicKey(input.array()?), cluster: input.u128()?, node: input.u64()? })
    }
}

impl PublishedKeys {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn contains(&self, key: &NodeKey) -> bool {
        self.0.iter().any(|(known, _)| known == key)
    }

    /// The keys, oldest first, each with the log time of its publication.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &(NodeKey, UnixMs)> {
        self.0.iter()
    }

    /// Applies a log entry. A known key stays where it is.
    pub(crate) fn publish(&mut self, at: UnixMs, key: NodeKey) {
        if self.contains(&key) {
            return;
        }
        if self.0.len() >= KEYS_MAX {
            self.0.remove(0);
        }
        self.0.push((key, at));
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&u32::try_from(self.0.len()).unwrap_or(u32::MAX).to_le_bytes());
        for (key, at) in &self.0 {
            key.put(out);
            out.extend_from_slice(&at.get().to_le_bytes());
        }
    }

    pub(crate) fn take(input: &mut Input) -> Result<PublishedKeys, CodecError> {
        let mut keys = Vec::new();
        for _ in 0..input.u32()? {
            keys.push((NodeKey::take(input)?, UnixMs::new(input.u64()?)));
        }
        Ok(PublishedKeys(keys))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> NodeKey {
        NodeKey { key: PublicKey([7; 32]), cluster: 9, node: number }
    }

    #[test]
    fn a_key_is_published_once_and_the_oldest_is_forgotten_beyond_the_bound() {
        let mut keys = PublishedKeys::default();
        let count = KEYS_MAX as u64 + 3;
        for number in 0..count {
            keys.publish(UnixMs::new(number), key(number));
            keys.publish(UnixMs::new(number + 1), key(number));
        }
        assert_eq!(keys.iter().count(), KEYS_MAX);
        assert!(!keys.contains(&key(2)) && keys.contains(&key(3)) && keys.contains(&key(count - 1)));
        assert!(keys.iter().all(|(key, at)| at.get() == key.node), "a repetition changed a time");
        let mut bytes = Vec::new();
        keys.put(&mut bytes);
        let mut input = Input::new(bytes.into());
        assert_eq!(PublishedKeys::take(&mut input), Ok(keys));
        assert_eq!(input.end(), Ok(()));
    }
}
