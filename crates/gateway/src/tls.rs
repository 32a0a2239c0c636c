//! TLS for clients.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{Error, ServerConfig};

/// A certificate or key that cannot be used. No message contains the key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read, or holds no PEM block of the expected kind.
    #[error("{field}: cannot read {}: {source}", path.display())]
    File {
        /// The field of the configuration.
        field: &'static str,
        /// The file.
        path: PathBuf,
        /// The PEM error.
        source: pem::Error,
    },
    /// The certificate and the key do not match, or their algorithm is not supported.
    #[error("tls_cert: cannot use it with tls_key: {0}")]
    Pair(Error),
}

/// Accepts TLS with this certificate chain and its key, for HTTP/2 and HTTP/1.1.
pub(crate) fn acceptor(cert: &Path, key: &Path) -> Result<TlsAcceptor, TlsError> {
    let file = |field, path: &Path| {
        let path = path.to_owned();
        move |source| TlsError::File { field, path, source }
    };
    let chain = CertificateDer::pem_file_iter(cert).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.map_err(file("tls_cert", cert))?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(file("tls_key", key))?;
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().map_err(TlsError::Pair)?.with_no_client_auth();
    let mut config = builder.with_single_cert(chain, private).map_err(TlsError::Pair)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
