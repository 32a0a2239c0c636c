//! How a client is set up.

use std::sync::Arc;
use std::time::Duration;

use earmark_core::{NameError, NamespaceName};

use crate::address::{AddressError, ServerAddress};
use crate::backoff::BackoffOptions;
use crate::key::ApiKey;
use crate::surroundings::{Around, Surroundings};
#[cfg(feature = "tls")]
use crate::tls::Roots;

/// What is spoken with servers. Both are the same API.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// JSON over HTTP/1.1, on as many connections as requests are in flight.
    #[default]
    Http,
    /// gRPC, on one connection to each server.
    Grpc,
}

/// How a [`Client`](crate::Client) is set up.
///
/// ```
/// use earmark_client::{ClientOptions, Protocol};
///
/// let mut options = ClientOptions::of(&["http://127.0.0.1:7878", "http://127.0.0.1:7879"])?;
/// options.protocol = Protocol::Grpc;
/// # Ok::<(), earmark_client::OptionsError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The servers of one cluster, in the order in which they are tried. Any of them takes any request.
    pub servers: Vec<ServerAddress>,
    /// What is spoken with them.
    pub protocol: Protocol,
    /// Who is calling.
    pub key: Option<ApiKey>,
    /// Whether the key may be sent in clear to another machine, `http://` to what is not loopback: something in between
    /// encrypts, and nobody else can listen before it.
    pub is_plaintext_allowed: bool,
    /// Which certificates are trusted, of servers whose address begins with https.
    #[cfg(feature = "tls")]
    pub roots: Roots,
    /// Where limits and leases live. Over HTTP that is where the key belongs, or `default` without one, and nothing else
    /// can be asked for; over gRPC it must be where the key belongs.
    pub namespace: NamespaceName,
    /// How long one connection may take.
    pub connect_timeout: Duration,
    /// How long one attempt may take. More than the 5 s for which a node waits for a new leader, or every attempt
    /// during a fail-over would be in vain.
    pub attempt_timeout: Duration,
    /// How long to wait between attempts.
    pub backoff: BackoffOptions,
    /// The most connections to one server over HTTP.
    pub connections_max: usize,
    /// The most bytes of one answer. The default of 64 MiB holds a list of about 200,000 limits.
    pub answer_bytes_max: usize,
    /// Where wall time and randomness come from.
    pub(crate) around: Around,
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// Nobody to ask.
    #[error("servers: found none, allowed are 1 and more")]
    NoServers,
    /// An address is none.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A bug: the namespace that always exists has no name.
    #[error(transparent)]
    Namespace(#[from] NameError),
    /// Limits of other namespaces are reached over gRPC alone.
    #[error("namespace: found {found}, allowed over HTTP is default; use gRPC")]
    NamespaceOverHttp {
        /// The namespace.
        found: NamespaceName,
    },
    /// TLS is asked for, and this client was built without it.
    #[error("server: found {found}, but this client was built without the feature tls")]
    NoTls {
        /// The server.
        found: ServerAddress,
    },
    /// The key would go in clear to another machine.
    #[error(
        "server: found {found}, where the key could be read on the way; use https, or say that it may be \
         (is_plaintext_allowed) if something in between encrypts"
    )]
    Plaintext {
        /// The server.
        found: ServerAddress,
    },
    /// There is nowhere to work in the background.
    #[error("this needs a tokio runtime, and there is none here")]
    NoRuntime,
    /// There is nothing to tell a trusted server by.
    #[error("roots: {why}")]
    Roots {
        /// What is wrong.
        why: String,
    },
}

impl ClientOptions {
    /// The usual options for these servers.
    ///
    /// # Errors
    /// When an address is none.
    pub fn of(servers: &[impl AsRef<str>]) -> Result<ClientOptions, OptionsError> {
        let servers: Result<Vec<ServerAddress>, AddressError> =
            servers.iter().map(|text| text.as_ref().parse()).collect();
        Ok(ClientOptions {
            servers: servers?,
            protocol: Protocol::default(),
            key: None,
            is_plaintext_allowed: false,
            #[cfg(feature = "tls")]
            roots: Roots::default(),
            namespace: NamespaceName::new(NamespaceName::DEFAULT)?,
            connect_timeout: Duration::from_secs(2),
            attempt_timeout: Duration::from_secs(8),
            backoff: BackoffOptions::default(),
            connections_max: 256,
            answer_bytes_max: 64 << 20,
            around: Around::default(),
        })
    }

    /// The same with another source of wall time and randomness.
    #[must_use]
    pub fn surrounded_by(self, surroundings: Arc<dyn Surroundings>) -> ClientOptions {
        ClientOptions { around: Around::new(surroundings), ..self }
    }
}
