//! API key commands and the authorization of commands.

use std::sync::Arc;

use super::{Book, Command, JournalRecord, NamespaceId, NamespaceOutcome, Outcome};
use crate::id::{Actor, ClientId, KeyId};
use crate::keys::{ClientClaim, ClientOwner, CreateKey, KeyInfo, KeyNumber, Principal, RevokeKey, SecretHash};
use crate::quota::QuotaKind;
use crate::time::{Moment, UnixMs};

/// The answer to `CreateKey` and `RevokeKey`, in order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOutcome {
    /// An identical command created the key before.
    Exists(KeyNumber),
    /// Another key has this id.
    IdTaken,
    /// `is_first` was set and a key exists.
    NotTheFirst,
    /// The first key must be an admin of `default` that does not expire.
    NotAnAdmin,
    /// The client id is, or looks like, a key id.
    ClientIsKey,
    /// The validity is 0 or too long.
    InvalidExpiry,
    /// The namespace has used up a quota.
    QuotaExceeded(QuotaKind),
    /// The maximum number of keys is reached, and none has ended.
    TooMany,
    /// The maximum number of namespaces is reached.
    TooManyNamespaces,
    /// Created.
    Created(KeyNumber),
    /// No key with this id may be revoked.
    NotFound,
    /// It is the last key that can administer the server.
    LastAdmin,
    /// Revoked, now or before.
    Revoked(KeyNumber),
}

impl Book {
    /// Applies one command if its right is valid at that log time.
    pub fn apply_as(&mut self, at: impl Into<Moment>, by: &Principal, command: Command<'_>) -> Outcome {
        let at = at.into();
        if !self.permits(at.log, by) {
            // The first key ends anonymous access, so a retry of the command that created it is no longer permitted.
            // It still gets its answer.
            let created = match command {
                Command::CreateKey(create) => self.keys.created_before(create),
                _ => None,
            };
            return created.map_or(Outcome::Unauthenticated, |number| Outcome::Key(KeyOutcome::Exists(number)));
        }
        self.credits.actor = self.keys.actor(by);
        self.client_claim = match command {
            Command::Write(write) => self.keys.client_claim(by, write.id.client()),
            _ => None,
        };
        let outcome = self.apply(at, command);
        (self.credits.actor, self.client_claim) = (None, None);
        outcome
    }

    pub(super) fn create_key(&mut self, at: Moment, command: &CreateKey) -> KeyOutcome {
        let namespace = self.limits.namespace(&command.namespace);
        // A namespace that does not exist yet has the quota of the next one.
        let quota = self.quota(namespace.unwrap_or(NamespaceId(u16::MAX)), QuotaKind::Keys);
        if let Some(outcome) = self.keys.judge(at.log, command, quota) {
            return outcome;
        }
        if namespace.is_some_and(|namespace| !self.limits.state.quotas.has_room_in_journal(namespace, at.log)) {
            return KeyOutcome::QuotaExceeded(QuotaKind::JournalBytesPerDay);
        }
        if self.open_namespace(&command.namespace) == NamespaceOutcome::TooMany {
            return KeyOutcome::TooManyNamespaces;
        }
        let (number, entry) = self.keys.create(at, command, quota);
        self.credits.journal.push(JournalRecord::Key(entry));
        KeyOutcome::Created(number)
    }

    pub(super) fn revoke_key(&mut self, at: Moment, command: &RevokeKey) -> KeyOutcome {
        let (outcome, entry) = self.keys.revoke(at, command);
        self.credits.journal.extend(entry.map(JournalRecord::Key));
        outcome
    }

    /// Whether any key exists, valid or not. If so, anonymous callers are refused.
    #[must_use]
    pub fn has_keys(&self) -> bool {
        !self.keys.is_empty()
    }

    /// All keys in order of creation.
    pub fn keys(&self) -> impl Iterator<Item = &Arc<KeyInfo>> {
        self.keys.all.values().map(|key| &key.info)
    }

    /// A key by its number.
    #[must_use]
    pub fn key_info(&self, number: KeyNumber) -> Option<&Arc<KeyInfo>> {
        self.keys.get(number)
    }

    /// The key with this id, if the secret matches and it is valid at `now`.
    #[must_use]
    pub fn authenticate(&self, now: UnixMs, id: &KeyId, secret: &SecretHash) -> Option<&Arc<KeyInfo>> {
        self.keys.authenticate(now.max(self.time()), id, secret)
    }

    /// The key with this id, if it is valid at this time.
    #[must_use]
    pub fn valid_key(&self, now: UnixMs, id: &KeyId) -> Option<&Arc<KeyInfo>> {
        self.keys.valid(now.max(self.time()), id)
    }

    /// The actor of a right; `None` for Earmark itself.
    #[must_use]
    pub fn actor(&self, by: &Principal) -> Option<Actor> {
        self.keys.actor(by)
    }

    /// The claim of a writer to a client id, if its write has one; `None` if it may write with any and own none.
    #[must_use]
    pub fn client_claim(&self, by: &Principal, client: Option<&ClientId>) -> Option<ClientClaim> {
        self.keys.client_claim(by, client)
    }

    /// Whether an owner still owns its client ids at `now`.
    #[must_use]
    pub fn is_owner_valid(&self, now: UnixMs, owner: &ClientOwner) -> bool {
        self.keys.is_owner_valid(now.max(self.time()), owner)
    }

    /// Whether a command with this right may be applied at `now`.
    #[must_use]
    pub fn permits(&self, now: UnixMs, by: &Principal) -> bool {
        self.keys.permit(now.max(self.time()), by)
    }
}
