//! Authentication and admission of every request, over HTTP and gRPC alike.

mod certificate;
mod client_key;
mod credential_cache;
mod failed_logins;
mod fair_queue;
mod hangup;
mod issuer;
mod origin;
mod refusal_delay;
mod request_rate;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, Uri};
use earmark_admission::{Backend, Token};
use earmark_core::{Actor, KeyInfo, LimitKey, NameError, NamespaceName};
use metrics::Counter;

use crate::caller::{Access, AuthError, Caller, CallerShares, NamespaceShares};
use crate::client_network::ClientNetwork;
use crate::places::ConnectionState;
use crate::shared_map::SharedMap;
pub(crate) use certificate::ClientCertificate;
pub use certificate::{CertificateKeys, CertificateKeysError};
pub(crate) use client_key::CLIENT_KEY;
use credential_cache::CredentialCache;
pub(crate) use failed_logins::{Connection, FailedLogins};
use fair_queue::FairQueues;
pub(crate) use fair_queue::{CallerQueue, QueueLimits, QueueMetrics, WaitBounds, WorkPermit};
pub(crate) use hangup::Hangup;
pub use issuer::{Issuer, IssuerError, IssuerOptions};
pub(crate) use refusal_delay::Refusal;
use refusal_delay::RefusalDelays;
use request_rate::RequestRate;

/// Longest token that is checked; longer ones are rejected unread.
const TOKEN_BYTES_MAX: usize = 8 << 10;
/// Fewest requests that one page of the change log counts as, because it is read from disk.
pub(crate) const CHANGE_LOG_PAGE_COST: usize = 100;
/// Vault audits that use up a caller's request rate for one second.
const AUDITS_PER_SECOND: u64 = 10;
/// How long a key lookup is cached: it spares the state a lookup per request. A revoked key gains nothing, because
/// the state machine checks the key again for every command and read.
const CACHE_TTL: Duration = Duration::from_secs(1);

/// The client at the other end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) network: ClientNetwork,
    pub(crate) connection: Arc<ConnectionState>,
    /// Reports a hangup on HTTP/1; HTTP/2 cancels the request itself.
    pub(crate) hangup: Option<Arc<Hangup>>,
    /// Its certificate, if it has presented one.
    pub(crate) certificate: Option<Arc<ClientCertificate>>,
}

/// The credentials of a long stream, to check them again.
#[derive(Debug)]
pub(crate) struct Credentials {
    pub(crate) headers: HeaderMap,
    pub(crate) certificate: Option<Arc<ClientCertificate>>,
}

impl Credentials {
    pub(crate) fn new(headers: HeaderMap, peer: Option<&Peer>) -> Credentials {
        Credentials { headers, certificate: peer.and_then(|peer| peer.certificate.clone()) }
    }
}

/// The parts of a request that authentication reads.
#[derive(Clone, Copy)]
pub(crate) struct RequestHead<'a> {
    pub(crate) uri: &'a Uri,
    pub(crate) headers: &'a HeaderMap,
    /// The client at the other end of the connection.
    pub(crate) peer: Option<&'a Peer>,
    /// The gateway in this process sent it.
    pub(crate) is_own_gateway: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct AuthOptions {
    /// Credentials are required even while there are no keys.
    pub(crate) is_strict: bool,
    pub(crate) issuer: Option<Arc<Issuer>>,
    pub(crate) certificate_keys: CertificateKeys,
    /// Per caller; unlimited if absent.
    pub(crate) requests_per_second: Option<u64>,
    /// Per caller; unlimited if absent.
    pub(crate) queue: Option<QueueLimits>,
    /// Failed logins that are delayed at once.
    pub(crate) failed_waiting_max: usize,
}

pub(crate) struct AuthMetrics {
    pub(crate) failed_logins: Counter,
    pub(crate) queue: QueueMetrics,
}

/// Response extension: an HTTP/2 connection closes after this response. HTTP/1 has the header `connection: close`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CloseAfterReply;

