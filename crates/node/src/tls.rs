//! Mutual TLS between nodes. Both ends present a certificate of the cluster's own authority.
//!
//! The certificate names the node that it is valid for: by a DNS name, which is the host of its address, or by its id in a
//! URI, `earmark://node/3`.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use earmark_admission::exposure;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use webpki::EndEntityCert;

use crate::net::{
    BoxFuture, ChannelListener, Connection, Listener, Net, PeerIdentity, Resolve, SystemResolver, host, normal_name,
};

/// Time limit of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Concurrent TLS handshakes. Beyond this the oldest is dropped, so that silent clients cannot lock nodes out.
const HANDSHAKES_MAX: usize = 64;
/// Prefix of the URI that names a node in a certificate.
const NODE_URI: &str = "earmark://node/";
/// How often the certificate files are checked for changes.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Why the certificates of a node cannot be used. Messages never contain key material.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum PeerTlsError {
    /// A file cannot be read or lacks its content.
    #[error("{}: no {what} found: {source}", path.display())]
    File { path: PathBuf, what: &'static str, source: rustls::pki_types::pem::Error },
    /// The files are readable but do not work together.
    #[error("the peer certificate, key or authority cannot be used: {0}")]
    Unusable(String),
}

/// Certificate files of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerFiles {
    /// Certificate chain. The first certificate must be valid for the address that peers use.
    pub cert: PathBuf,
    /// Private key of the first certificate.
    pub key: PathBuf,
    /// Authority that signs node certificates, and nothing else.
    pub ca: PathBuf,
}

struct Configs {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    identity: PeerIdentity,
}

type FileStamps = [Option<(SystemTime, u64)>; 3];

struct Shared {
    files: PeerFiles,
    current: RwLock<Configs>,
    stamps: Mutex<FileStamps>,
    resolver: Arc<dyn Resolve>,
}

/// TCP with mutual TLS. Changed certificate files are loaded again.
#[derive(Clone)]
pub struct TlsNet(Arc<Shared>);

impl fmt::Debug for TlsNet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TlsNet").field(&self.0.files).finish()
    }
}

impl TlsNet {
    /// Loads the files and watches them. Needs a tokio runtime.
    pub fn open(files: PeerFiles) -> Result<TlsNet, PeerTlsError> {
        TlsNet::with_resolver(files, Arc::new(SystemResolver))
    }

    /// Like [`open`](TlsNet::open), with another resolver.
    pub fn with_resolver(files: PeerFiles, resolver: Arc<dyn Resolve>) -> Result<TlsNet, PeerTlsError> {
        let stamps = Mutex::new(file_stamps(&files));
        let current = RwLock::new(load(&files)?);
        let shared = Arc::new(Shared { files, current, stamps, resolver });
        let watched = Arc::downgrade(&shared);
        earmark_admission::spawn(async move {
            loop {
                tokio::time::sleep(CHECK_INTERVAL).await;
                let Some(shared) = watched.upgrade() else { return };
                TlsNet(shared).refresh();
            }
        });
        Ok(TlsNet(shared))
    }

    /// Loads the files again. On failure the previous certificate stays in use.
    pub fn reload(&self) -> Result<(), PeerTlsError> {
        *self.0.stamps.lock().unwrap_or_else(PoisonError::into_inner) = file_stamps(&self.0.files);
        let configs = load(&self.0.files)?;
        if !names_same_node(&self.local_identity(), &configs.identity) {
            let message = "the new certificate does not name the same node as the one in use";
            return Err(PeerTlsError::Unusable(message.into()));
        }
        *self.0.current.write().unwrap_or_else(PoisonError::into_inner) = configs;
        Ok(())
    }

    fn refresh(&self) {
        if file_stamps(&self.0.files) == *self.0.stamps.lock().unwrap_or_else(PoisonError::into_inner) {
            return;
        }
        match self.reload() {
            Ok(()) => tracing::info!("peer certificate reloaded"),
            Err(error) => {
                tracing::error!(%error, "the new peer certificate cannot be used; the previous one stays in use");
            }
        }
    }

    fn connector(&self) -> TlsConnector {
        let current = self.0.current.read().unwrap_or_else(PoisonError::into_inner);
        TlsConnector::from(Arc::clone(&current.client))
    }

    fn acceptor(&self) -> TlsAcceptor {
        let current = self.0.current.read().unwrap_or_else(PoisonError::into_inner);
        TlsAcceptor::from(Arc::clone(&current.server))
    }
}

fn file_stamps(files: &PeerFiles) -> FileStamps {
    [&files.cert, &files.key, &files.ca].map(|path| {
        let metadata = std::fs::metadata(path).ok()?;
        Some((metadata.modified().ok()?, metadata.len()))
    })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, PeerTlsError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    read.map_err(|source| PeerTlsError::File { path: path.to_owned(), what: "certificate", source })
}

