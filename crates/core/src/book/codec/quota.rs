//! Quota commands as bytes.

use std::collections::BTreeMap;

use super::CodecError;
use crate::quota::{QuotaKind, SetQuotas};
use crate::wire::{Bytes, Put, Wire, wire_struct};

wire_struct!(SetQuotas { namespace, quotas via ordered });

mod ordered {
    use super::{BTreeMap, Bytes, CodecError, Put, QuotaKind, Wire};

    pub(super) fn write(quotas: &BTreeMap<QuotaKind, u64>, out: &mut Vec<u8>) {
        out.put_len(quotas.len());
        for (kind, quota) in quotas {
            kind.write(out);
            quota.write(out);
        }
    }

    pub(super) fn read(input: &mut Bytes<'_>) -> Result<BTreeMap<QuotaKind, u64>, CodecError> {
        let mut quotas = BTreeMap::new();
        for _ in 0..input.u32()? {
            let (kind, quota) = (QuotaKind::read(input)?, input.u64()?);
            if quotas.last_key_value().is_some_and(|(last, _)| *last >= kind) {
                return Err(CodecError::Malformed("its quotas are out of order"));
            }
            quotas.insert(kind, quota);
        }
        Ok(quotas)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::book::{Command, CommandBuffer, Outcome};
    use crate::quota::QuotasOutcome;

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
