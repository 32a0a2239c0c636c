//! TLS for clients: a certificate and its key, read again when their files change.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::SystemTime;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// What is spoken behind TLS, best first.
const PROTOCOLS: [&[u8]; 2] = [HTTP_2, b"http/1.1"];
pub(crate) const HTTP_2: &[u8] = b"h2";

/// Why there is no TLS. The key itself is in no message.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read, or has no such thing in it.
    #[error("{}: no {what} can be read from it: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
        /// What is wrong.
        source: rustls::pki_types::pem::Error,
    },
    /// The certificate and the key do not belong together, or are of a kind that is not known.
    #[error("the certificate of {} and the key of {} cannot be used: {source}", cert.display(), key.display())]
    Pair {
        /// The file of the certificate.
        cert: PathBuf,
        /// The file of the key.
        key: PathBuf,
        /// What is wrong.
        source: rustls::Error,
    },
}

/// When a file was last changed, and how long it was then.
pub(crate) type Seen = Option<(SystemTime, u64)>;

/// A certificate and its key, as they were last found good.
pub struct Tls {
    cert: PathBuf,
    key: PathBuf,
    current: RwLock<Arc<ServerConfig>>,
    seen: Mutex<[Seen; 2]>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("cert", &self.cert).field("key", &self.key).finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads a chain of certificates and the key of the first, both PEM.
    ///
    /// # Errors
    /// When either cannot be read, or they do not belong together.
    pub fn open(cert: &Path, key: &Path) -> Result<Tls, TlsError> {
        let seen = Mutex::new([look(cert), look(key)]);
        let current = RwLock::new(Arc::new(load(cert, key)?));
        Ok(Tls { cert: cert.to_owned(), key: key.to_owned(), current, seen })
    }

    /// Reads both files again. If they cannot be used, what was there before stays in use.
    ///
    /// # Errors
    /// When either cannot be read, or they do not belong together.
    pub fn reload(&self) -> Result<(), TlsError> {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = [look(&self.cert), look(&self.key)];
        let config = Arc::new(load(&self.cert, &self.key)?);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// Reads the files again if they have changed since, and logs what came of it.
    pub(crate) fn refresh(&self) {
        let now = [look(&self.cert), look(&self.key)];
        if now == *self.seen.lock().unwrap_or_else(PoisonError::into_inner) {
            return;
        }
        match self.reload() {
            Ok(()) => tracing::info!(cert = %self.cert.display(), "the certificate was read again"),
            Err(error) => tracing::error!(%error, "the certificate in use stays, the new one cannot be used"),
        }
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

pub(crate) fn look(path: &Path) -> Seen {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

fn load(cert: &Path, key: &Path) -> Result<ServerConfig, TlsError> {
    let file = |path: &Path, what| {
        let path = path.to_owned();
        move |source| TlsError::File { path, what, source }
    };
    let chain: Result<Vec<CertificateDer<'static>>, _> =
        CertificateDer::pem_file_iter(cert).and_then(Iterator::collect);
    let chain = chain.map_err(file(cert, "certificate"))?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(file(key, "private key"))?;
    let pair = |source| TlsError::Pair { cert: cert.to_owned(), key: key.to_owned(), source };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(pair)?.with_no_client_auth();
    let mut config = builder.with_single_cert(chain, private).map_err(pair)?;
    config.alpn_protocols = PROTOCOLS.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(config)
}
