//! Session tokens: JSON Web Tokens of one issuer with configured public keys.
//!
//! The configured key determines the signature algorithm, never the token.

mod distinct;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use earmark_core::{Actor, Labels, NamespaceName, Role};
use ring::signature::{ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::caller::Caller;
use crate::tls::{FileStamp, file_stamp};

/// Tolerated lead of the issuer's clock.
const CLOCK_SKEW_MAX: Duration = Duration::from_secs(30);
/// Shortest accepted RSA modulus, in bytes: 2048 bits, the minimum of RFC 7518 for RS256.
const MODULUS_BYTES_MIN: usize = 256;

/// The issuer whose tokens are accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuerOptions {
    /// The required claim `iss`.
    pub issuer: String,
    /// The audience that the claim `aud` must contain.
    pub audience: String,
    /// The name of the claim with the role.
    pub role_claim: String,
    /// The name of the claim with the namespace.
    pub namespace_claim: String,
    /// The attributes that claims fix: the name of the attribute, and that of the claim. A token without the claim lacks
    /// the attribute.
    pub attribute_claims: Vec<(String, String)>,
    /// Longest lifetime of a token, from its claim `iat`, or from now without one.
    pub lifetime_max: Duration,
}

/// A key set that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IssuerError {
    /// The file cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        source: std::io::Error,
    },
    /// The file is not a JSON Web Key Set.
    #[error("{} is not a JSON Web Key Set: {what}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The parse error.
        what: String,
    },
}

/// An issuer of session tokens, with its last usable keys.
#[derive(Debug)]
pub struct Issuer {
    options: IssuerOptions,
    keys: RwLock<Arc<[PublicKey]>>,
    path: PathBuf,
    stamp: Mutex<FileStamp>,
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

/// A verified session.
pub(super) struct Session {
    pub(super) caller: Caller,
    pub(super) remaining: Duration,
}

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<Value>,
}

/// One key of a set; its other fields are ignored.
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
    /// Critical extensions. None is supported.
    #[serde(default)]
    crit: Option<Value>,
}

impl Issuer {
    /// Loads the public keys of an issuer from a JSON Web Key Set.
    ///
    /// # Errors
    /// When the file cannot be read or is not a key set. Keys other than Ed25519 and RSA of at least 2048 bits, and keys
    /// for other purposes than signatures, are skipped.
    pub fn open(options: IssuerOptions, path: &Path) -> Result<Issuer, IssuerError> {
        let stamp = Mutex::new(file_stamp(path));
        Ok(Issuer { options, keys: RwLock::new(load(path)?), path: path.to_owned(), stamp })
    }

    /// Reloads the keys. The current ones stay in use if the file is not usable.
    ///
    /// # Errors
    /// When the file cannot be read or is not a key set. Keys other than Ed25519 and RSA of at least 2048 bits, and keys
    /// for other purposes than signatures, are skipped.
    pub fn reload(&self) -> Result<(), IssuerError> {
        *self.stamp.lock().unwrap_or_else(PoisonError::into_inner) = file_stamp(&self.path);
        let keys = load(&self.path)?;
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
        Ok(())
    }

    /// Reloads the keys if their file has changed, and logs the result.
    pub(crate) fn refresh(&self) {
        if file_stamp(&self.path) == *self.stamp.lock().unwrap_or_else(PoisonError::into_inner) {
            return;
        }
        match self.reload() {
            Ok(()) => tracing::info!(path = %self.path.display(), "issuer keys reloaded"),
            Err(error) => {
                tracing::error!(%error, "cannot use the new issuer keys; keeping the current ones")
            }
        }
    }

    /// The session of a valid token. It does not say why a token is invalid.
    pub(super) fn verify(&self, token: &str, now: SystemTime) -> Option<Session> {
        let (message, signature) = token.rsplit_once('.')?;
        let (header, claims) = message.split_once('.')?;
        let header: Header = serde_json::from_value(distinct::parse(&decode(header)?)?).ok()?;
        let keys = Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner));
        let key = match &header.kid {
            Some(kid) => keys.iter().find(|key| key.id.as_ref() == Some(kid))?,
            None => keys.first().filter(|_| keys.len() == 1)?,
        };
        let is_right = header.crit.is_none() && header.alg == key.kind.name();
        if !is_right || !key.kind.verify(message.as_bytes(), &decode(signature)?) {
            return None;
        }
        self.session(distinct::parse(&decode(claims)?)?.as_object()?, now)
    }

    fn session(&self, claims: &Map<String, Value>, now: SystemTime) -> Option<Session> {
        let IssuerOptions { issuer, audience, role_claim, namespace_claim, lifetime_max, .. } = &self.options;
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
        let remaining = seconds(claims.get("exp")?)?.checked_sub(now).filter(|remaining| !remaining.is_zero())?;
        let begins = ["nbf", "iat"].map(|name| claims.get(name).map(seconds));
        if begins.iter().flatten().any(|begins| begins.is_none_or(|begins| begins > now.saturating_add(CLOCK_SKEW_MAX)))
        {
            return None;
        }
        // Sessions cannot be revoked, so their lifetime is bounded.
        let [_, made] = begins;
        let made = made.flatten().unwrap_or(now).min(now);
        if now.saturating_add(remaining).saturating_sub(made) > *lifetime_max {
            return None;
        }
        let actor = Actor::new(&format!("user:{}", text("sub")?)).ok()?;
        let role: Role = text(role_claim)?.parse().ok()?;
        let namespace = NamespaceName::new(text(namespace_claim)?).ok()?;
        let labels = self.labels(claims)?;
        Some(Session { caller: Caller::from_session(actor, role, namespace, labels), remaining })
    }

    /// The attributes that the token's claims fix. A claim whose value is no attribute makes the token invalid.
    fn labels(&self, claims: &Map<String, Value>) -> Option<Labels> {
        let mut labels = Vec::with_capacity(self.options.attribute_claims.len());
        for (attribute, claim) in &self.options.attribute_claims {
            match claims.get(claim) {
                None | Some(Value::Null) => {}
                Some(Value::String(text)) => labels.push((attribute, text.clone())),
                Some(Value::Number(number)) if !number.is_f64() => labels.push((attribute, number.to_string())),
                Some(_) => return None,
            }
        }
        Labels::new(labels).ok()
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
        // Issuers also publish keys for other purposes and of other kinds.
        match serde_json::from_value(document).map_err(|error| error.to_string()).and_then(public_key) {
            Ok(key) => keys.push(key),
            Err(why) => tracing::warn!(%why, "skipping an issuer key"),
        }
    }
    if keys.is_empty() {
        tracing::warn!("the issuer has no usable key; all session tokens are rejected");
    }
    let is_unique = |index: usize, key: &PublicKey| keys[..index].iter().all(|other| other.id != key.id);
    if !keys.iter().enumerate().all(|(index, key)| is_unique(index, key)) {
        return Err("two keys have the same kid".into());
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
        text.as_deref().and_then(decode).ok_or_else(|| format!("key {name}: {field} is missing or not base64url"))
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
            return Err(format!("key {name}: found kty {kty} and crv {crv}, allowed are RSA, and OKP with Ed25519"));
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
