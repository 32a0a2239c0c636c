//! Authentication and TLS of a server that starts.

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use earmark_admission::{Backend, KeyError, Keys, Token, create_private};
use earmark_core::{Actor, CreateKey, KeyId, KeyName, Labels, MaySet, NamespaceName, Principal, Role};
use earmark_node::{Net, PeerFiles, RealNet, TlsNet};
use earmark_server::{CertificateKeys, Issuer, IssuerOptions, ServerError, Tls, TlsError};
use tokio::signal::unix::{SignalKind, signal};

use super::ServeArgs;
use crate::failure::Failure;
use crate::output;

impl ServeArgs {
    /// Rejects an unsafe combination of flags before the first side effect.
    pub(super) fn check_callers(&self) -> Result<(), Failure> {
        let is_loopback = self.listen.ip().is_loopback();
        let is_joining = !self.peers.join.is_empty() || !self.peers.bootstrap.is_empty();
        let is_new = self.in_memory || !self.data.exists() && !is_joining;
        if !is_loopback && is_new && self.bootstrap_key.is_none() && self.issuer.is_none() {
            return Err(ServerError::NotLoopback { found: self.listen }.into());
        }
        if !is_loopback && !self.insecure_plaintext && self.tls_cert.is_none() {
            return Err(ServerError::Plaintext { found: self.listen }.into());
        }
        Ok(())
    }

    /// TLS for clients. The files are reloaded on change and on SIGHUP.
    pub(super) fn tls(&self) -> Result<Option<Arc<Tls>>, Failure> {
        let (Some(cert), Some(key)) = (&self.tls_cert, &self.tls_key) else { return Ok(None) };
        let tls = match &self.client_ca {
            None => Tls::open(cert, key),
            Some(client_ca) => Tls::open_with_clients(cert, key, client_ca),
        };
        let tls = tls.map_err(|error| {
            let flag = if matches!(error, TlsError::Authority { .. }) { "--client-ca" } else { "--tls-cert" };
            Failure::Usage(format!("{flag}: {error}"))
        })?;
        let tls = Arc::new(tls);
        let reloaded = Arc::clone(&tls);
        on_hangup(move || reloaded.reload().map_err(|error| error.to_string()))?;
        Ok(Some(tls))
    }

    /// The keys of clients with a certificate.
    pub(super) fn certificate_keys(&self) -> Result<CertificateKeys, Failure> {
        CertificateKeys::new(self.client_certificate.iter().cloned())
            .map_err(|error| Failure::Usage(format!("--client-certificate: {error}")))
    }

    pub(super) fn peer_net(&self) -> Result<Arc<dyn Net>, Failure> {
        let (Some(cert), Some(key), Some(ca)) = (&self.peer_cert, &self.peer_key, &self.peer_ca) else {
            return Ok(Arc::new(RealNet));
        };
        let files = PeerFiles { cert: cert.clone(), key: key.clone(), ca: ca.clone() };
        let net = TlsNet::open(files).map_err(|error| Failure::Usage(format!("--peer-cert: {error}")))?;
        let reloaded = net.clone();
        on_hangup(move || reloaded.reload().map_err(|error| error.to_string()))?;
        Ok(Arc::new(net))
    }

    /// The issuer of session tokens. Its key file is reloaded on change and on SIGHUP.
    pub(super) fn issuer(&self) -> Result<Option<Arc<Issuer>>, Failure> {
        let (Some(issuer), Some(path), Some(audience)) = (&self.issuer, &self.issuer_keys, &self.audience) else {
            return Ok(None);
        };
        let options = IssuerOptions {
            issuer: issuer.clone(),
            audience: audience.clone(),
            role_claim: self.role_claim.clone(),
            namespace_claim: self.namespace_claim.clone(),
            attribute_claims: self.attribute_claim.clone(),
            lifetime_max: Duration::from_secs(self.issuer_max_age.into()),
        };
        Labels::new(self.attribute_claim.iter().map(|(name, _)| (name, "any")))
            .map_err(|error| Failure::Usage(format!("--attribute-claim: {error}")))?;
        let opened = Issuer::open(options, path);
        let opened = opened.map_err(|error| Failure::Usage(format!("--issuer-keys: {error}")))?;
        let opened = Arc::new(opened);
        let reloaded = Arc::clone(&opened);
        on_hangup(move || reloaded.reload().map_err(|error| error.to_string()))?;
        Ok(Some(opened))
    }
}

/// Parses the name and the key id of `--client-certificate`. A URI may contain `=`, a key id may not.
pub(super) fn client_certificate(text: &str) -> Result<(String, KeyId), String> {
    let (name, key) = text.rsplit_once('=').ok_or("found no =, allowed is NAME=KEY_ID")?;
    let key = KeyId::new(key).map_err(|error| format!("{error}; `earmark key list` shows the ids"))?;
    Ok((name.to_owned(), key))
}

