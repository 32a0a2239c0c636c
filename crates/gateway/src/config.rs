//! The configuration: where to listen, the upstreams, and the models that clients may ask for.
//!
//! [`Config::parse`] reads TOML and names each mistake with field and line. [`Config::open_secrets`] reads the keys of the
//! upstreams, from the environment or from files.

mod read;
mod secret;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use earmark_policy::{Mistake, Policy};
use hyper::Method;
use hyper::header::{HeaderName, HeaderValue};
use hyper::http::uri::{Authority, Scheme};

use crate::api::Api;
use crate::body::{CapField, ModelRules};
pub use secret::{Secret, SecretError, SecretSource};

/// The maximum length of a configuration in bytes.
pub const CONFIG_BYTES_MAX: usize = 1 << 20;
/// The maximum number of upstreams.
pub const UPSTREAMS_MAX: usize = 64;
/// The maximum number of models.
pub const MODELS_MAX: usize = 4_096;
/// The maximum number of routes.
pub const ROUTES_MAX: usize = 256;
/// The maximum number of targets of a model: the attempts that one call may make.
pub const TARGETS_MAX: usize = 8;

/// The configuration of a gateway.
#[derive(Clone, Debug)]
pub struct Config {
    /// The address for clients.
    pub listen: SocketAddr,
    /// The certificate chain and its key for TLS, two PEM files.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Allows to listen beyond loopback without TLS.
    pub insecure_plaintext: bool,
    /// The largest request body, in bytes.
    pub max_body_bytes: usize,
    /// The memory of all buffers together, in bytes. Beyond it requests get 503.
    pub max_buffered_bytes: usize,
    /// Concurrent calls. Beyond it requests get 503.
    pub max_calls: usize,
    /// Calls that wait for their settlement. Beyond it new calls get 503.
    pub max_settlements: usize,
    /// The time that a client has to send its body.
    pub body_timeout: Duration,
    /// The time between two renewals of a call that is still running.
    pub renew_interval: Duration,
    /// The time that calls in flight have to finish at shutdown.
    pub shutdown_timeout: Duration,
    /// The upstreams, in the order of the document.
    pub upstreams: Vec<Arc<Upstream>>,
    /// The models, by the name that clients ask for.
    pub models: BTreeMap<String, Arc<Model>>,
    /// The routes with a flat charge.
    pub routes: Vec<Arc<Route>>,
}

/// A provider, or a server with models.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// The name, which is the attribute `provider` of its calls.
    pub name: String,
    /// The API that it speaks.
    pub api: Api,
    /// The URL that the provider's SDK takes, without a slash at its end. `{model}` stands for the target's model.
    pub base_url: String,
    /// Where its key is. `None` for an upstream without keys.
    pub key: Option<SecretSource>,
    /// The header of the key. `authorization` has `Bearer` before the key.
    pub key_header: HeaderName,
    /// The query of every request, encoded: `api-version=2024-10-21`.
    pub query: Option<String>,
    /// Headers that every request gets.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The values of `anthropic-beta` that clients may send.
    pub anthropic_beta: Vec<String>,
    /// The output cap that it understands in chat completions.
    pub cap_field: CapField,
    /// Allows `http` to another machine.
    pub insecure_plaintext: bool,
    /// A PEM file with the root certificates to trust. `None` for those of the system.
    pub ca_file: Option<PathBuf>,
    /// The treatment of a call whose client disconnects before its answer is complete.
    pub disconnect: Disconnect,
    /// The longest time that an answer is read for a client that has gone.
    pub drain_timeout: Duration,
    /// Concurrent answers that are read for clients that have gone. Beyond it they are cancelled.
    pub drain_max: usize,
    /// The limits that its 429 pauses: a policy with one rule, which makes keys of attributes.
    pub pause: Option<Arc<Policy>>,
    /// The longest pause.
    pub pause_max: Duration,
    /// Whether an attempt with an unknown outcome may be repeated at the next target. Both may then be charged.
    pub retry_unknown: bool,
    /// The timeouts by phase.
    pub timeouts: Timeouts,
    /// Consecutive failures that open the circuit.
    pub circuit_failures: u32,
    /// How long an open circuit lets nothing through.
    pub circuit_pause: Duration,
}

