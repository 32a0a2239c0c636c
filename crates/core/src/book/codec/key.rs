//! API key commands and the rights of commands as bytes.

use super::{BY_ANYONE, BY_KEY, BY_NAMED, BY_SESSION, CodecError};
use crate::keys::{CreateKey, Principal, RevokeKey, SecretHash};
use crate::wire::{Bytes, Put, Wire, wire_struct};

/// Appends the right that the command behind it comes by: nothing for Earmark's own, so that a log without keys
/// is what it always was.
pub fn put_principal(out: &mut Vec<u8>, by: &Principal) {
    match by {
        Principal::System => {}
        Principal::Anonymous => out.put_u8(BY_ANYONE),
        Principal::Key(number) => {
            out.put_u8(BY_KEY);
            number.write(out);
        }
        Principal::Actor(actor) => {
            out.put_u8(BY_NAMED);
            actor.write(out);
        }
        Principal::Session { actor, role } => {
            out.put_u8(BY_SESSION);
            role.write(out);
            actor.write(out);
        }
    }
}

/// Decodes the right at the front of `bytes` and returns its length. The command follows it.
///
/// # Errors
/// The right is cut off, or its actor is invalid.
pub fn take_principal(bytes: &[u8]) -> Result<(Principal, usize), CodecError> {
    let Some((tag @ (&BY_ANYONE | &BY_KEY | &BY_NAMED | &BY_SESSION), rest)) = bytes.split_first() else {
        return Ok((Principal::System, 0));
    };
    let mut input = Bytes(rest);
    let by = match *tag {
        BY_KEY => Principal::Key(Wire::read(&mut input)?),
        BY_NAMED => Principal::Actor(Wire::read(&mut input)?),
        BY_SESSION => {
            let role = Wire::read(&mut input)?;
            Principal::Session { role, actor: Wire::read(&mut input)? }
        }
        _ => Principal::Anonymous,
    };
    Ok((by, bytes.len().saturating_sub(input.0.len())))
}

wire_struct!(CreateKey { id, secret, name, role, namespace, client, labels, may_set, valid_seconds, is_first, actor });

wire_struct!(RevokeKey { id, namespace, actor });

impl Wire for SecretHash {
    fn write(&self, out: &mut Vec<u8>) {
        out.put(self.as_bytes());
    }

    fn read(input: &mut Bytes<'_>) -> Result<SecretHash, CodecError> {
        Ok(SecretHash::from_bytes(input.hash()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::book::{Command, CommandBuffer};
    use crate::keys::{KeyNumber, Labels, MaySet, Role};

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn create_key(role: Role) -> CreateKey {
        CreateKey {
            id: "k1".parse().unwrap(),
            secret: SecretHash::from_bytes([7; 32]),
            name: "billing".parse().unwrap(),
            role,
            namespace: "team".parse().unwrap(),
            client: Some("c".parse().unwrap()),
            labels: Labels::new([("tenant", "acme")]).unwrap(),
            may_set: MaySet::new(["user"]).unwrap(),
            valid_seconds: Some(60),
            is_first: false,
            actor: "client:k0".parse().unwrap(),
        }
    }

    fn assert_comes_back(command: Command<'_>) -> String {
        let mut bytes = Vec::new();
        command.encode(&mut bytes);
        let mut buffer = CommandBuffer::default();
        for shorter in 0..bytes.len() {
            assert!(buffer.decode(&bytes[..shorter]).is_err(), "{shorter} bytes of {command:?}");
        }
        assert_eq!(buffer.decode(&bytes), Ok((command, bytes.len())));
        hex(&bytes)
    }

    #[test]
    fn what_is_done_to_keys_comes_back_from_its_bytes() {
        for role in Role::ALL {
            let open = CreateKey {
                client: None,
                labels: Labels::default(),
                may_set: MaySet::default(),
                valid_seconds: None,
                is_first: true,
                ..create_key(role)
            };
            assert_comes_back(Command::CreateKey(&create_key(role)));
            assert_comes_back(Command::CreateKey(&open));
        }
        let revoke = |namespace: Option<&str>| RevokeKey {
            id: "k1".parse().unwrap(),
            namespace: namespace.map(|name| name.parse().unwrap()),
            actor: "user:7".parse().unwrap(),
        };
        assert_comes_back(Command::RevokeKey(&revoke(None)));
        assert_comes_back(Command::RevokeKey(&revoke(Some("team"))));
    }

    #[test]
    fn the_bytes_of_commands_about_keys_never_change() {
        let created = assert_comes_back(Command::CreateKey(&create_key(Role::Writer)));
        let secret = "07".repeat(32);
        let expected = format!(
            "20020000006b31{secret}0700000062696c6c696e670204000000\
             7465616d010100000063\
             010000000600000074656e616e740400000061636d65\
             010000000400000075736572\
             013c0000000009000000636c69656e743a6b30"
        );
        assert_eq!(created, expected);
        let revoke = RevokeKey {
            id: "k1".parse().unwrap(),
            namespace: Some("team".parse().unwrap()),
            actor: "user:7".parse().unwrap(),
        };
        let revoked = assert_comes_back(Command::RevokeKey(&revoke));
        assert_eq!(revoked, "21020000006b3101040000007465616d06000000757365723a37");
    }

    #[test]
    fn a_right_comes_back_from_its_bytes_and_earmarks_own_takes_none() {
        for (by, bytes) in [
            (Principal::System, &[][..]),
            (Principal::Anonymous, &[40][..]),
            (Principal::Key(KeyNumber(0x0102_0304)), &[41, 4, 3, 2, 1][..]),
            (Principal::Actor("user:7".parse().unwrap()), b"\x2a\x06\0\0\0user:7"),
            (Principal::Session { actor: "user:7".parse().unwrap(), role: Role::Writer }, b"\x2b\x02\x06\0\0\0user:7"),
        ] {
            let mut out = Vec::new();
            put_principal(&mut out, &by);
            assert_eq!(out, bytes);
            out.push(6);
            assert_eq!(take_principal(&out), Ok((by, bytes.len())));
        }
        assert!(take_principal(&[41, 1, 2, 3]).is_err());
        assert!(take_principal(b"\x2a\x06\0\0\0nobody").is_err());
        assert!(take_principal(b"\x2b\x09\x06\0\0\0user:7").is_err());
        assert_eq!(take_principal(&[]), Ok((Principal::System, 0)));
    }
}
