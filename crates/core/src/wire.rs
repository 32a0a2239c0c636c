//! Little-endian encoding, shared by snapshots, commands, outcomes and the journal.

use std::sync::Arc;

use crate::book::{CodecError, NamespaceId, TxId, VaultId};
use crate::credits::{AccountId, AssetId};
use crate::id::{
    AccountName, Actor, AssetName, ClientId, IdempotencyKey, KeyId, KeyName, LeaseId, LimitKey, NamespaceName,
    VaultName,
};
use crate::keys::KeyNumber;
use crate::time::UnixMs;

/// The bytes cannot be decoded: they end too early or hold an invalid value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

/// Appends numbers and texts to a buffer, little-endian. `Bytes` reads them back.
pub(crate) trait Put {
    fn put(&mut self, bytes: &[u8]);

    fn put_u8(&mut self, value: u8) {
        self.put(&[value]);
    }
    fn put_u16(&mut self, value: u16) {
        self.put(&value.to_le_bytes());
    }
    fn put_u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }
    fn put_u64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }
    fn put_u128(&mut self, value: u128) {
        self.put(&value.to_le_bytes());
    }
    /// A count or length. More than `u32::MAX` items do not fit into memory.
    fn put_len(&mut self, len: usize) {
        self.put_u32(u32::try_from(len).unwrap_or(u32::MAX));
    }
    fn put_text(&mut self, text: &str) {
        self.put_len(text.len());
        self.put(text.as_bytes());
    }
}

impl Put for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Reads from the front of a slice.
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl<'a> Bytes<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (array, rest) = self.0.split_first_chunk().ok_or(Malformed("it ends too early"))?;
        self.0 = rest;
        Ok(*array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(u8::from_le_bytes)
    }
    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }
    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }
    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }
    pub(crate) fn u128(&mut self) -> Result<u128, Malformed> {
        self.array().map(u128::from_le_bytes)
    }
    /// A SHA-256 digest.
    pub(crate) fn hash(&mut self) -> Result<[u8; 32], Malformed> {
        self.array()
    }
    pub(crate) fn bool(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("a flag is neither 0 nor 1")),
        }
    }
    pub(crate) fn text(&mut self) -> Result<&'a str, Malformed> {
        let len = self.u32()? as usize;
        let (text, rest) = self.0.split_at_checked(len).ok_or(Malformed("a text ends too early"))?;
        self.0 = rest;
        std::str::from_utf8(text).map_err(|_| Malformed("a text is not UTF-8"))
    }
}

/// A value with one encoding: reading it and writing it again gives the same bytes.
pub(crate) trait Wire: Sized {
    /// Appends the value to `out`.
    fn write(&self, out: &mut Vec<u8>);

    /// Reads a value from the front of `input`.
    fn read(input: &mut Bytes<'_>) -> Result<Self, CodecError>;
}

macro_rules! numbers {
    ($($number:ident)*) => {$(
        impl Wire for $number {
            fn write(&self, out: &mut Vec<u8>) {
                out.put(&self.to_le_bytes());
            }

            fn read(input: &mut Bytes<'_>) -> Result<$number, CodecError> {
                Ok($number::from_le_bytes(input.array()?))
            }
        }
    )*};
}

numbers!(u16 i16 u32 u64 u128 i128);

macro_rules! newtypes {
    ($($newtype:ident)*) => {$(
        impl Wire for $newtype {
            fn write(&self, out: &mut Vec<u8>) {
                self.0.write(out);
            }

            fn read(input: &mut Bytes<'_>) -> Result<$newtype, CodecError> {
                Ok($newtype(Wire::read(input)?))
            }
        }
    )*};
}

newtypes!(NamespaceId VaultId AccountId AssetId KeyNumber TxId);

macro_rules! names {
    ($($name:ident)*) => {$(
        impl Wire for $name {
            fn write(&self, out: &mut Vec<u8>) {
                out.put_text(self.as_str());
            }

            fn read(input: &mut Bytes<'_>) -> Result<$name, CodecError> {
                Ok($name::new(input.text()?)?)
            }
        }
    )*};
}

names!(LimitKey AccountName NamespaceName VaultName ClientId KeyName KeyId AssetName IdempotencyKey Actor);

impl Wire for bool {
    fn write(&self, out: &mut Vec<u8>) {
        out.put_u8((*self).into());
    }

    fn read(input: &mut Bytes<'_>) -> Result<bool, CodecError> {
        Ok(input.bool()?)
    }
}

/// An index or length.
impl Wire for usize {
    fn write(&self, out: &mut Vec<u8>) {
        out.put_u64(*self as u64);
    }

    fn read(input: &mut Bytes<'_>) -> Result<usize, CodecError> {
        usize::try_from(input.u64()?).map_err(|_| CodecError::Malformed("a number is too large for this machine"))
    }
}

impl Wire for String {
    fn write(&self, out: &mut Vec<u8>) {
        out.put_text(self);
    }

    fn read(input: &mut Bytes<'_>) -> Result<String, CodecError> {
        Ok(input.text()?.to_owned())
    }
}

/// Times beyond [`UnixMs::MAX`], which would be encoded differently again, are refused.
impl Wire for UnixMs {
    fn write(&self, out: &mut Vec<u8>) {
        out.put_u64(self.get());
    }