/// The timeouts of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Until the connection is there, TLS included.
    pub connect: Duration,
    /// From the request to the head of the answer.
    pub first_byte: Duration,
    /// Between two pieces of the answer, and for the client to take one.
    pub idle: Duration,
    /// From the request to the end of the answer.
    pub total: Duration,
}

/// The treatment of a call whose client disconnects before its answer is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disconnect {
    /// The answer is read to its end, and the call settled exactly.
    Drain,
    /// The connection to the upstream is closed, and the bound charged.
    Cancel,
}

/// A model that clients may ask for.
#[derive(Clone, Debug)]
pub struct Model {
    /// The name, which is the attribute `alias` of its calls.
    pub name: String,
    /// The upstreams that have it, tried in order before the first byte.
    pub targets: Vec<Target>,
}

/// One upstream that has a model.
#[derive(Clone, Debug)]
pub struct Target {
    /// The upstream.
    pub upstream: Arc<Upstream>,
    /// The name of the model there, which is the attribute `model` of its calls.
    pub model: String,
    /// The upstream's `base_url` for this model.
    pub(crate) url: TargetUrl,
    /// The bounds of its calls.
    pub rules: ModelRules,
}

/// A URL in the parts that requests need.
#[derive(Clone, Debug)]
pub(crate) struct TargetUrl {
    pub(crate) scheme: Scheme,
    pub(crate) authority: Authority,
    /// The header `host`: the authority without the port that its scheme has anyway.
    pub(crate) host: HeaderValue,
    /// The path in front of that of an endpoint, without a slash at its end.
    pub(crate) path: String,
}

/// A further path of an upstream, with a flat charge.
#[derive(Clone, Debug)]
pub struct Route {
    /// The method of its requests.
    pub method: Method,
    /// The path at the gateway, which begins with `/v1/`.
    pub path: String,
    /// Its target. The path is the name, which is the attribute `alias` of its calls.
    pub model: Model,
    /// The input tokens that an answered request is charged.
    pub input_tokens: u32,
    /// The output tokens that an answered request is charged.
    pub output_tokens: u32,
}

impl Route {
    /// The API of its upstream.
    #[must_use]
    pub fn api(&self) -> Api {
        self.model.targets.first().map_or(Api::OpenAi, |target| target.upstream.api)
    }

    /// The path behind the upstream's `base_url`.
    #[must_use]
    pub fn upstream_path(&self) -> &str {
        match self.api() {
            Api::OpenAi => self.path.strip_prefix("/v1").unwrap_or(&self.path),
            Api::Anthropic => &self.path,
        }
    }
}

impl Config {
    /// The route of a request. The path must match to the byte.
    #[must_use]
    pub fn route(&self, method: &Method, path: &str) -> Option<&Arc<Route>> {
        self.routes.iter().find(|route| route.path == path && route.method == *method)
    }

    /// Reads a configuration.
    ///
    /// # Errors
    /// The first mistake, with field and line.
    pub fn parse(text: &str) -> Result<Config, Mistake> {
        read::config(text)
    }

    /// Reads the keys of the upstreams, by the name of the upstream.
    ///
    /// # Errors
    /// The first key that is missing or unusable.
    pub fn open_secrets(&self) -> Result<BTreeMap<String, Secret>, SecretError> {
        let with_key = self.upstreams.iter().filter_map(|upstream| Some((upstream, upstream.key.as_ref()?)));
        with_key.map(|(upstream, source)| Ok((upstream.name.clone(), source.open(&upstream.name)?))).collect()
    }
}
