//! Session tokens: JSON Web Tokens of one issuer whose public keys are configured.
//!
//! Which algorithm a signature is checked with is said by the configured key, and never by the token.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use earmark_core::{Actor, NamespaceName, Role};
use ring::signature::{ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::caller::Caller;
use crate::tls::{Seen, look};

/// So far ahead may the clock of an issuer be.
const AHEAD: Duration = Duration::from_secs(30);
/// The shortest modulus of RSA, in bytes.
const MODULUS_BYTES_MIN: usize = 256;

/// Whose tokens are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuerOptions {
    /// The claim `iss`.
    pub issuer: String,
    /// One of the claim `aud`.
    pub audience: String,
    /// The claim that has the role.
    pub role_claim: String,
    /// The claim that has the namespace.
    pub namespace_claim: String,
    /// So long may a token live, from its claim `iat` on, or from when it is seen if it has none.
    pub lifetime_max: Duration,
}

/// Why there are no keys of an issuer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IssuerError {
    /// The file cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The file is no set of keys.
    #[error("{} is no JSON Web Key Set: {what}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

/// An issuer of session tokens, with its keys as they were last found good.
#[derive(Debug)]
pub struct Issuer {
    options: IssuerOptions,
    keys: RwLock<Arc<[PublicKey]>>,
    /// Where they come from, and what was last seen there.
    path: PathBuf,
    seen: Mutex<Seen>,
}

#[derive(Debug)]
struct PublicKey {
    id: Option<String>,
    kind: Algorithm,
}

#[derive(Debug)]
enum Algorithm {
    EdDsa(Vec<u8>),
    Rs256 { n: Vec<u8>, e: Vec<u8> },
}

impl Algorithm {
    fn name(&self) -> &'static str {
        match self {
            Algorithm::EdDsa(_) => "EdDSA",
            Algorithm::Rs256 { .. } => "RS256",
        }
    }

    fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        match self {
            Algorithm::EdDsa(key) => UnparsedPublicKey::new(&ED25519, key).verify(message, signature).is_ok(),
            Algorithm::Rs256 { n, e } => {
                let key = RsaPublicKeyComponents { n, e };
                key.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature).is_ok()
            }
        }
    }
}

/// A session that was found good.
pub(super) struct Session {
    pub(super) caller: Caller,
    pub(super) lasts: Duration,
}

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<Value>,
}

/// One key of a set. There are many more fields, none of which matters here.
#[derive(Deserialize)]
struct KeyDocument {
    kty: String,
    #[serde(default)]
    kid: Option<String>,
    #[serde(default)]
    alg: Option<String>,
    #[serde(default, rename = "use")]
    purpose: Option<String>,
    #[serde(default)]
    crv: Option<String>,
    #[serde(default)]
    x: Option<String>,
    #[serde(default)]
    n: Option<String>,
    #[serde(default)]
    e: Option<String>,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: Option<String>,
    /// Extensions that must be understood. None is.
    #[serde(default)]
    crit: Option<Value>,
}

impl Issuer {
    /// Reads the public keys of an issuer from a file, a JSON Web Key Set.
    ///
    /// # Errors
    /// When there is no such file, or it is no set of keys. Those that are neither Ed25519 nor RSA of 2048 bits or more,
    /// or not for signatures, are left out.
    pub fn open(options: IssuerOptions, path: &Path) -> Result<Issuer, IssuerError> {
        let seen = Mutex::new(look(path));
        Ok(Issuer { options, keys: RwLock::new(load(path)?), path: path.to_owned(), seen })
    }

    /// Reads the keys again. If they cannot be used, those that were there before stay in use.
    ///
    /// # Errors
    /// When there is no such file, or it is no set of keys. Those that are neither Ed25519 nor RSA of 2048 bits or more,
    /// or not for signatures, are left out.
    pub fn reload(&self) -> Result<(), IssuerError> {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = look(&self.path);
        let keys = load(&self.path)?;
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
        Ok(())
    }

    /// Reads the keys again if their file has changed since, and logs what came of it.
    pub(crate) fn refresh(&self) {
        if look(&self.path) == *self.seen.lock().unwrap_or_else(PoisonError::into_inner) {
            return;
        }
        match self.reload() {
            Ok(()) => tracing::info!(path = %self.path.display(), "the keys of the issuer were read again"),
            Err(error) => {
                tracing::error!(%error, "the issuer's keys in use stay, the new ones cannot be used")
            }
        }
    }