    fn read(input: &mut Bytes<'_>) -> Result<UnixMs, CodecError> {
        let ms = input.u64()?;
        if ms > UnixMs::MAX.get() {
            return Err(CodecError::Malformed("a time is later than there are times"));
        }
        Ok(UnixMs::new(ms))
    }
}

impl Wire for LeaseId {
    fn write(&self, out: &mut Vec<u8>) {
        out.put_u128(self.to_u128());
    }

    fn read(input: &mut Bytes<'_>) -> Result<LeaseId, CodecError> {
        Ok(LeaseId::from_u128(input.u128()?))
    }
}

impl<T: Wire> Wire for Option<T> {
    fn write(&self, out: &mut Vec<u8>) {
        self.is_some().write(out);
        self.iter().for_each(|value| value.write(out));
    }

    fn read(input: &mut Bytes<'_>) -> Result<Option<T>, CodecError> {
        if input.bool()? { T::read(input).map(Some) } else { Ok(None) }
    }
}

impl<T: Wire> Wire for Arc<T> {
    fn write(&self, out: &mut Vec<u8>) {
        T::write(self, out);
    }

    fn read(input: &mut Bytes<'_>) -> Result<Arc<T>, CodecError> {
        T::read(input).map(Arc::new)
    }
}

impl<T: Wire> Wire for Box<T> {
    fn write(&self, out: &mut Vec<u8>) {
        T::write(self, out);
    }

    fn read(input: &mut Bytes<'_>) -> Result<Box<T>, CodecError> {
        T::read(input).map(Box::new)
    }
}

/// Implements [`Wire`] for a struct: its fields in the given order. A field `via` a module is written and read by the
/// functions of that module. After `if`, a check of what was read, with the error if it fails.
macro_rules! wire_struct {
    ($type:ident { $($field:ident $(via $codec:ident)?),* $(,)? } $(if $check:expr, else $wrong:literal)?) => {
        impl $crate::wire::Wire for $type {
            fn write(&self, out: &mut Vec<u8>) {
                let $type { $($field),* } = self;
                $($crate::wire::write_field!(out, $field $(via $codec)?);)*
            }

            fn read(input: &mut $crate::wire::Bytes<'_>) -> std::result::Result<$type, $crate::book::CodecError> {
                let value = $type { $($field: $crate::wire::read_field!(input $(, $codec)?)),* };
                $(
                    let is_sound: fn(&$type) -> bool = $check;
                    if !is_sound(&value) {
                        return Err($crate::book::CodecError::Malformed($wrong));
                    }
                )?
                Ok(value)
            }
        }
    };
}

/// Implements [`Wire`] for an enum: the tag of a variant and then its fields in the given order, as in `wire_struct`.
/// After `or`, the error for an unknown tag.
macro_rules! wire_enum {
    ($type:ident or $unknown:literal { $(
        $tag:literal => $variant:ident
            $(( $value:ident $(via $value_codec:ident)? ))?
            $({ $($field:ident $(via $codec:ident)?),* })?,
    )* }) => {
        impl $crate::wire::Wire for $type {
            fn write(&self, out: &mut Vec<u8>) {
                match self {
                    $($type::$variant $(($value))? $({ $($field),* })? => {
                        $crate::wire::Put::put_u8(out, $tag);
                        $($crate::wire::write_field!(out, $value $(via $value_codec)?);)?
                        $($($crate::wire::write_field!(out, $field $(via $codec)?);)*)?
                    })*
                }
            }

            fn read(input: &mut $crate::wire::Bytes<'_>) -> std::result::Result<$type, $crate::book::CodecError> {
                Ok(match input.u8()? {
                    $($tag => {
                        $(let $value = $crate::wire::read_field!(input $(, $value_codec)?);)?
                        $($(let $field = $crate::wire::read_field!(input $(, $codec)?);)*)?
                        $type::$variant $(($value))? $({ $($field),* })?
                    })*
                    _ => return Err($crate::book::CodecError::Malformed($unknown)),
                })
            }
        }
    };
}

/// Implements [`Wire`] for enums whose variants are all in `ALL` and have their code as discriminant. After `or`, the
/// error for an unknown code.
macro_rules! wire_codes {
    ($($type:ident or $unknown:literal;)*) => {$(
        impl $crate::wire::Wire for $type {
            fn write(&self, out: &mut Vec<u8>) {
                $crate::wire::Put::put_u8(out, *self as u8);
            }

            fn read(input: &mut $crate::wire::Bytes<'_>) -> std::result::Result<$type, $crate::book::CodecError> {
                let code = input.u8()?;
                let found = $type::ALL.into_iter().find(|value| *value as u8 == code);
                found.ok_or($crate::book::CodecError::Malformed($unknown))
            }
        }
    )*};
}

macro_rules! write_field {
    ($out:ident, $field:ident) => {
        $crate::wire::Wire::write($field, $out)
    };
    ($out:ident, $field:ident via $codec:ident) => {
        $codec::write($field, $out)
    };
}

macro_rules! read_field {
    ($input:ident) => {
        $crate::wire::Wire::read($input)?
    };
    ($input:ident, $codec:ident) => {
        $codec::read($input)?
    };
}

pub(crate) use {read_field, wire_codes, wire_enum, wire_struct, write_field};
