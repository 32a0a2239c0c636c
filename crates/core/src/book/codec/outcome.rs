//! Outcomes as bytes, to return them from the leader to the node that took the request. An outcome has one encoding
//! only.

mod complete;
mod extend;
mod invalid;
mod reserve;
mod write;

use super::{CodecError, pattern};
use crate::book::{
    ConfigureOutcome, KeyOutcome, LimitOutcome, NamespaceOutcome, Outcome, PauseOutcome, REQUIREMENTS_MAX,
    TemplateOutcome,
};
use crate::policies::PolicyOutcome;
use crate::quota::QuotasOutcome;
use crate::wire::{Bytes, Wire, wire_enum};

impl Outcome {
    /// Appends the outcome to `out`: 14 bytes for an allowed lease.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.write(out);
    }

    /// Decodes one outcome from the front of `bytes` and returns its length. Encoding it again gives the same bytes.
    ///
    /// # Errors
    /// The bytes do not start with an outcome.
    pub fn decode(bytes: &[u8]) -> Result<(Outcome, usize), CodecError> {
        let mut input = Bytes(bytes);
        let outcome = Outcome::read(&mut input)?;
        Ok((outcome, bytes.len().saturating_sub(input.0.len())))
    }
}

wire_enum!(Outcome or "its tag is unknown" {
    1 => Namespace(outcome),
    2 => Limit(outcome),
    3 => Reserve(outcome via reserve),
    4 => Complete(outcome),
    5 => Write(outcome),
    6 => Ticked,
    7 => ExternalSet,
    8 => Configure(outcome),
    9 => Extend(outcome),
    32 => Key(outcome),
    33 => Unauthenticated,
    34 => Quotas(outcome),
    35 => Template(outcome),
    36 => Pause(outcome),
    37 => Policy(outcome),
});

wire_enum!(NamespaceOutcome or "what became of its namespace is unknown" {
    1 => Opened(namespace),
    2 => Exists(namespace),
    3 => TooMany,
});

wire_enum!(ConfigureOutcome or "what became of its settings is unknown" {
    0 => Invalid(change),
    1 => Configured,
});

wire_enum!(LimitOutcome or "what became of its limit is unknown" {
    1 => Invalid(error),
    2 => UnknownNamespace,
    3 => RevisionDiffers { revision },
    4 => NotFound,
    5 => KindDiffers,
    6 => TooMany,
    7 => Changed { limit, revision, status },
    8 => VaultNotFound,
    9 => QuotaExceeded(kind),
});

wire_enum!(TemplateOutcome or "what became of its template is unknown" {
    1 => UnknownNamespace,
    2 => DiffersInNamesOnly { key via pattern },
    3 => RevisionDiffers { revision },
    4 => NotFound,
    5 => KindDiffers,
    6 => VaultNotFound,
    7 => QuotaExceeded(kind),
    8 => Changed { revision },
});

wire_enum!(PauseOutcome or "what became of its pause is unknown" {
    1 => TooLong { found },
    2 => ReasonTooLong { found },
    3 => NotFound,
    4 => TooMany,
    5 => QuotaExceeded(kind),
    6 => Paused { until },
    7 => Resumed,
    8 => TooManyInNamespace,
});

wire_enum!(KeyOutcome or "what became of its key is unknown" {
    1 => Exists(number),
    2 => IdTaken,
    3 => NotTheFirst,
    4 => InvalidExpiry,
    5 => TooMany,
    6 => TooManyNamespaces,
    7 => Created(number),
    8 => NotFound,
    9 => LastAdmin,
    10 => Revoked(number),
    11 => NotAnAdmin,
    12 => ClientIsKey,
    13 => QuotaExceeded(kind),
});

wire_enum!(QuotasOutcome or "what became of its quotas is unknown" {
    1 => TooHigh(kind),
    2 => TooManyNamespaces,
    3 => Set,
});

wire_enum!(PolicyOutcome or "its outcome of a policy is unknown" {
    1 => TooLarge,
    2 => RevisionDiffers { revision },
    3 => QuotaExceeded(kind),
    4 => TooManyNamespaces,
    5 => Changed { revision },
});

/// Lists with at most [`REQUIREMENTS_MAX`] items.
mod list {
    use super::{Bytes, CodecError, REQUIREMENTS_MAX, Wire};
    use crate::wire::Put;

    pub(super) fn write<T: Wire>(items: &[T], out: &mut Vec<u8>) {
        out.put_len(items.len());
        items.iter().for_each(|item| item.write(out));
    }

    pub(super) fn read<T: Wire>(input: &mut Bytes<'_>) -> Result<Vec<T>, CodecError> {
        let count = input.u32()? as usize;
        if count > REQUIREMENTS_MAX {
            return Err(CodecError::Malformed("it lists more than a lease can have"));
        }
        (0..count).map(|_| T::read(input)).collect()
    }
}

#[cfg(test)]
mod tests;