/// A rejected request.
pub(crate) struct Rejection {
    pub(crate) error: AuthError,
    /// The caller, if its credentials were valid.
    pub(crate) caller: Option<Arc<Caller>>,
    pub(crate) connection: Connection,
}

/// Authenticates requests and applies the limits per caller.
pub(crate) struct Auth {
    options: AuthOptions,
    local: Arc<Caller>,
    anonymous: Arc<Caller>,
    /// The gateway in this process, on a server with keys.
    own_gateway: Arc<Caller>,
    cache: CredentialCache,
    /// The callers with a certificate, by the id of its key. Apart from `cache`, where a caller chooses the text.
    certificate_cache: CredentialCache,
    rate: Option<RequestRate>,
    queues: Option<FairQueues>,
    shares: SharedMap<LimitKey, CallerShares>,
    namespace_shares: SharedMap<NamespaceName, NamespaceShares>,
    refusal_delays: RefusalDelays,
    failed_logins: FailedLogins,
    /// Credentials are required. Never reset: the last admin key cannot be revoked.
    is_closed: AtomicBool,
    /// When the state was last asked whether there are keys.
    keys_checked: std::sync::Mutex<Option<Instant>>,
    failed: Counter,
}

impl Auth {
    pub(crate) fn new(options: AuthOptions, metrics: AuthMetrics) -> Result<Auth, NameError> {
        let namespace = NamespaceName::new(NamespaceName::DEFAULT)?;
        let local = Caller::local(Actor::new("system:local")?, namespace.clone());
        let actor = Actor::new("system:anonymous")?;
        let anonymous = Caller::anonymous(actor, namespace.clone());
        let own_gateway = Caller::own_gateway(Actor::new("system:gateway")?, namespace);
        Ok(Auth {
            rate: options.requests_per_second.map(RequestRate::new),
            queues: options.queue.map(|limits| FairQueues::new(limits, metrics.queue)),
            shares: SharedMap::default(),
            namespace_shares: SharedMap::default(),
            refusal_delays: RefusalDelays::default(),
            failed_logins: FailedLogins::new(options.failed_waiting_max),
            is_closed: AtomicBool::new(options.is_strict || options.issuer.is_some()),
            options,
            local: Arc::new(local),
            anonymous: Arc::new(anonymous),
            own_gateway: Arc::new(own_gateway),
            cache: CredentialCache::default(),
            certificate_cache: CredentialCache::default(),
            keys_checked: std::sync::Mutex::new(None),
            failed: metrics.failed_logins,
        })
    }

    /// Authenticates a request, and checks its permission and request rate.
    pub(crate) async fn admit(
        &self,
        backend: &dyn Backend,
        head: RequestHead<'_>,
        access: Access,
    ) -> Result<Arc<Caller>, Rejection> {
        let rejection = |error, connection| Rejection { error, caller: None, connection };
        let caller = if access == Access::Public {
            return Ok(Arc::clone(&self.anonymous));
        } else if head.is_own_gateway {
            Arc::clone(&self.own_gateway)
        } else if self.is_open(backend, head.headers.contains_key(AUTHORIZATION)) {
            origin::check(head.uri, head.headers).map_err(|error| rejection(error, Connection::Stays))?;
            Arc::clone(&self.local)
        } else {
            let certificate = head.peer.and_then(|peer| peer.certificate.as_deref());
            match self.authenticate(backend, head.headers, certificate) {
                Ok(caller) => caller,
                Err(error) => {
                    let connection = Box::pin(self.record_failure(head.peer)).await;
                    return Err(rejection(error, connection));
                }
            }
        };
        if let Some(peer) = head.peer {
            peer.connection.set_known(caller.shares.as_ref());
        }
        let acting = self.acting(backend, &caller, head.headers, access);
        // Forbidden requests count towards the rate too: they cost the server as much as others.
        let is_within_rate = self.charge(acting.as_ref().unwrap_or(&caller), 1);
        match (is_within_rate, acting) {
            (Ok(()), Ok(acting)) => Ok(acting),
            (Err(error), acting) => {
                let caller = Some(acting.unwrap_or(caller));
                Err(Rejection { error, caller, connection: Connection::Stays })
            }
            (Ok(()), Err(error)) => Err(Rejection { error, caller: Some(caller), connection: Connection::Stays }),
        }
    }

