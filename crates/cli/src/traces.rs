//! Options of traces, and their exporter.

use clap::{Args, ValueEnum};
use earmark_trace::otlp::{Endpoint, Exporter, Options, Protocol};

use crate::failure::Failure;

/// The variable with headers for the collector: `name=value,name=value`.
const HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
/// The variable with the name of this service in traces.
const SERVICE: &str = "OTEL_SERVICE_NAME";

#[derive(Args, Debug)]
pub(crate) struct TraceArgs {
    /// Send traces to this OTLP collector, such as http://127.0.0.1:4317. Off by default. Headers for the collector come
    /// from the variable OTEL_EXPORTER_OTLP_HEADERS
    #[arg(long, value_name = "URL", env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
    otlp_endpoint: Option<String>,
    /// Protocol of the collector
    #[arg(long, value_enum, value_name = "PROTOCOL", env = "OTEL_EXPORTER_OTLP_PROTOCOL", default_value = "grpc")]
    otlp_protocol: OtlpProtocol,
    /// Share of requests to trace, 0 to 1. A request with the header traceparent is traced as that header says
    #[arg(long, value_name = "RATIO", env = "OTEL_TRACES_SAMPLER_ARG", default_value_t = 0.01, value_parser = ratio)]
    trace_sample: f64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OtlpProtocol {
    /// gRPC
    Grpc,
    /// HTTP with protobuf bodies
    #[value(name = "http/protobuf")]
    Http,
}

fn ratio(text: &str) -> Result<f64, String> {
    let found = text.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
    found.ok_or_else(|| format!("found {text:?}, allowed are numbers from 0 to 1"))
}

/// The exporter of this process, if traces are on.
pub(crate) struct Traces(Option<Exporter>);

impl TraceArgs {
    /// Turns tracing on, if there is a collector. `instance` tells processes of one service apart.
    pub(crate) fn start(&self, service: &str, instance: String) -> Result<Traces, Failure> {
        let Some(url) = self.otlp_endpoint.as_ref().filter(|url| !url.is_empty()) else { return Ok(Traces(None)) };
        let protocol = match self.otlp_protocol {
            OtlpProtocol::Grpc => Protocol::Grpc,
            OtlpProtocol::Http => Protocol::Http,
        };
        let endpoint = Endpoint::parse(url, protocol);
        let endpoint = endpoint.map_err(|error| Failure::Usage(format!("--otlp-endpoint: {error}")))?;
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let service = variable(SERVICE).unwrap_or_else(|| service.to_owned());
        let resource = vec![
            ("service.name", service),
            ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
            ("service.instance.id", instance),
        ];
        let headers = headers(&variable(HEADERS).unwrap_or_default()).map_err(Failure::Usage)?;
        let Some(queue) = earmark_trace::install(self.trace_sample) else { return Ok(Traces(None)) };
        let exporter = Exporter::start(queue, Options { endpoint, headers, resource });
        let exporter = exporter.map_err(|error| Failure::Usage(format!("--otlp-endpoint: {error}")))?;
        Ok(Traces(Some(exporter)))
    }
}

impl Traces {
    /// Sends the last spans.
    pub(crate) async fn shut_down(self) {
        if let Some(exporter) = self.0 {
            exporter.shut_down().await;
        }
    }
}

/// Reads `name=value,name=value`.
fn headers(text: &str) -> Result<Vec<(String, String)>, String> {
    let pairs = text.split(',').map(str::trim).filter(|pair| !pair.is_empty());
    let pair = |pair: &str| match pair.split_once('=') {
        Some((name, value)) => Ok((name.trim().to_owned(), value.trim().to_owned())),
        None => Err(format!("{HEADERS}: found an entry without =, allowed is name=value,name=value")),
    };
    pairs.map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_pairs_and_a_ratio_is_from_0_to_1() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(headers(" a = b=c ,d=e,"), Ok(vec![pair("a", "b=c"), pair("d", "e")]));
        assert_eq!(headers(""), Ok(Vec::new()));
        let refused = headers("secret").unwrap_err();
        assert!(!refused.contains("secret"), "{refused}");
        assert_eq!((ratio("0"), ratio("0.01"), ratio("1")), (Ok(0.0), Ok(0.01), Ok(1.0)));
        for wrong in ["-0.1", "1.1", "NaN", "1%", ""] {
            assert!(ratio(wrong).is_err(), "{wrong}");
        }
    }
}
