//! TLS and the root certificates that it trusts.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::options::{OptionsError, Protocol};

/// The root certificates that a server's certificate must lead to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Roots {
    /// The root certificates of the operating system.
    #[default]
    System,
    /// The certificates of a PEM file, and no others.
    PemFile(PathBuf),
}

impl Roots {
    fn load(&self) -> Result<RootCertStore, OptionsError> {
        let refuse = |why: String| OptionsError::Roots { why };
        let found = match self {
            Roots::System => {
                let loaded = rustls_native_certs::load_native_certs();
                if loaded.certs.is_empty() {
                    let why = loaded.errors.first().map(|error| format!(": {error}")).unwrap_or_default();
                    return Err(refuse(format!("this system has no root certificates{why}; name a PEM file")));
                }
                loaded.certs
            }
            Roots::PemFile(path) => pem(path).map_err(refuse)?,
        };
        let mut roots = RootCertStore::empty();
        // Systems carry certificates that cannot be parsed any more; one that can is enough.
        roots.add_parsable_certificates(found);
        if roots.is_empty() {
            return Err(refuse(match self {
                Roots::System => "no root certificate of this system can be parsed; name a PEM file".into(),
                Roots::PemFile(path) => format!("{} has no certificate", path.display()),
            }));
        }
        Ok(roots)
    }
}

/// A certificate that tells a server who the client is, in place of a key. A key that is set too decides alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// A PEM file with the certificate chain.
    pub cert: PathBuf,
    /// A PEM file with the private key of the first certificate.
    pub key: PathBuf,
}

impl ClientCertificate {
    fn load(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), String> {
        let key = PrivateKeyDer::from_pem_file(&self.key);
        let key = key.map_err(|error| format!("cannot read a private key from {}: {error}", self.key.display()))?;
        Ok((pem(&self.cert)?, key))
    }
}

fn pem(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    certificates.map_err(|error| format!("cannot read {}: {error}", path.display()))
}

/// Starts TLS on a TCP connection.
#[derive(Clone)]
pub(crate) struct Tls(TlsConnector);

impl Tls {
    pub(crate) fn new(
        roots: &Roots,
        certificate: Option<&ClientCertificate>,
        protocol: Protocol,
    ) -> Result<Tls, OptionsError> {
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| OptionsError::Roots { why: error.to_string() })?;
        let config = config.with_root_certificates(roots.load()?);
        let refuse = |why: String| OptionsError::Certificate { why };
        let mut config = match certificate {
            None => config.with_no_client_auth(),
            Some(certificate) => {
                let (chain, key) = certificate.load().map_err(refuse)?;
                let unfit = |error| refuse(format!("cannot use {}: {error}", certificate.cert.display()));
                config.with_client_auth_cert(chain, key).map_err(unfit)?
            }
        };
        config.alpn_protocols = match protocol {
            Protocol::Http => vec![b"http/1.1".to_vec()],
            Protocol::Grpc => vec![b"h2".to_vec()],
        };
        Ok(Tls(TlsConnector::from(Arc::new(config))))
    }

    pub(crate) async fn wrap(&self, host: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        self.0.connect(name, stream).await
    }
}