    /// Checks the credentials of a long stream again. It costs the caller nothing, and a failure is not a failed login.
    pub(crate) fn recheck(
        &self,
        backend: &dyn Backend,
        credentials: &Credentials,
        access: Access,
    ) -> Result<Arc<Caller>, AuthError> {
        let Credentials { headers, certificate } = credentials;
        let caller = if self.is_open(backend, headers.contains_key(AUTHORIZATION)) {
            Arc::clone(&self.local)
        } else {
            self.authenticate(backend, headers, certificate.as_deref())?
        };
        self.acting(backend, &caller, headers, access)
    }

    /// The sender of a request. A key or token in its headers decides alone; the certificate of the connection counts
    /// without one.
    fn authenticate(
        &self,
        backend: &dyn Backend,
        headers: &HeaderMap,
        certificate: Option<&ClientCertificate>,
    ) -> Result<Arc<Caller>, AuthError> {
        match certificate {
            Some(certificate) if !headers.contains_key(AUTHORIZATION) => self.find_certificate(backend, certificate),
            _ => bearer(headers).and_then(|token| self.find(backend, token)).ok_or(AuthError::Unauthenticated),
        }
    }

    /// Charges requests that arrived on a stream to its caller's rate.
    pub(crate) fn charge(&self, caller: &Caller, requests: usize) -> Result<(), AuthError> {
        match (&self.rate, &caller.rate_key) {
            (Some(rate), Some(key)) => rate.take(key, requests as u64),
            (None, _) | (_, None) => Ok(()),
        }
    }

    /// Charges the items of a batch to its caller's rate. [`Auth::admit`] charged the first one.
    pub(crate) fn charge_batch(&self, caller: &Caller, items: usize) -> Result<(), AuthError> {
        match (&self.rate, &caller.rate_key) {
            (Some(rate), Some(key)) => rate.take_more(key, items.saturating_sub(1) as u64),
            (None, _) | (_, None) => Ok(()),
        }
    }

    /// Charges the audit of a vault. It reads the whole history and blocks other requests for part of that time.
    pub(crate) fn charge_audit(&self, caller: &Caller) -> Result<(), AuthError> {
        let share = self.options.requests_per_second.unwrap_or(0) / AUDITS_PER_SECOND;
        self.charge_batch(caller, usize::try_from(share).unwrap_or(usize::MAX).max(CHANGE_LOG_PAGE_COST))
    }

    /// The delay of a response that tells a caller to retry later.
    pub(crate) fn delay_refusal(&self, caller: &Caller, retry_after_ms: u64) -> Refusal {
        match &caller.shares {
            Some(shares) => self.refusal_delays.begin(shares, Duration::from_millis(retry_after_ms)),
            None => Refusal::Immediate(Connection::Stays),
        }
    }

    /// Drops the cached credentials of a caller that the state machine rejected, and those of its gateway.
    pub(crate) fn forget(&self, caller: &Arc<Caller>) {
        self.cache.forget(caller);
        self.certificate_cache.forget(caller);
        self.is_closed.store(true, Ordering::Relaxed);
    }

    /// Whether requests need credentials.
    pub(crate) fn needs_credentials(&self, backend: &dyn Backend) -> bool {
        !self.is_open(backend, false)
    }

    /// Whether the server has no keys, so that any local program may do everything. A request with credentials bypasses
    /// the cache, because its key may be the first one.
    fn is_open(&self, backend: &dyn Backend, has_credentials: bool) -> bool {
        if self.is_closed.load(Ordering::Relaxed) {
            return false;
        }
        let now = Instant::now();
        {
            let mut checked = self.keys_checked.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if !has_credentials && checked.is_some_and(|at| now.duration_since(at) < CACHE_TTL) {
                return true;
            }
            *checked = Some(now);
        }
        let has_keys = backend.keys().is_some_and(|keys| keys.has_keys());
        if has_keys {
            self.is_closed.store(true, Ordering::Relaxed);
        }
        !has_keys
    }