    /// The session of a token, if everything about it is right. What is not is not said.
    pub(super) fn verify(&self, token: &str, now: SystemTime) -> Option<Session> {
        let (message, signature) = token.rsplit_once('.')?;
        let (header, claims) = message.split_once('.')?;
        let header: Header = serde_json::from_slice(&decode(header)?).ok()?;
        let keys = Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner));
        let key = match &header.kid {
            Some(kid) => keys.iter().find(|key| key.id.as_ref() == Some(kid))?,
            None => keys.first().filter(|_| keys.len() == 1)?,
        };
        let is_right = header.crit.is_none() && header.alg == key.kind.name();
        if !is_right || !key.kind.verify(message.as_bytes(), &decode(signature)?) {
            return None;
        }
        self.session(&serde_json::from_slice(&decode(claims)?).ok()?, now)
    }

    fn session(&self, claims: &Map<String, Value>, now: SystemTime) -> Option<Session> {
        let IssuerOptions { issuer, audience, role_claim, namespace_claim, lifetime_max } = &self.options;
        let text = |name: &str| claims.get(name).and_then(Value::as_str);
        let is_meant = match claims.get("aud")? {
            Value::String(one) => one == audience,
            Value::Array(several) => several.iter().any(|one| one.as_str() == Some(audience)),
            _ => false,
        };
        if text("iss") != Some(issuer) || !is_meant {
            return None;
        }
        let now = now.duration_since(UNIX_EPOCH).ok()?;
        let lasts = seconds(claims.get("exp")?)?.checked_sub(now).filter(|lasts| !lasts.is_zero())?;
        let begins = ["nbf", "iat"].map(|name| claims.get(name).map(seconds));
        if begins
            .iter()
            .flatten()
            .any(|begins| begins.is_none_or(|begins| begins > now.saturating_add(AHEAD)))
        {
            return None;
        }
        // A session cannot be revoked, so that one without an end in sight is none, however old it is by now.
        let [_, made] = begins;
        let made = made.flatten().unwrap_or(now).min(now);
        if now.saturating_add(lasts).saturating_sub(made) > *lifetime_max {
            return None;
        }
        let actor = Actor::new(&format!("user:{}", text("sub")?)).ok()?;
        let role: Role = text(role_claim)?.parse().ok()?;
        let namespace = NamespaceName::new(text(namespace_claim)?).ok()?;
        Some(Session { caller: Caller::of_user(actor, role, namespace), lasts })
    }
}

fn load(path: &Path) -> Result<Arc<[PublicKey]>, IssuerError> {
    let unreadable = |source| IssuerError::Unreadable { path: path.to_owned(), source };
    let text = std::fs::read(path).map_err(unreadable)?;
    parse(&text).map_err(|what| IssuerError::Malformed { path: path.to_owned(), what })
}

fn parse(text: &[u8]) -> Result<Arc<[PublicKey]>, String> {
    let set: KeySet = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let mut keys = Vec::with_capacity(set.keys.len());
    for document in set.keys {
        // Issuers publish keys for other purposes and of other kinds beside those that sign these tokens.
        match serde_json::from_value(document).map_err(|error| error.to_string()).and_then(public_key) {
            Ok(key) => keys.push(key),
            Err(why) => tracing::warn!(%why, "a key of the issuer is not used"),
        }
    }
    if keys.is_empty() {
        tracing::warn!("the issuer has no key that can be used, so that no session token is taken");
    }
    let is_told_apart = |place: usize, key: &PublicKey| keys[..place].iter().all(|other| other.id != key.id);
    if !keys.iter().enumerate().all(|(place, key)| is_told_apart(place, key)) {
        return Err("it has two keys with the same kid".into());
    }
    Ok(keys.into())
}

/// Seconds since the epoch, with or without a fraction.
fn seconds(value: &Value) -> Option<Duration> {
    value.as_f64().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
}

fn decode(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

fn public_key(document: KeyDocument) -> Result<PublicKey, String> {
    let name = document.kid.clone().unwrap_or_else(|| "without kid".into());
    let part = |text: &Option<String>, field: &str| {
        text.as_deref()
            .and_then(decode)
            .ok_or_else(|| format!("key {name}: {field} is missing or no base64url"))
    };
    let kind = match (document.kty.as_str(), document.crv.as_deref()) {
        ("OKP", Some("Ed25519")) => Algorithm::EdDsa(part(&document.x, "x")?),
        ("RSA", None) => {
            let n = part(&document.n, "n")?;
            if n.len() < MODULUS_BYTES_MIN {
                return Err(format!("key {name}: found {} bits, allowed are 2048 or more", n.len() * 8));
            }
            Algorithm::Rs256 { n, e: part(&document.e, "e")? }
        }
        (kty, crv) => {
            let crv = crv.unwrap_or("none");
            return Err(format!(
                "key {name}: found kty {kty} and crv {crv}, allowed are RSA, and OKP with Ed25519"
            ));
        }
    };
    if let Some(purpose) = document.purpose.filter(|purpose| purpose != "sig") {
        return Err(format!("key {name}: found use {purpose}, allowed is sig"));
    }
    match document.alg {
        Some(alg) if alg != kind.name() => {
            Err(format!("key {name}: found alg {alg}, allowed is {} for its kind", kind.name()))
        }
        _ => Ok(PublicKey { id: document.kid, kind }),
    }
}

#[cfg(test)]
mod tests;
