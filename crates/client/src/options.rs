//! The options of a client.

use std::sync::Arc;
use std::time::Duration;

use earmark_core::{NameError, NamespaceName};

use crate::address::{AddressError, ServerAddress};
use crate::backoff::BackoffOptions;
use crate::env::{Env, SharedEnv};
use crate::in_process::{InProcessServer, SharedServer};
use crate::key::ApiKey;
#[cfg(feature = "tls")]
use crate::tls::{ClientCertificate, Roots};

/// The protocol between client and servers. Both have the same API.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// JSON over HTTP/1.1, with one connection for every request in flight.
    #[default]
    Http,
    /// gRPC, with one connection to each server.
    Grpc,
}

/// The options of a [`Client`](crate::Client).
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
    /// The servers of one cluster, in the order in which they are tried. Every server takes every request.
    pub servers: Vec<ServerAddress>,
    /// The protocol.
    pub protocol: Protocol,
    /// The API key or session token.
    pub key: Option<ApiKey>,
    /// Whether the key may be sent over `http://` to another machine. Allow it only where a tunnel or a proxy encrypts the
    /// connection.
    pub is_plaintext_allowed: bool,
    /// The root certificates for servers with `https://`.
    #[cfg(feature = "tls")]
    pub roots: Roots,
    /// The certificate to present to servers with `https://`.
    #[cfg(feature = "tls")]
    pub certificate: Option<ClientCertificate>,
    /// The namespace of limits and leases. Over HTTP it is always that of the key, or `default` without a key. Over gRPC
    /// it must be that of the key.
    pub namespace: NamespaceName,
    /// The timeout for opening a connection.
    pub connect_timeout: Duration,
    /// The timeout of one attempt. It must exceed the 5 s for which a node waits for a new leader, else every attempt
    /// during a failover fails.
    pub attempt_timeout: Duration,
    /// The waits between attempts.
    pub backoff: BackoffOptions,
    /// The most connections to one server over HTTP.
    pub connections_max: usize,
    /// The most bytes of one answer. The default of 64 MiB holds a list of about 200,000 limits.
    pub answer_bytes_max: usize,
    /// The source of wall time and randomness.
    pub(crate) env: SharedEnv,
    /// A server in this process, which gets the requests instead of `servers`.
    pub(crate) in_process: Option<SharedServer>,
}

/// Why a client or a limiter could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// The list of servers is empty.
    #[error("servers: found none; name at least one")]
    NoServers,
    /// The address of a server is malformed.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A bug: `default` is not a valid namespace.
    #[error(transparent)]
    Namespace(#[from] NameError),
    /// HTTP has only the namespace of the key.
    #[error("namespace: found {found}, allowed over HTTP is default; use gRPC")]
    NamespaceOverHttp {
        /// The namespace.
        found: NamespaceName,
    },
    /// The client was built without TLS.
    #[error("server: {found} needs TLS; build the client with the feature tls")]
    NoTls {
        /// The server.
        found: ServerAddress,
    },
    /// The key would be sent unencrypted to another machine.
    #[error(
        "server: {found} is unencrypted and would expose the key; use https://, or set is_plaintext_allowed if a \
         tunnel encrypts the connection"
    )]
    Plaintext {
        /// The server.
        found: ServerAddress,
    },
    /// The call was made outside of a tokio runtime, which background tasks need.
    #[error("no tokio runtime; call this inside of one")]
    NoRuntime,
    /// The client certificate or its key cannot be used.
    #[error("certificate: {why}")]
    Certificate {
        /// The reason.
        why: String,
    },
    /// The root certificates cannot be used.
    #[error("roots: {why}")]
    Roots {
        /// The reason.
        why: String,
    },
}

impl ClientOptions {
    /// The default options for these servers.
    ///
    /// # Errors
    /// When an address is malformed.
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
            #[cfg(feature = "tls")]
            certificate: None,
            namespace: NamespaceName::new(NamespaceName::DEFAULT)?,
            connect_timeout: Duration::from_secs(2),
            attempt_timeout: Duration::from_secs(8),
            backoff: BackoffOptions::default(),
            connections_max: 256,
            answer_bytes_max: 64 << 20,
            env: SharedEnv::default(),
            in_process: None,
        })
    }

    /// The default options for a server in this process, over HTTP without a connection.
    ///
    /// # Errors
    /// Never, as long as `default` is a valid namespace.
    pub fn in_process(server: Arc<dyn InProcessServer>) -> Result<ClientOptions, OptionsError> {
        let options = ClientOptions::of(&["http://localhost"])?;
        Ok(ClientOptions { in_process: Some(SharedServer(server)), ..options })
    }

    /// The same options with another source of wall time and randomness.
    #[must_use]
    pub fn with_env(self, env: Arc<dyn Env>) -> ClientOptions {
        ClientOptions { env: SharedEnv::new(env), ..self }
    }
}
