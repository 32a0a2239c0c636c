//! Terms of credit as bytes.

use super::CodecError;
use crate::credits::{CarryOver, GrantTerms, Overdraft, Plan};
use crate::time::UnixMs;
use crate::wire::{Bytes, Put, Wire, wire_enum, wire_struct};

impl Wire for GrantTerms {
    fn write(&self, out: &mut Vec<u8>) {
        out.put_u8(self.priority());
        self.expires_at().unwrap_or(UnixMs::MAX).write(out);
    }

    fn read(input: &mut Bytes<'_>) -> Result<GrantTerms, CodecError> {
        Ok(GrantTerms::new(input.u8()?, Some(UnixMs::read(input)?)))
    }
}

wire_enum!(Overdraft or "its overdraft is unknown" {
    1 => Deny,
    2 => Allow,
    3 => Limit(limit),
});

wire_struct!(Plan { asset, amount, period, utc_offset_minutes, carry_over });

wire_enum!(CarryOver or "what its plan carries over is unknown" {
    0 => None,
    1 => Max(max),
});
