//! TLS towards a server: which authority a command trusts.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::failure::Failure;

const CA_FILE: &str = "EARMARK_CA_FILE";

/// Speaks TLS on a connection to a host, whose certificate must be one of the authority that the environment names.
pub(crate) async fn shake_hands(host: &str, tcp: TcpStream) -> Result<TlsStream<TcpStream>, Failure> {
    let wrong = |what: String| Failure::Usage(format!("{CA_FILE}: {what}"));
    let missing = || {
        wrong(
            "https:// needs the certificate of the server's authority, PEM, in the file that it names".into(),
        )
    };
    let path = std::env::var_os(CA_FILE).filter(|path| !path.is_empty()).ok_or_else(missing)?;
    let path = Path::new(&path);
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let mut roots = RootCertStore::empty();
    for authority in read.map_err(|error| wrong(format!("cannot read {}: {error}", path.display())))? {
        roots.add(authority).map_err(|error| wrong(error.to_string()))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| wrong(error.to_string()))?;
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from(host.to_owned()).map_err(|error| wrong(error.to_string()))?;
    let shaken = TlsConnector::from(Arc::new(config)).connect(name, tcp).await;
    shaken.map_err(|error| Failure::NoAnswer { url: format!("https://{host}"), what: error.to_string() })
}
