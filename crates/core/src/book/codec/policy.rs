//! Policy commands as bytes.

use super::{CodecError, revision};
use crate::policies::{POLICY_BYTES_MAX, PutPolicy};
use crate::wire::{Bytes, Put, wire_struct};

wire_struct!(PutPolicy { namespace, expected_revision via revision, text via text });

mod text {
    use super::{Bytes, CodecError, POLICY_BYTES_MAX, Put};
    use std::sync::Arc;

    pub(super) fn write(text: &str, out: &mut Vec<u8>) {
        out.put_text(text);
    }

    pub(super) fn read(input: &mut Bytes<'_>) -> Result<Arc<str>, CodecError> {
        let text = input.text()?;
        if text.len() > POLICY_BYTES_MAX {
            return Err(CodecError::Malformed("its policy is too long"));
        }
        Ok(text.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::book::{Command, CommandBuffer};

    #[test]
    fn a_policy_command_comes_back_from_its_bytes() {
        for expected_revision in [None, Some(0), Some(7)] {
            let command = PutPolicy {
                namespace: "team".parse().unwrap(),
                text: "unmatched = \"allow\"".into(),
                expected_revision,
            };
            let mut bytes = Vec::new();
            Command::PutPolicy(&command).encode(&mut bytes);
            let mut buffer = CommandBuffer::default();
            for shorter in 0..bytes.len() {
                assert!(buffer.decode(&bytes[..shorter]).is_err(), "{shorter} bytes");
            }
            assert_eq!(buffer.decode(&bytes), Ok((Command::PutPolicy(&command), bytes.len())));
        }
        let long = PutPolicy {
            namespace: "team".parse().unwrap(),
            text: "x".repeat(POLICY_BYTES_MAX + 1).into(),
            expected_revision: None,
        };
        let mut bytes = Vec::new();
        Command::PutPolicy(&long).encode(&mut bytes);
        assert!(CommandBuffer::default().decode(&bytes).is_err());
    }
}