    fn find(&self, backend: &dyn Backend, text: &str) -> Option<Arc<Caller>> {
        let digest = credential_cache::digest(text);
        if let Some(caller) = self.cache.get(&digest) {
            return Some(caller);
        }
        let (caller, until) = if Token::is_meant(text) {
            let token = Token::parse(text)?;
            let info = backend.keys()?.authenticate(token.id(), &token.hash())?;
            caller_with(&info)?
        } else {
            let session = self.options.issuer.as_ref()?.verify(text, SystemTime::now())?;
            (session.caller, Instant::now() + session.remaining.min(CACHE_TTL))
        };
        let caller = self.shared(caller);
        self.cache.insert(digest, Arc::clone(&caller), until);
        Some(caller)
    }

    /// The caller with a certificate: the key that its name is bound to.
    fn find_certificate(
        &self,
        backend: &dyn Backend,
        certificate: &ClientCertificate,
    ) -> Result<Arc<Caller>, AuthError> {
        let id = self.options.certificate_keys.key_of(certificate).map_err(AuthError::Certificate)?;
        let digest = credential_cache::digest(id.as_str());
        if let Some(caller) = self.certificate_cache.get(&digest) {
            return Ok(caller);
        }
        let found = backend.keys().and_then(|keys| keys.valid(id)).and_then(|info| caller_with(&info));
        let gone = || AuthError::Certificate(format!("the key {id} of the client certificate is not valid"));
        let (caller, until) = found.ok_or_else(gone)?;
        let caller = self.shared(caller);
        self.certificate_cache.insert(digest, Arc::clone(&caller), until);
        Ok(caller)
    }

    /// The caller with its queue and its shares.
    fn shared(&self, mut caller: Caller) -> Arc<Caller> {
        caller.queue = match (&self.queues, &caller.rate_key) {
            (Some(queues), Some(key)) => Some(queues.get(key)),
            (None, _) | (_, None) => None,
        };
        let namespace = self.namespace_shares.get(&caller.namespace, NamespaceShares::default);
        caller.shares = caller.rate_key.as_ref().map(|key| self.shares.get(key, || CallerShares::of(namespace)));
        Arc::new(caller)
    }

    /// Counts a failed login, and delays the response to a client that fails often.
    async fn record_failure(&self, peer: Option<&Peer>) -> Connection {
        self.failed.increment(1);
        match peer {
            Some(Peer { network, .. }) => self.failed_logins.record(*network).await,
            None => Connection::Stays,
        }
    }
}

/// The caller with a valid key, and until when it may be cached.
fn caller_with(info: &KeyInfo) -> Option<(Caller, Instant)> {
    let remaining = remaining_validity(info, SystemTime::now())?;
    Some((Caller::from_key(info)?, Instant::now() + remaining.min(CACHE_TTL)))
}

/// How long a key is still valid by the wall clock. The state machine checks expiry by log time, which may run behind.
fn remaining_validity(info: &KeyInfo, now: SystemTime) -> Option<Duration> {
    let Some(end) = info.expires_at else { return Some(Duration::MAX) };
    let now = now.duration_since(UNIX_EPOCH).ok()?;
    Duration::from_millis(end.get()).checked_sub(now).filter(|remaining| !remaining.is_zero())
}

/// The bearer token of a request that has exactly one `Authorization` header.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let (only, None) = (all.next()?, all.next()) else { return None };
    let (scheme, token) = only.to_str().ok()?.split_once(' ')?;
    let is_fit = scheme.eq_ignore_ascii_case("bearer") && (1..=TOKEN_BYTES_MAX).contains(&token.len());
    is_fit.then_some(token)
}