fn load(files: &PeerFiles) -> Result<Configs, PeerTlsError> {
    let unusable = |error: &dyn fmt::Display| PeerTlsError::Unusable(error.to_string());
    let chain = certificates(&files.cert)?;
    let key = PrivateKeyDer::from_pem_file(&files.key);
    let key = key.map_err(|source| PeerTlsError::File { path: files.key.clone(), what: "private key", source })?;
    if let Some(warning) = exposure(&files.key) {
        tracing::warn!("{warning}");
    }
    let mut roots = RootCertStore::empty();
    for authority in certificates(&files.ca)? {
        roots.add(authority).map_err(|error| unusable(&error))?;
    }
    if chain.is_empty() || roots.is_empty() {
        return Err(PeerTlsError::Unusable("a file has no certificate".into()));
    }
    let identity = identity(Some(&chain)).map_err(|error| unusable(&error))?;
    let roots = Arc::new(roots);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider));
    let verifier = verifier.build().map_err(|error| unusable(&error))?;
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(&error))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain.clone(), key.clone_key())
        .map_err(|error| unusable(&error))?;
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(&error))?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(|error| unusable(&error))?;
    Ok(Configs { client: Arc::new(client), server: Arc::new(server), identity })
}

/// Nodes that a certificate chain names.
fn identity(chain: Option<&[CertificateDer<'_>]>) -> Result<PeerIdentity, webpki::Error> {
    let Some(first) = chain.and_then(<[_]>::first) else {
        return Ok(PeerIdentity::Certificate { nodes: [].into(), names: [].into() });
    };
    let certificate = EndEntityCert::try_from(first)?;
    let uris = certificate.valid_uri_names().filter_map(|name| name.strip_prefix(NODE_URI));
    // A malformed node id matches no node.
    let nodes = uris.filter_map(|name| name.parse().ok()).collect();
    let names = certificate.valid_dns_names().filter(|name| !name.starts_with('*')).map(normal_name).collect();
    Ok(PeerIdentity::Certificate { nodes, names })
}

/// Whether a new certificate names the node of the one in use: the same ids, or without ids all its DNS names.
fn names_same_node(before: &PeerIdentity, after: &PeerIdentity) -> bool {
    match (before, after) {
        (
            PeerIdentity::Certificate { nodes, names },
            PeerIdentity::Certificate { nodes: new_nodes, names: new_names },
        ) => nodes == new_nodes && (!nodes.is_empty() || names.iter().all(|name| new_names.contains(name))),
        _ => false,
    }
}

impl Net for TlsNet {
    fn connect(&self, address: String) -> BoxFuture<io::Result<Connection>> {
        let (connector, resolver) = (self.connector(), Arc::clone(&self.0.resolver));
        Box::pin(async move {
            let name = ServerName::try_from(host(&address).to_owned()).map_err(io::Error::other)?;
            let addresses = resolver.resolve(address).await?;
            let stream = TcpStream::connect(&addresses[..]).await?;
            stream.set_nodelay(true)?;
            let stream = connector.connect(name, stream).await?;
            let identity = identity(stream.get_ref().1.peer_certificates()).map_err(io::Error::other)?;
            Ok(Connection::with(stream, identity))
        })
    }

    fn local_identity(&self) -> PeerIdentity {
        self.0.current.read().unwrap_or_else(PoisonError::into_inner).identity.clone()
    }

    fn listen(&self, address: String) -> BoxFuture<io::Result<Box<dyn Listener>>> {
        let net = self.clone();
        Box::pin(async move {
            let listener = TcpListener::bind(address).await?;
            let address = listener.local_addr()?.to_string();
            let (listening, ready) = ChannelListener::new(address);
            earmark_admission::spawn(accept(net, listener, ready));
            Ok(Box::new(listening) as Box<dyn Listener>)
        })
    }
}

/// Accepts connections. Each handshake runs in its own task, so a silent client blocks nobody.
async fn accept(net: TlsNet, listener: TcpListener, ready: mpsc::Sender<Connection>) {
    let mut handshakes: VecDeque<AbortHandle> = VecDeque::with_capacity(HANDSHAKES_MAX);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = ready.closed() => return,
        };
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!("accepting a peer connection failed: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        // A node completes its handshake quickly, so the oldest one belongs to a silent client.
        handshakes.retain(|handshake| !handshake.is_finished());
        if handshakes.len() >= HANDSHAKES_MAX
            && let Some(longest) = handshakes.pop_front()
        {
            longest.abort();
        }
        let (acceptor, ready) = (net.acceptor(), ready.clone());
        let handshake = earmark_admission::spawn(async move {
            let secured = async {
                stream.set_nodelay(true)?;
                let stream = acceptor.accept(stream).await?;
                let identity = identity(stream.get_ref().1.peer_certificates()).map_err(io::Error::other)?;
                Ok::<_, io::Error>(Connection::with(stream, identity))
            };
            match tokio::time::timeout(HANDSHAKE_TIMEOUT, secured).await {
                Ok(Ok(connection)) => _ = ready.send(connection).await,
                Ok(Err(error)) => tracing::warn!(%from, %error, "peer connection refused"),
                Err(_) => {
                    tracing::warn!(%from, "peer connection refused: the TLS handshake timed out")
                }
            }
        });
        handshakes.push_back(handshake.abort_handle());
    }
}
