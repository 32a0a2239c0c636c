//! Applying what is done to keys, and asking them.

use std::sync::Arc;

use super::{
    Book, Command, JournalRecord, LimitEdit, LimitEntry, LimitOutcome, NamespaceId, NamespaceOutcome, Outcome,
};
use crate::id::{Actor, KeyId, LimitKey};
use crate::keys::{By, CreateKey, KeyInfo, KeyNumber, RevokeKey, SecretHash};
use crate::time::UnixMs;

/// The answer to `CreateKey` and `RevokeKey`, in order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOutcome {
    /// The key was made before, by the same command.
    Exists(KeyNumber),
    /// Another key has this id.
    IdTaken,
    /// It was to be the first key, and there is one already.
    NotTheFirst,
    /// It would be the first key, and is not one that can look after the server for good.
    NotAnAdmin,
    /// It is to be bound to a client whose name is, or could be, the id of a key.
    ClientIsKey,
    /// It is to be valid for no time, or for too long.
    InvalidExpiry,
    /// The Book holds as many keys as it can, of the namespace or of all, and none of them has ended.
    TooMany,
    /// The Book holds as many namespaces as it can.
    TooManyNamespaces,
    /// The key is made.
    Created(KeyNumber),
    /// No key that may be revoked has this id.
    NotFound,
    /// Without this key nobody could look after the server, or make another.
    LastAdmin,
    /// The key is revoked, now or before.
    Revoked(KeyNumber),
}

impl Book {
    /// Applies one command, if it comes by a right that is good at that time.
    pub fn apply_by(&mut self, now: UnixMs, by: &By, command: Command<'_>) -> Outcome {
        if !self.permits(now, by) {
            // Whoever makes the first key has no right to any more once it is made, and may not have heard the answer.
            let made = match command {
                Command::CreateKey(create) => self.keys.made_before(create),
                _ => None,
            };
            return made.map_or(Outcome::Unauthenticated, |number| Outcome::Key(KeyOutcome::Exists(number)));
        }
        self.credits.actor = self.keys.actor(by);
        let outcome = self.apply(now, command);
        self.credits.actor = None;
        outcome
    }

    /// Writes down who changed a limit, if it was changed and somebody did.
    pub(super) fn changed_limit(
        &mut self,
        now: UnixMs,
        (namespace, key): (NamespaceId, &LimitKey),
        change: LimitEdit,
        outcome: LimitOutcome,
    ) -> LimitOutcome {
        if let (LimitOutcome::Changed { revision, .. }, Some(actor)) = (&outcome, &self.credits.actor) {
            let (key, revision, actor) = (key.clone(), *revision, actor.clone());
            let entry = LimitEntry { at: now, namespace, key, change, revision, actor };
            self.credits.journal.push(JournalRecord::Limit(entry));
        }
        outcome
    }

    pub(super) fn create_key(&mut self, now: UnixMs, command: &CreateKey) -> KeyOutcome {
        if let Some(outcome) = self.keys.judge(now, command) {
            return outcome;
        }
        if self.open_namespace(&command.namespace) == NamespaceOutcome::TooMany {
            return KeyOutcome::TooManyNamespaces;
        }
        let (number, entry) = self.keys.create(now, command);
        self.credits.journal.push(JournalRecord::Key(entry));
        KeyOutcome::Created(number)
    }

    pub(super) fn revoke_key(&mut self, now: UnixMs, command: &RevokeKey) -> KeyOutcome {
        let (outcome, entry) = self.keys.revoke(now, command);
        self.credits.journal.extend(entry.map(JournalRecord::Key));
        outcome
    }

    /// Whether there is any key, valid or not. Once there is, nobody comes in without one.
    #[must_use]
    pub fn has_keys(&self) -> bool {
        !self.keys.is_empty()
    }

    /// All keys, in the order in which they were made.
    pub fn keys(&self) -> impl Iterator<Item = &Arc<KeyInfo>> {
        self.keys.all.values().map(|key| &key.info)
    }

    /// A key by its number.
    #[must_use]
    pub fn key_info(&self, number: KeyNumber) -> Option<&Arc<KeyInfo>> {
        self.keys.get(number)
    }

    /// The key of an id, if the secret is its own and it is valid at `now`.
    #[must_use]
    pub fn authenticate(&self, now: UnixMs, id: &KeyId, secret: &SecretHash) -> Option<&Arc<KeyInfo>> {
        self.keys.authenticate(now.max(self.time()), id, secret)
    }

    /// Who is behind a right; nobody in particular if it is of Earmark itself.
    #[must_use]
    pub fn actor(&self, by: &By) -> Option<Actor> {
        self.keys.actor(by)
    }

    /// Whether what comes by this right may be done at `now`.
    #[must_use]
    pub fn permits(&self, now: UnixMs, by: &By) -> bool {
        self.keys.permit(now.max(self.time()), by)
    }
}
