//! Policy commands and their outcomes as bytes.

use super::{CodecError, put_revision, quota, revision};
use crate::id::NamespaceName;
use crate::policies::{POLICY_BYTES_MAX, PolicyOutcome, PutPolicy};
use crate::wire::{Bytes, Put};

const TOO_LARGE: u8 = 1;
const REVISION_DIFFERS: u8 = 2;
const QUOTA_EXCEEDED: u8 = 3;
const TOO_MANY_NAMESPACES: u8 = 4;
const CHANGED: u8 = 5;

pub(super) fn put_put(out: &mut Vec<u8>, tag: u8, command: &PutPolicy) {
    out.put_u8(tag);
    out.put_text(command.namespace.as_str());
    put_revision(out, command.expected_revision);
    out.put_text(&command.text);
}

pub(super) fn put(input: &mut Bytes<'_>) -> Result<PutPolicy, CodecError> {
    let namespace = NamespaceName::new(input.text()?)?;
    let expected_revision = revision(input)?;
    let text = input.text()?;
    if text.len() > POLICY_BYTES_MAX {
        return Err(CodecError::Malformed("its policy is too long"));
    }
    Ok(PutPolicy { namespace, text: text.into(), expected_revision })
}

pub(super) fn put_outcome(out: &mut Vec<u8>, outcome: PolicyOutcome) {
    match outcome {
        PolicyOutcome::TooLarge => out.put_u8(TOO_LARGE),
        PolicyOutcome::RevisionDiffers { revision } => {
            out.put_u8(REVISION_DIFFERS);
            out.put_u64(revision);
        }
        PolicyOutcome::QuotaExceeded(kind) => {
            out.put_u8(QUOTA_EXCEEDED);
            out.put_u8(kind as u8);
        }
        PolicyOutcome::TooManyNamespaces => out.put_u8(TOO_MANY_NAMESPACES),
        PolicyOutcome::Changed { revision } => {
            out.put_u8(CHANGED);
            out.put_u64(revision);
        }
    }
}

pub(super) fn outcome(input: &mut Bytes<'_>) -> Result<PolicyOutcome, CodecError> {
    Ok(match input.u8()? {
        TOO_LARGE => PolicyOutcome::TooLarge,
        REVISION_DIFFERS => PolicyOutcome::RevisionDiffers { revision: input.u64()? },
        QUOTA_EXCEEDED => PolicyOutcome::QuotaExceeded(quota::kind(input)?),
        TOO_MANY_NAMESPACES => PolicyOutcome::TooManyNamespaces,
        CHANGED => PolicyOutcome::Changed { revision: input.u64()? },
        _ => return Err(CodecError::Malformed("its outcome of a policy is unknown")),
    })
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
