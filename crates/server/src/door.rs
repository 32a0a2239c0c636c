//! The door: every request is let in here, or turned away, over HTTP and gRPC alike.

mod failures;
mod fair;
mod issuer;
mod known;
mod origin;
mod presence;
mod turns;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::http::header::AUTHORIZATION;
use axum::http::{Extensions, HeaderMap, Uri};
use earmark_admission::{Backend, Token};
use earmark_core::{Actor, KeyInfo, NameError, NamespaceName};
use metrics::Counter;

use crate::caller::{Access, Caller, Refused};
pub(crate) use failures::{After, Failures};
use fair::Fair;
pub use issuer::{Issuer, IssuerError, IssuerOptions};
use known::Known;
pub(crate) use presence::Presence;
use turns::Turns;
pub(crate) use turns::{Line, Patience, Place, TurnTerms, Waits};

/// The longest token that is looked at.
const TOKEN_BYTES_MAX: usize = 8 << 10;
/// A page of the log of changes, which is read from the disk, counts as so many requests.
pub(crate) const PAGE_OF_CHANGES: usize = 100;
/// So many audits of vaults take all that a caller may do in a second.
const AUDITS_A_SECOND: u64 = 10;
/// What was seen of the keys is good for so long: long enough to spare the Book, short enough that nobody notices. It
/// opens nothing by itself, for commands and reads are judged again where they are decided.
const SEEN_FOR: Duration = Duration::from_secs(1);

/// Where a request comes from.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) address: IpAddr,
    /// Whether its client is still there, where the protocol does not tell.
    pub(crate) presence: Option<Arc<Presence>>,
}

/// The head of a request.
#[derive(Clone, Copy)]
pub(crate) struct Head<'a> {
    pub(crate) uri: &'a Uri,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) extensions: &'a Extensions,
}

/// What the door is told when it is built.
#[derive(Clone, Debug)]
pub(crate) struct DoorOptions {
    /// Nobody comes in without credentials, whether or not there are keys.
    pub(crate) is_strict: bool,
    pub(crate) issuer: Option<Arc<Issuer>>,
    /// For each caller; none if there is no end to it.
    pub(crate) requests_per_second: Option<u64>,
    /// For each caller too.
    pub(crate) turns: Option<TurnTerms>,
    /// Of those who failed to log in.
    pub(crate) failed_waiting_max: usize,
}

/// What the door counts.
pub(crate) struct DoorCounts {
    /// Those who were turned away for want of credentials.
    pub(crate) failed: Counter,
    pub(crate) waits: Waits,
}

/// Marks an answer with which a connection of HTTP/2 is to end. In HTTP/1 a header says so.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parting;

/// Somebody who was not let in.
pub(crate) struct TurnedAway {
    pub(crate) why: Refused,
    /// Who it is, if that was found out.
    pub(crate) caller: Option<Arc<Caller>>,
    /// What becomes of the connection.
    pub(crate) after: After,
}

/// Lets requests in.
pub(crate) struct Door {
    options: DoorOptions,
    local: Arc<Caller>,
    nobody: Arc<Caller>,
    known: Known,
    fair: Option<Fair>,
    turns: Option<Turns>,
    failures: Failures,
    /// Once there was a key, there always is.
    is_closed: AtomicBool,
    looked: std::sync::Mutex<Option<Instant>>,
    failed: Counter,
}

impl Door {
    pub(crate) fn new(options: DoorOptions, counts: DoorCounts) -> Result<Door, NameError> {
        let namespace = NamespaceName::new(NamespaceName::DEFAULT)?;
        let local = Caller::local(Actor::new("system:local")?, namespace.clone());
        let nobody = Caller::of_user(Actor::new("system:anonymous")?, earmark_core::Role::Reader, namespace);
        Ok(Door {
            fair: options.requests_per_second.map(Fair::new),
            turns: options.turns.map(|terms| Turns::new(terms, counts.waits)),
            failures: Failures::new(options.failed_waiting_max),
            is_closed: AtomicBool::new(options.is_strict || options.issuer.is_some()),
            options,
            local: Arc::new(local),
            nobody: Arc::new(nobody),
            known: Known::default(),
            looked: std::sync::Mutex::new(None),
            failed: counts.failed,
        })
    }