/// Parses the attribute and the claim of `--attribute-claim`.
pub(super) fn attribute_claim(text: &str) -> Result<(String, String), String> {
    let (attribute, claim) = text.split_once('=').ok_or("found no =, allowed is ATTRIBUTE=CLAIM")?;
    Labels::new([(attribute, "any")]).map_err(|error| error.to_string())?;
    match claim {
        "" => Err("the name of the claim is empty".into()),
        _ => Ok((attribute.to_owned(), claim.to_owned())),
    }
}

/// Creates the first key, and writes it to a file or prints it. Does nothing if there are keys.
///
/// The file is written before the key exists, because a crash in between must not leave a key that nobody knows. A key
/// that an earlier start has written is used again.
pub(super) async fn bootstrap(backend: &dyn Backend, file: Option<&Path>) -> Result<(), Failure> {
    let failed = |why: String| Failure::Usage(format!("--bootstrap-key: {why}"));
    let written = file.map(read_key).transpose().map_err(failed)?.flatten();
    let is_written = written.is_some();
    let token = match written {
        Some(token) => token,
        None => Token::random().map_err(|error| failed(error.to_string()))?,
    };
    if backend.keys().is_some_and(Keys::has_keys) {
        return no_bootstrap();
    }
    let key = token.reveal();
    if let Some(path) = file.filter(|_| !is_written) {
        let write = || create_private(path)?.write_all(format!("{key}\n").as_bytes());
        write().map_err(|error| failed(format!("cannot write {}: {error}", path.display())))?;
    }
    match (create_first_key(backend, &token, "bootstrap").await, file) {
        (Ok(()), Some(path)) => output::print(&format!("key:    in {}, role admin\n", path.display())),
        (Ok(()), None) => {
            output::print(&format!("key:    {key}\n        role admin; it is not shown again, so store it\n"))
        }
        (Err(FirstKeyError::NotTheFirst), file) => {
            // Another node has created the first key meanwhile.
            if let Some(path) = file.filter(|_| !is_written) {
                std::fs::remove_file(path).map_err(|error| failed(format!("{}: {error}", path.display())))?;
            }
            no_bootstrap()
        }
        (Err(error), _) => Err(failed(error.to_string())),
    }
}

fn no_bootstrap() -> Result<(), Failure> {
    tracing::info!("--bootstrap-key does nothing: this server already has keys");
    Ok(())
}

/// The key in a file that an earlier start has written.
fn read_key(path: &Path) -> Result<Option<Token>, String> {
    match std::fs::read_to_string(path) {
        Ok(text) if text.trim().is_empty() => Ok(None),
        Ok(text) => match Token::parse(text.trim()) {
            Some(token) => Ok(Some(token)),
            None => Err(format!("{} exists and holds no key; name another file", path.display())),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("cannot read {}: {error}", path.display())),
    }
}

/// Why the first key was not created.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FirstKeyError {
    #[error("this server already has keys; create more with `earmark key create`")]
    NotTheFirst,
    #[error("{0}")]
    Failed(String),
}

/// Creates the first key of a server, with role admin in namespace default.
pub(crate) async fn create_first_key(backend: &dyn Backend, token: &Token, name: &str) -> Result<(), FirstKeyError> {
    let keys = backend.keys().ok_or_else(|| FirstKeyError::Failed("this server stores no keys".into()))?;
    let misnamed = |error: earmark_core::NameError| FirstKeyError::Failed(error.to_string());
    let command = CreateKey {
        id: token.id().clone(),
        secret: token.hash(),
        name: KeyName::new(name).map_err(misnamed)?,
        role: Role::Admin,
        namespace: NamespaceName::new(NamespaceName::DEFAULT).map_err(misnamed)?,
        client: None,
        labels: Labels::default(),
        may_set: MaySet::default(),
        valid_seconds: None,
        is_first: true,
        actor: Actor::new(&format!("system:{name}")).map_err(misnamed)?,
    };
    keys.create(Principal::System, command).await.map(drop).map_err(|error| match error {
        KeyError::NotTheFirst => FirstKeyError::NotTheFirst,
        error => FirstKeyError::Failed(error.to_string()),
    })
}

/// Runs `reload` on every SIGHUP.
pub(super) fn on_hangup(reload: impl Fn() -> Result<(), String> + Send + 'static) -> Result<(), Failure> {
    let failed = |source| Failure::System { what: "listening for signals", source };
    let mut hangup = signal(SignalKind::hangup()).map_err(failed)?;
    earmark_admission::spawn(async move {
        while hangup.recv().await.is_some() {
            match reload() {
                Ok(()) => tracing::info!("SIGHUP: file reloaded"),
                Err(error) => tracing::error!(%error, "SIGHUP: reload failed, keeping the previous file"),
            }
        }
    });
    Ok(())
}
