//! TLS for clients: a certificate and its key, reloaded when their files change.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::SystemTime;

use earmark_admission::exposure;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

/// ALPN protocols, preferred first.
const PROTOCOLS: [&[u8]; 2] = [HTTP_2, b"http/1.1"];
pub(crate) const HTTP_2: &[u8] = b"h2";

/// A certificate or key that cannot be used. No message contains the key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read, or holds no PEM block of the expected kind.
    #[error("{}: cannot read a {what} from it: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The expected content.
        what: &'static str,
        /// The PEM error.
        source: rustls::pki_types::pem::Error,
    },
    /// The certificate and the key do not match, or their algorithm is not supported.
    #[error("cannot use the certificate {} with the key {}: {source}", cert.display(), key.display())]
    Pair {
        /// The certificate file.
        cert: PathBuf,
        /// The key file.
        key: PathBuf,
        /// The rustls error.
        source: rustls::Error,
    },
    /// The authority of client certificates cannot be used.
    #[error("{}: cannot verify client certificates with it: {why}", path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// The rustls error.
        why: String,
    },
}

/// Modification time and length of a file, to detect changes. `None` if it cannot be read.
pub(crate) type FileStamp = Option<(SystemTime, u64)>;

/// The files of a server.
#[derive(Clone, Debug)]
struct Files {
    cert: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
}

impl Files {
    fn stamps(&self) -> [FileStamp; 3] {
        [Some(&self.cert), Some(&self.key), self.client_ca.as_ref()].map(|path| file_stamp(path?))
    }
}

/// The last usable certificate and its key.
pub struct Tls {
    files: Files,
    current: RwLock<Arc<ServerConfig>>,
    stamps: Mutex<[FileStamp; 3]>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Tls {
    /// Loads a certificate chain and the private key of its first certificate, both PEM.
    ///
    /// # Errors
    /// When either file cannot be read, or they do not match.
    pub fn open(cert: &Path, key: &Path) -> Result<Tls, TlsError> {
        Tls::of(Files { cert: cert.to_owned(), key: key.to_owned(), client_ca: None })
    }

    /// Like [`Tls::open`]; clients may present a certificate that leads to an authority in this PEM file. The handshake
    /// of a client with another certificate fails.
    ///
    /// # Errors
    /// When a file cannot be read, or they do not match.
    pub fn open_with_clients(cert: &Path, key: &Path, client_ca: &Path) -> Result<Tls, TlsError> {
        Tls::of(Files { cert: cert.to_owned(), key: key.to_owned(), client_ca: Some(client_ca.to_owned()) })
    }

    fn of(files: Files) -> Result<Tls, TlsError> {
        let stamps = Mutex::new(files.stamps());
        let current = RwLock::new(Arc::new(load(&files)?));
        Ok(Tls { files, current, stamps })
    }

    /// Reloads the files. The current certificates stay in use if they are not usable.
    ///
    /// # Errors
    /// When a file cannot be read, or they do not match.
    pub fn reload(&self) -> Result<(), TlsError> {
        *self.stamps.lock().unwrap_or_else(PoisonError::into_inner) = self.files.stamps();
        let config = Arc::new(load(&self.files)?);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// Reloads the files if they have changed, and logs the result.
    pub(crate) fn refresh(&self) {
        if self.files.stamps() == *self.stamps.lock().unwrap_or_else(PoisonError::into_inner) {
            return;
        }
        match self.reload() {
            Ok(()) => tracing::info!(cert = %self.files.cert.display(), "certificate reloaded"),
            Err(error) => tracing::error!(%error, "cannot use the new certificate; keeping the current one"),
        }
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

pub(crate) fn file_stamp(path: &Path) -> FileStamp {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    read.map_err(|source| TlsError::File { path: path.to_owned(), what: "certificate", source })
}

fn load(files: &Files) -> Result<ServerConfig, TlsError> {
    let Files { cert, key, client_ca } = files;
    let chain = certificates(cert)?;
    let private = PrivateKeyDer::from_pem_file(key);
    let private = private.map_err(|source| TlsError::File { path: key.clone(), what: "private key", source })?;
    if let Some(warning) = exposure(key) {
        tracing::warn!("{warning}");
    }
    let pair = |source| TlsError::Pair { cert: cert.clone(), key: key.clone(), source };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
    let builder = builder.map_err(pair)?;
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => builder.with_client_cert_verifier(verifier(path, provider)?),
    };
    let mut config = builder.with_single_cert(chain, private).map_err(pair)?;
    config.alpn_protocols = PROTOCOLS.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(config)
}

/// Verifies the certificates of clients that present one. The others send a key.
fn verifier(path: &Path, provider: Arc<CryptoProvider>) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let unusable = |why: String| TlsError::Authority { path: path.to_owned(), why };
    let mut roots = RootCertStore::empty();
    for authority in certificates(path)? {
        roots.add(authority).map_err(|error| unusable(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(unusable("it has no certificate".into()));
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).allow_unauthenticated();
    verifier.build().map_err(|error| unusable(error.to_string()))
}