    /// Lets a request in, or says why not.
    pub(crate) async fn admit(
        &self,
        backend: &dyn Backend,
        head: Head<'_>,
        access: Access,
    ) -> Result<Arc<Caller>, TurnedAway> {
        let nobody = |why, after| TurnedAway { why, caller: None, after };
        let caller = if access == Access::Public {
            return Ok(Arc::clone(&self.nobody));
        } else if self.is_open(backend, head.headers.contains_key(AUTHORIZATION)) {
            origin::check(head.uri, head.headers).map_err(|why| nobody(why, After::Stays))?;
            Arc::clone(&self.local)
        } else {
            match bearer(head.headers).and_then(|token| self.find(backend, token)) {
                Some(caller) => caller,
                None => {
                    let after = self.turn_away(head.extensions).await;
                    return Err(nobody(Refused::Unauthenticated, after));
                }
            }
        };
        // What is refused is counted too: whoever asks in vain takes as much of the server as others.
        let taken = match (&self.fair, &caller.counted_as) {
            (Some(fair), Some(key)) => fair.take(key, 1),
            (None, _) | (_, None) => Ok(()),
        };
        let allowed = if caller.may(access) { Ok(()) } else { Err(Refused::Forbidden) };
        match taken.and(allowed) {
            Ok(()) => Ok(caller),
            Err(why) => Err(TurnedAway { why, caller: Some(caller), after: After::Stays }),
        }
    }

    /// Counts the items of a batch behind its first, which was counted as its request.
    pub(crate) fn charge_batch(&self, caller: &Caller, items: usize) -> Result<(), Refused> {
        match (&self.fair, &caller.counted_as) {
            (Some(fair), Some(key)) => fair.take_more(key, items.saturating_sub(1) as u64),
            (None, _) | (_, None) => Ok(()),
        }
    }

    /// Counts the audit of a vault, which reads its whole history and holds up everyone else for a part of that: nobody
    /// makes more of them in a second than a few.
    pub(crate) fn charge_audit(&self, caller: &Caller) -> Result<(), Refused> {
        let share = self.options.requests_per_second.unwrap_or(0) / AUDITS_A_SECOND;
        self.charge_batch(caller, usize::try_from(share).unwrap_or(usize::MAX).max(PAGE_OF_CHANGES))
    }

    /// Forgets what was seen of a caller whom the Book has turned away.
    pub(crate) fn forget(&self, caller: &Arc<Caller>) {
        self.known.forget(caller);
        self.is_closed.store(true, Ordering::Relaxed);
    }

    /// Whether everyone on this machine may do everything, as far as is known here. Whoever has credentials has heard of a
    /// key, perhaps of the first; so for them what was seen a moment ago is not good enough.
    fn is_open(&self, backend: &dyn Backend, has_credentials: bool) -> bool {
        if self.is_closed.load(Ordering::Relaxed) {
            return false;
        }
        let now = Instant::now();
        {
            let mut looked = self.looked.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if !has_credentials && looked.is_some_and(|at| now.duration_since(at) < SEEN_FOR) {
                return true;
            }
            *looked = Some(now);
        }
        let has_keys = backend.keys().is_some_and(|keys| keys.has_keys());
        if has_keys {
            self.is_closed.store(true, Ordering::Relaxed);
        }
        !has_keys
    }

    fn find(&self, backend: &dyn Backend, text: &str) -> Option<Arc<Caller>> {
        let digest = known::digest(text);
        if let Some(caller) = self.known.get(&digest) {
            return Some(caller);
        }
        let (mut caller, until) = if Token::is_meant(text) {
            let token = Token::parse(text)?;
            let info = backend.keys()?.authenticate(token.id(), &token.hash())?;
            let lasts = lasts(&info, SystemTime::now())?;
            (Caller::of_key(&info)?, Instant::now() + lasts.min(SEEN_FOR))
        } else {
            let session = self.options.issuer.as_ref()?.verify(text, SystemTime::now())?;
            (session.caller, Instant::now() + session.lasts.min(SEEN_FOR))
        };
        caller.line = match (&self.turns, &caller.counted_as) {
            (Some(turns), Some(key)) => Some(turns.line(key)),
            (None, _) | (_, None) => None,
        };
        let caller = Arc::new(caller);
        self.known.insert(digest, Arc::clone(&caller), until);
        Some(caller)
    }

    /// Counts a failure, and lets whoever fails often wait for the answer.
    async fn turn_away(&self, extensions: &Extensions) -> After {
        self.failed.increment(1);
        match extensions.get() {
            Some(Peer { address, .. }) => self.failures.wait(*address).await,
            None => After::Stays,
        }
    }
}

/// For how long a key is still good by the clock on the wall. It ends by the time of the log; and by this as well, in case
/// that is slow.
fn lasts(info: &KeyInfo, now: SystemTime) -> Option<Duration> {
    let Some(end) = info.expires_at else { return Some(Duration::MAX) };
    let now = now.duration_since(UNIX_EPOCH).ok()?;
    Duration::from_millis(end.get()).checked_sub(now).filter(|lasts| !lasts.is_zero())
}

/// The token of a request, if it has exactly one.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let (only, None) = (all.next()?, all.next()) else { return None };
    let (scheme, token) = only.to_str().ok()?.split_once(' ')?;
    let is_fit = scheme.eq_ignore_ascii_case("bearer") && (1..=TOKEN_BYTES_MAX).contains(&token.len());
    is_fit.then_some(token)
}
