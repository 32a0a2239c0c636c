//! TLS for clients: a certificate and its key, reloaded when their files change.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::SystemTime;

use earmark_admission::exposure;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
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
}

/// Modification time and length of a file, to detect changes. `None` if it cannot be read.
pub(crate) type FileStamp = Option<(SystemTime, u64)>;

/// The last usable certificate and its key.
pub struct Tls {
    cert: PathBuf,
    key: PathBuf,
    current: RwLock<Arc<ServerConfig>>,
    stamps: Mutex<[FileStamp; 2]>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("cert", &self.cert).field("key", &self.key).finish_non_exhaustive()
    }
}

impl Tls {
    /// Loads a certificate chain and the private key of its first certificate, both PEM.
    ///
    /// # Errors
    /// When either file cannot be read, or they do not match.
    pub fn open(cert: &Path, key: &Path) -> Result<Tls, TlsError> {
        let stamps = Mutex::new([file_stamp(cert), file_stamp(key)]);
        let current = RwLock::new(Arc::new(load(cert, key)?));
        Ok(Tls { cert: cert.to_owned(), key: key.to_owned(), current, stamps })
    }

    /// Reloads both files. The current certificate stays in use if they are not usable.
    ///
    /// # Errors
    /// When either file cannot be read, or they do not match.
    pub fn reload(&self) -> Result<(), TlsError> {
        *self.stamps.lock().unwrap_or_else(PoisonError::into_inner) = [file_stamp(&self.cert), file_stamp(&self.key)];
        let config = Arc::new(load(&self.cert, &self.key)?);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// Reloads the files if they have changed, and logs the result.
    pub(crate) fn refresh(&self) {
        let now = [file_stamp(&self.cert), file_stamp(&self.key)];
        if now == *self.stamps.lock().unwrap_or_else(PoisonError::into_inner) {
            return;
        }
        match self.reload() {
            Ok(()) => tracing::info!(cert = %self.cert.display(), "certificate reloaded"),
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

fn load(cert: &Path, key: &Path) -> Result<ServerConfig, TlsError> {
    let file = |path: &Path, what| {
        let path = path.to_owned();
        move |source| TlsError::File { path, what, source }
    };
    let chain: Result<Vec<CertificateDer<'static>>, _> =
        CertificateDer::pem_file_iter(cert).and_then(Iterator::collect);
    let chain = chain.map_err(file(cert, "certificate"))?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(file(key, "private key"))?;
    if let Some(warning) = exposure(key) {
        tracing::warn!("{warning}");
    }
    let pair = |source| TlsError::Pair { cert: cert.to_owned(), key: key.to_owned(), source };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(pair)?.with_no_client_auth();
    let mut config = builder.with_single_cert(chain, private).map_err(pair)?;
    config.alpn_protocols = PROTOCOLS.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(config)
}
