//! Quota commands and their outcomes as bytes.

use super::CodecError;
use crate::id::NamespaceName;
use crate::quota::{QuotaKind, QuotasOutcome, SetQuotas};
use crate::wire::{Bytes, Put};

const TOO_HIGH: u8 = 1;
const TOO_MANY_NAMESPACES: u8 = 2;
const SET: u8 = 3;

pub(super) fn put_set(out: &mut Vec<u8>, tag: u8, command: &SetQuotas) {
    out.put_u8(tag);
    out.put_text(command.namespace.as_str());
    out.put_len(command.quotas.len());
    for (kind, quota) in &command.quotas {
        out.put_u8(*kind as u8);
        out.put_u64(*quota);
    }
}

pub(super) fn set(input: &mut Bytes<'_>) -> Result<SetQuotas, CodecError> {
    let namespace = NamespaceName::new(input.text()?)?;
    let mut quotas = std::collections::BTreeMap::new();
    for _ in 0..input.u32()? {
        let (kind, quota) = (kind(input)?, input.u64()?);
        if quotas.last_key_value().is_some_and(|(last, _)| *last >= kind) {
            return Err(CodecError::Malformed("its quotas are out of order"));
        }
        quotas.insert(kind, quota);
    }
    Ok(SetQuotas { namespace, quotas })
}

pub(super) fn kind(input: &mut Bytes<'_>) -> Result<QuotaKind, CodecError> {
    QuotaKind::of(input.u8()?).ok_or(CodecError::Malformed("its quota is unknown"))
}

pub(super) fn put_outcome(out: &mut Vec<u8>, outcome: QuotasOutcome) {
    match outcome {
        QuotasOutcome::TooHigh(kind) => {
            out.put_u8(TOO_HIGH);
            out.put_u8(kind as u8);
        }
        QuotasOutcome::TooManyNamespaces => out.put_u8(TOO_MANY_NAMESPACES),
        QuotasOutcome::Set => out.put_u8(SET),
    }
}

pub(super) fn outcome(input: &mut Bytes<'_>) -> Result<QuotasOutcome, CodecError> {
    Ok(match input.u8()? {
        TOO_HIGH => QuotasOutcome::TooHigh(kind(input)?),
        TOO_MANY_NAMESPACES => QuotasOutcome::TooManyNamespaces,
        SET => QuotasOutcome::Set,
        _ => return Err(CodecError::Malformed("what became of its quotas is unknown")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::book::{Command, CommandBuffer, Outcome};

    #[test]
    fn quota_commands_and_outcomes_come_back_from_their_bytes() {
        let quotas = [(QuotaKind::Limits, 5), (QuotaKind::Leases, u64::MAX)].into_iter().collect();
        let command = SetQuotas { namespace: "team".parse().unwrap(), quotas };
        let mut bytes = Vec::new();
        Command::SetQuotas(&command).encode(&mut bytes);
        let mut buffer = CommandBuffer::default();
        for shorter in 0..bytes.len() {
            assert!(buffer.decode(&bytes[..shorter]).is_err(), "{shorter} bytes");
        }
        assert_eq!(buffer.decode(&bytes), Ok((Command::SetQuotas(&command), bytes.len())));
        for outcome in
            [QuotasOutcome::TooHigh(QuotaKind::PolicyBytes), QuotasOutcome::TooManyNamespaces, QuotasOutcome::Set]
        {
            let mut bytes = Vec::new();
            Outcome::Quotas(outcome).encode(&mut bytes);
            assert_eq!(Outcome::decode(&bytes), Ok((Outcome::Quotas(outcome), bytes.len())));
        }
    }
}
