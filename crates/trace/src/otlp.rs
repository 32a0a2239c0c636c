//! Exports spans by OTLP, over gRPC or over HTTP with protobuf.
//!
//! One task takes finished spans from the queue in batches and sends each batch once. A batch that the collector does not
//! take is lost and counted: a slow or absent collector costs a bounded amount of memory and no request.

mod connect;
mod encode;
mod send;

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use crate::recorder::{EXPORTED, FAILED, SpanQueue};
use crate::span::SpanRecord;
use connect::Connector;
use encode::request;
use send::Sender;

/// Spans in one request.
const BATCH_MAX: usize = 512;
/// How long the first span of a batch waits for others.
const BATCH_DELAY: Duration = Duration::from_secs(1);
/// Timeout of one request.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of the last requests at the shutdown.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause between two log lines about a collector that does not take spans.
const WARN_PAUSE: Duration = Duration::from_secs(60);

/// The encoding of OTLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// gRPC, usually on port 4317.
    Grpc,
    /// HTTP with protobuf bodies, usually on port 4318.
    Http,
}

/// The collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    host: String,
    port: u16,
    is_tls: bool,
    /// The path over HTTP.
    path: String,
    protocol: Protocol,
}

/// Why an endpoint cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("found {found:?}; allowed are URLs such as http://127.0.0.1:4317 and https://collector:4318/v1/traces")]
pub struct EndpointError {
    found: String,
}

impl Endpoint {
    /// Reads a URL. Without a port it is the usual one of the protocol; without a path over HTTP it is `/v1/traces`.
    ///
    /// # Errors
    /// When it is no URL with `http` or `https` and a host, or has a user, a query or, with gRPC, a path.
    pub fn parse(url: &str, protocol: Protocol) -> Result<Endpoint, EndpointError> {
        let refused = || EndpointError { found: url.to_owned() };
        let uri: hyper::Uri = url.parse().map_err(|_| refused())?;
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(refused()),
        };
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@')).ok_or_else(refused)?;
        let base = uri.path().trim_end_matches('/');
        let path = match protocol {
            Protocol::Grpc if base.is_empty() => String::new(),
            Protocol::Grpc => return Err(refused()),
            Protocol::Http if base.ends_with("/v1/traces") => base.to_owned(),
            Protocol::Http => format!("{base}/v1/traces"),
        };
        if uri.query().is_some() || authority.host().is_empty() {
            return Err(refused());
        }
        let usual = if protocol == Protocol::Grpc { 4317 } else { 4318 };
        let port = authority.port_u16().unwrap_or(usual);
        Ok(Endpoint { host: authority.host().to_owned(), port, is_tls, path, protocol })
    }

    fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

/// Options of an exporter.
#[derive(Clone, Debug)]
pub struct Options {
    /// The collector.
    pub endpoint: Endpoint,
    /// Headers of each request, such as the credentials of a hosted collector.
    pub headers: Vec<(String, String)>,
    /// Attributes of the process, such as `service.name`.
    pub resource: Vec<(&'static str, String)>,
}

/// Why an exporter cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// No root certificate of the system can be used.
    #[error("cannot verify the certificate of the collector: {0}")]
    Roots(String),
    /// A header is malformed.
    #[error("header {name:?}: not a header of HTTP")]
    Header {
        /// Its name.
        name: String,
    },
}

/// A running exporter.
pub struct Exporter {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Exporter {
    /// Starts to export the spans of a queue. Connects with the first batch. Needs a tokio runtime.
    ///
    /// # Errors
    /// When a header is malformed or TLS has no root certificates.
    pub fn start(queue: SpanQueue, options: Options) -> Result<Exporter, StartError> {
        let sender = Sender::new(Connector::new(&options.endpoint)?, &options)?;
        let (stop, stopped) = oneshot::channel();
        let exporting = Exporting { queue, sender, resource: options.resource, warned: None };
        Ok(Exporter { stop, task: tokio::spawn(exporting.run(stopped)) })
    }

    /// Sends the spans that are queued, and stops.
    pub async fn shut_down(self) {
        _ = self.stop.send(());
        _ = timeout(FLUSH_TIMEOUT, self.task).await;
    }
}

struct Exporting {
    queue: SpanQueue,
    sender: Sender,
    resource: Vec<(&'static str, String)>,
    warned: Option<Instant>,
}

impl Exporting {
    async fn run(mut self, mut stopped: oneshot::Receiver<()>) {
        let mut is_stopped = false;
        while !is_stopped {
            let mut batch = Vec::new();
            tokio::select! {
                _ = &mut stopped => is_stopped = true,
                count = self.queue.recv_many(&mut batch, BATCH_MAX) => is_stopped = count == 0,
            }
            let full = Instant::now() + BATCH_DELAY;
            while !is_stopped && batch.len() < BATCH_MAX {
                let room = BATCH_MAX - batch.len();
                tokio::select! {
                    _ = &mut stopped => is_stopped = true,
                    more = timeout_at(full, self.queue.recv_many(&mut batch, room)) => {
                        if more.is_err() {
                            break;
                        }
                    }
                }
            }
            self.send(batch).await;
        }
        while let Some(batch) = self.queued() {
            self.send(batch).await;
        }
    }

    /// The next batch that is queued already.
    fn queued(&mut self) -> Option<Vec<SpanRecord>> {
        let batch: Vec<SpanRecord> = std::iter::from_fn(|| self.queue.try_recv().ok()).take(BATCH_MAX).collect();
        (!batch.is_empty()).then_some(batch)
    }

    async fn send(&mut self, batch: Vec<SpanRecord>) {
        if batch.is_empty() {
            return;
        }
        let count = batch.len() as u64;
        let request = request(&self.resource, batch);
        let sent = timeout(SEND_TIMEOUT, self.sender.send(request)).await;
        let error = match sent {
            Ok(Ok(())) => return metrics::counter!(EXPORTED).increment(count),
            Ok(Err(error)) => error,
            Err(_) => format!("no answer within {SEND_TIMEOUT:?}"),
        };
        metrics::counter!(FAILED).increment(count);
        if self.warned.is_none_or(|warned| warned.elapsed() >= WARN_PAUSE) {
            self.warned = Some(Instant::now());
            tracing::warn!(collector = self.sender.name(), %error, "cannot export spans; they are dropped");
        }
    }
}

#[cfg(test)]
mod tests;
