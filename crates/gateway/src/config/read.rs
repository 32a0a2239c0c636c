//! Reading a configuration from TOML.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use earmark_core::{NameRule, quoted};
use earmark_policy::fields::{Fields, Lines};
use earmark_policy::{Mistake, Policy};
use hyper::header::{AUTHORIZATION, HeaderName, HeaderValue};
use hyper::http::uri::Scheme;
use hyper::{Method, Uri};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio_rustls::rustls::pki_types::ServerName;
use toml::de::DeTable;

use super::{
    CONFIG_BYTES_MAX, Config, Disconnect, MODELS_MAX, Model, ROUTES_MAX, Route, SecretSource, TARGETS_MAX, Target,
    TargetUrl, Timeouts, UPSTREAMS_MAX, Upstream,
};
use crate::api::{Api, Endpoint};
use crate::body::fields::can_be_allowed;
use crate::body::{Allowance, CapField, INPUT_OVERHEAD_TOKENS, ModelRules};

/// The most seconds of any timeout: a day.
const SECONDS_MAX: u64 = 24 * 60 * 60;
/// The most tokens of any bound.
const TOKENS_MAX: u64 = u32::MAX as u64;
/// The most bytes of any buffer: 16 GiB.
const BYTES_MAX: u64 = 1 << 34;
/// The most calls, settlements or drains.
const COUNT_MAX: u64 = 1 << 20;
/// The maximum number of entries in one list of an upstream.
const ENTRIES_MAX: usize = 32;
/// The headers that a configuration cannot add: the gateway sets them.
const OWN_HEADERS: [&str; 7] =
    ["host", "content-length", "transfer-encoding", "connection", "accept-encoding", "content-encoding", "upgrade"];

const UPSTREAM_NAME: NameRule = NameRule {
    kind: "name",
    bytes_max: 64,
    alphabet: "letters, digits and ._@+-",
    allows: |_, character| character.is_ascii_alphanumeric() || "._@+-".contains(character),
};

pub(super) fn config(text: &str) -> Result<Config, Mistake> {
    if text.len() > CONFIG_BYTES_MAX {
        return Err(Mistake::new(1, "", format_args!("found {} bytes, allowed are {CONFIG_BYTES_MAX}", text.len())));
    }
    let lines = Lines::of(text);
    let table = DeTable::parse(text).map_err(|error| {
        let line = error.span().map_or(1, |span| lines.at(span.start));
        Mistake::new(line, "", format_args!("not valid TOML: {}", error.message().trim_end()))
    })?;
    let fields = Fields { lines: &lines, path: String::new(), line: 1, table: table.get_ref() };
    fields.allow(&[
        "listen",
        "tls_cert",
        "tls_key",
        "insecure_plaintext",
        "max_body_bytes",
        "max_buffered_bytes",
        "max_calls",
        "max_settlements",
        "body_timeout_seconds",
        "renew_seconds",
        "shutdown_seconds",
        "upstreams",
        "models",
        "routes",
    ])?;
    let upstreams = upstreams(&fields)?;
    let models = models(&fields, &upstreams)?;
    let routes = routes(&fields, &upstreams)?;
    let config = Config {
        listen: listen(&fields)?,
        tls: tls(&fields)?,
        insecure_plaintext: fields.boolean("insecure_plaintext")?.unwrap_or(false),
        max_body_bytes: size(&fields, "max_body_bytes", 32 << 20, BYTES_MAX)?,
        max_buffered_bytes: size(&fields, "max_buffered_bytes", 256 << 20, BYTES_MAX)?,
        max_calls: size(&fields, "max_calls", 10_000, COUNT_MAX)?,
        max_settlements: size(&fields, "max_settlements", 10_000, COUNT_MAX)?,
        body_timeout: seconds(&fields, "body_timeout_seconds", 60)?,
        renew_interval: seconds(&fields, "renew_seconds", 20)?,
        shutdown_timeout: seconds(&fields, "shutdown_seconds", 30)?,
        upstreams,
        models,
        routes,
    };
    if config.max_body_bytes > config.max_buffered_bytes {
        let what = format!("found {}, allowed is at least max_body_bytes", config.max_buffered_bytes);
        return Err(fields.wrong("max_buffered_bytes", what));
    }
    if !config.listen.ip().is_loopback() && config.tls.is_none() && !config.insecure_plaintext {
        let what = format!(
            "found {}, where keys would cross the network unencrypted; set tls_cert and tls_key, or insecure_plaintext = \
             true behind a proxy that terminates TLS",
            config.listen
        );
        return Err(fields.wrong("listen", what));
    }
    Ok(config)
}

fn listen(fields: &Fields<'_>) -> Result<SocketAddr, Mistake> {
    let Some(text) = fields.text("listen")? else { return Ok(SocketAddr::from(([127, 0, 0, 1], 8080))) };
    let what = || format!("found {}, allowed is IP:PORT, such as 127.0.0.1:8080", quoted(text));
    text.parse().map_err(|_| fields.wrong("listen", what()))
}

fn tls(fields: &Fields<'_>) -> Result<Option<(PathBuf, PathBuf)>, Mistake> {
    match (fields.text("tls_cert")?, fields.text("tls_key")?) {
        (None, None) => Ok(None),
        (Some(cert), Some(key)) => Ok(Some((cert.into(), key.into()))),
        (Some(_), None) => Err(fields.wrong("tls_key", "is required with tls_cert")),
        (None, Some(_)) => Err(fields.wrong("tls_cert", "is required with tls_key")),
    }
}

/// A whole number from 1 to `max`.
fn number(fields: &Fields<'_>, name: &str, default: u64, max: u64) -> Result<u64, Mistake> {
    match fields.integer(name, max)? {
        None => Ok(default),
        Some(0) => Err(fields.wrong(name, format_args!("found 0, allowed are whole numbers from 1 to {max}"))),
        Some(number) => Ok(number),
    }
}

fn size(fields: &Fields<'_>, name: &str, default: u64, max: u64) -> Result<usize, Mistake> {
    let number = number(fields, name, default, max)?;
    usize::try_from(number).map_err(|_| fields.wrong(name, "is too large for this machine"))
}

fn seconds(fields: &Fields<'_>, name: &str, default: u64) -> Result<Duration, Mistake> {
    number(fields, name, default, SECONDS_MAX).map(Duration::from_secs)
}

fn upstreams(fields: &Fields<'_>) -> Result<Vec<Arc<Upstream>>, Mistake> {
    let tables = fields.tables("upstreams", UPSTREAMS_MAX)?.unwrap_or_default();
    if tables.is_empty() {
        return Err(fields.wrong("upstreams", "is required: at least one [[upstreams]]"));
    }
    let mut upstreams: Vec<Arc<Upstream>> = Vec::with_capacity(tables.len());
    for table in &tables {
        let upstream = upstream(table)?;
        if upstreams.iter().any(|other| other.name == upstream.name) {
            return Err(table.wrong("name", format_args!("found {} twice, allowed is each name once", upstream.name)));
        }
        upstreams.push(Arc::new(upstream));
    }
    Ok(upstreams)
}

const UPSTREAM_FIELDS: [&str; 19] = [
    "name",
    "api",
    "base_url",
    "key_env",
    "key_file",
    "key_header",
    "query",
    "headers",
    "anthropic_beta",
    "cap_field",
    "insecure_plaintext",
    "ca_file",
    "disconnect",
    "drain_seconds",
    "drain_max",
    "pause",
    "pause_max_seconds",
    "retry_unknown",
    "timeouts",
];
const CIRCUIT_FIELDS: [&str; 2] = ["circuit_failures", "circuit_seconds"];

fn upstream(table: &Fields<'_>) -> Result<Upstream, Mistake> {
    table.allow(&[&UPSTREAM_FIELDS[..], &CIRCUIT_FIELDS[..]].concat())?;
    let name = table.required_text("name")?;
    UPSTREAM_NAME.check(name).map_err(|error| table.wrong("name", error))?;
    let api = match table.required_text("api")? {
        "openai" => Api::OpenAi,
        "anthropic" => Api::Anthropic,
        other => {
            let what = format!("found {}, allowed are \"openai\" and \"anthropic\"", quoted(other));
            return Err(table.wrong("api", what));
        }
    };
    let disconnect = match table.text("disconnect")? {
        None | Some("drain") => Disconnect::Drain,
        Some("cancel") => Disconnect::Cancel,
        Some(other) => {
            let what = format!("found {}, allowed are \"drain\" and \"cancel\"", quoted(other));
            return Err(table.wrong("disconnect", what));
        }
    };
    let insecure_plaintext = table.boolean("insecure_plaintext")?.unwrap_or(false);
    let (key, key_header, headers) = (key(table)?, key_header(table, api)?, headers(table)?);
    if key.is_some() && headers.iter().any(|(name, _)| *name == key_header) {
        return Err(table.wrong("headers", format_args!("found {key_header}, which has the key")));
    }
    Ok(Upstream {
        name: name.to_owned(),
        api,
        base_url: base_url(table, insecure_plaintext)?,
        key,
        key_header,
        query: query(table)?,
        headers,
        anthropic_beta: owned(table.texts("anthropic_beta", ENTRIES_MAX)?),
        cap_field: cap_field(table)?,
        insecure_plaintext,
        ca_file: table.text("ca_file")?.map(PathBuf::from),
        disconnect,
        drain_timeout: seconds(table, "drain_seconds", 120)?,
        drain_max: size(table, "drain_max", 256, COUNT_MAX)?,
        pause: pause(table)?,
        pause_max: seconds(table, "pause_max_seconds", 60)?,
        retry_unknown: table.boolean("retry_unknown")?.unwrap_or(false),
        timeouts: timeouts(table)?,
        circuit_failures: u32::try_from(number(table, "circuit_failures", 5, COUNT_MAX)?).unwrap_or(u32::MAX),
        circuit_pause: seconds(table, "circuit_seconds", 10)?,
    })
}

fn owned(texts: Option<Vec<&str>>) -> Vec<String> {
    texts.unwrap_or_default().into_iter().map(str::to_owned).collect()
}

/// The URL of a target's model: `{model}` becomes the model's name, percent-encoded.
fn url_of(base_url: &str, model: &str) -> String {
    base_url.replace("{model}", &utf8_percent_encode(model, NON_ALPHANUMERIC).to_string())
}

fn base_url(table: &Fields<'_>, insecure_plaintext: bool) -> Result<String, Mistake> {
    let text = table.required_text("base_url")?.trim_end_matches('/');
    let allowed = "allowed is http://HOST:PORT/PATH or https://HOST:PORT/PATH, without a user, a query or a fragment";
    let wrong = || table.wrong("base_url", format_args!("found {}, {allowed}", quoted(text)));
    let uri: Uri = url_of(text, "m").parse().map_err(|_| wrong())?;
    let authority = uri.authority().ok_or_else(wrong)?;
    if authority.as_str().contains('@') || uri.query().is_some() || text.contains('#') || text.contains("/../") {
        return Err(wrong());
    }
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    // A port out of range would be left out, and every call fails for a name that TLS cannot ask for.
    let has_port = authority.as_str().len() > authority.host().len();
    if has_port && authority.port_u16().is_none_or(|port| port == 0) || ServerName::try_from(host).is_err() {
        return Err(wrong());
    }
    let is_loopback = host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    match uri.scheme_str() {
        Some("https") => {}
        Some("http") if is_loopback || insecure_plaintext => {}
        Some("http") => {
            let what = "found http to another machine, where others could read keys and content; use https, or set \
                        insecure_plaintext = true if a tunnel encrypts the connection";
            return Err(table.wrong("base_url", what));
        }
        _ => return Err(wrong()),
    }
    Ok(text.to_owned())
}

fn key(table: &Fields<'_>) -> Result<Option<SecretSource>, Mistake> {
    match (table.text("key_env")?, table.text("key_file")?) {
        (None, None) => Ok(None),
        (Some(name), None) if !name.is_empty() => Ok(Some(SecretSource::Env(name.to_owned()))),
        (None, Some(path)) if !path.is_empty() => Ok(Some(SecretSource::File(path.into()))),
        (Some(_), Some(_)) => Err(table.wrong("key_file", "found key_env too, allowed is one of them")),
        (Some(_), None) => Err(table.wrong("key_env", "is empty; name an environment variable")),
        (None, Some(_)) => Err(table.wrong("key_file", "is empty; name a file")),
    }
}

fn key_header(table: &Fields<'_>, api: Api) -> Result<HeaderName, Mistake> {
    match table.text("key_header")? {
        None => Ok(match api {
            Api::OpenAi => AUTHORIZATION,
            Api::Anthropic => HeaderName::from_static("x-api-key"),
        }),
        Some(text) => header_name(table, "key_header", text),
    }
}

fn header_name(table: &Fields<'_>, field: &str, text: &str) -> Result<HeaderName, Mistake> {
    let name = text.parse::<HeaderName>();
    let name = name.map_err(|_| table.wrong(field, format_args!("found {}, which is no header", quoted(text))))?;
    match OWN_HEADERS.contains(&name.as_str()) {
        true => Err(table.wrong(field, format_args!("found {name}, which the gateway sets itself"))),
        false => Ok(name),
    }
}

/// The names and texts of a table.
fn pairs<'a>(table: &Fields<'a>, field: &str) -> Result<Vec<(&'a str, &'a str)>, Mistake> {
    let Some(entries) = table.table(field)? else { return Ok(Vec::new()) };
    if entries.table.len() > ENTRIES_MAX {
        let found = entries.table.len();
        return Err(table.wrong(field, format_args!("found {found}, allowed are {ENTRIES_MAX}")));
    }
    let names = entries.table.keys().map(|name| name.get_ref().as_ref());
    names.map(|name: &str| Ok((name, entries.required_text(name)?))).collect()
}

fn query(table: &Fields<'_>) -> Result<Option<String>, Mistake> {
    let encoded = |text: &str| utf8_percent_encode(text, QUERY).to_string();
    let pairs = pairs(table, "query")?;
    let parts: Vec<String> =
        pairs.into_iter().map(|(name, value)| format!("{}={}", encoded(name), encoded(value))).collect();
    Ok(Some(parts.join("&")).filter(|query| !query.is_empty()))
}

/// The bytes of a query's names and values that are encoded.
const QUERY: &percent_encoding::AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

fn headers(table: &Fields<'_>) -> Result<Vec<(HeaderName, HeaderValue)>, Mistake> {
    let header = |(name, value): (&str, &str)| {
        let wrong = |_| table.wrong("headers", format_args!("{name}: found {}, which is no header", quoted(value)));
        Ok((header_name(table, "headers", name)?, HeaderValue::from_str(value).map_err(wrong)?))
    };
    pairs(table, "headers")?.into_iter().map(header).collect()
}

fn cap_field(table: &Fields<'_>) -> Result<CapField, Mistake> {
    let text = table.text("cap_field")?;
    text.map(str::parse)
        .transpose()
        .map(Option::unwrap_or_default)
        .map_err(|what: String| table.wrong("cap_field", what))
}

/// The keys to pause, as a policy with one rule: it makes keys of attributes, and escapes them, like every other policy.
fn pause(table: &Fields<'_>) -> Result<Option<Arc<Policy>>, Mistake> {
    let keys = table.texts("pause", ENTRIES_MAX)?.unwrap_or_default();
    if keys.is_empty() {
        return Ok(None);
    }
    let limits: Vec<String> = keys
        .iter()
        .map(|key| format!("{{ key = {}, amount = \"requests\" }}", serde_json::Value::from(*key)))
        .collect();
    let document = format!("[[rules]]\nname = \"pause\"\nlimits = [ {} ]\n", limits.join(", "));
    let namespace = "default".parse().map_err(|error| table.wrong("pause", error))?;
    let policy = Policy::parse(&namespace, &document);
    policy.map(|policy| Some(Arc::new(policy))).map_err(|mistake| table.wrong("pause", mistake.what))
}

fn timeouts(table: &Fields<'_>) -> Result<Timeouts, Mistake> {
    const FIELDS: [(&str, u64); 4] =
        [("connect_seconds", 5), ("first_byte_seconds", 600), ("idle_seconds", 120), ("total_seconds", 3_600)];
    let own = table.table("timeouts")?;
    if let Some(own) = &own {
        own.allow(&FIELDS.map(|(name, _)| name))?;
    }
    let timeout = |(name, default): (&str, u64)| match &own {
        Some(own) => seconds(own, name, default),
        None => Ok(Duration::from_secs(default)),
    };
    let [connect, first_byte, idle, total] = FIELDS.map(timeout);
    Ok(Timeouts { connect: connect?, first_byte: first_byte?, idle: idle?, total: total? })
}

fn models(fields: &Fields<'_>, upstreams: &[Arc<Upstream>]) -> Result<BTreeMap<String, Arc<Model>>, Mistake> {
    let tables = fields.tables("models", MODELS_MAX)?.unwrap_or_default();
    if tables.is_empty() {
        return Err(fields.wrong("models", "is required: at least one [[models]]"));
    }
    let mut models = BTreeMap::new();
    for table in &tables {
        let model = model(table, upstreams)?;
        let name = model.name.clone();
        if models.insert(name.clone(), Arc::new(model)).is_some() {
            return Err(table.wrong("name", format_args!("found {} twice, allowed is each name once", quoted(&name))));
        }
    }
    Ok(models)
}

const ROUTE_FIELDS: [&str; 5] = ["path", "method", "target", "input_tokens", "output_tokens"];
/// The methods of routes.
const METHODS: [Method; 5] = [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];

fn routes(fields: &Fields<'_>, upstreams: &[Arc<Upstream>]) -> Result<Vec<Arc<Route>>, Mistake> {
    let mut routes: Vec<Arc<Route>> = Vec::new();
    for table in &fields.tables("routes", ROUTES_MAX)?.unwrap_or_default() {
        let route = route(table, upstreams)?;
        if routes.iter().any(|other| other.path == route.path && other.method == route.method) {
            let what = format!("found {} {} twice, allowed is each route once", route.method, route.path);
            return Err(table.wrong("path", what));
        }
        routes.push(Arc::new(route));
    }
    Ok(routes)
}

fn route(table: &Fields<'_>, upstreams: &[Arc<Upstream>]) -> Result<Route, Mistake> {
    table.allow(&ROUTE_FIELDS)?;
    let named = table.text("method")?.unwrap_or("POST");
    let method = METHODS.into_iter().find(|method| method == named).ok_or_else(|| {
        let what = format!("found {}, allowed are GET, POST, PUT, PATCH and DELETE", quoted(named));
        table.wrong("method", what)
    })?;
    let path = table.required_text("path")?;
    let is_plain = path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte));
    if !path.starts_with("/v1/") || !is_plain || path.contains("//") || path.contains("/.") || path.ends_with('/') {
        let what = format!("found {}, allowed is a path such as /v1/moderations, without a query", quoted(path));
        return Err(table.wrong("path", what));
    }
    attribute(table, "path", path)?;
    if Endpoint::of(method.as_str(), path).is_some() {
        return Err(table.wrong("path", format_args!("found {path}, which this gateway meters by its usage")));
    }
    let charge = |field| Ok(tokens(table, field)?.unwrap_or_default());
    let target = target(table, "target", table.required_text("target")?, upstreams, &ModelRules::default())?;
    let model = Model { name: path.to_owned(), targets: vec![target] };
    let (input_tokens, output_tokens) = (charge("input_tokens")?, charge("output_tokens")?);
    Ok(Route { method, path: path.to_owned(), model, input_tokens, output_tokens })
}

const MODEL_FIELDS: [&str; 8] = [
    "name",
    "targets",
    "max_input_tokens",
    "max_output_tokens",
    "max_media_tokens",
    "estimate",
    "input_overhead_tokens",
    "allow",
];

fn model(table: &Fields<'_>, upstreams: &[Arc<Upstream>]) -> Result<Model, Mistake> {
    table.allow(&MODEL_FIELDS)?;
    let name = table.required_text("name")?;
    attribute(table, "name", name)?;
    let rules = rules(table)?;
    let targets = table.texts("targets", TARGETS_MAX)?.unwrap_or_default();
    if targets.is_empty() {
        return Err(table.wrong("targets", "is required: at least one \"UPSTREAM/MODEL\""));
    }
    let targets = targets.into_iter().map(|text| target(table, "targets", text, upstreams, &rules));
    Ok(Model { name: name.to_owned(), targets: targets.collect::<Result<_, _>>()? })
}

fn rules(table: &Fields<'_>) -> Result<ModelRules, Mistake> {
    let estimate = table.text("estimate")?.map(str::parse).transpose();
    Ok(ModelRules {
        max_input_tokens: some_tokens(table, "max_input_tokens")?,
        max_output_tokens: some_tokens(table, "max_output_tokens")?,
        max_media_tokens: tokens(table, "max_media_tokens")?,
        input_overhead_tokens: tokens(table, "input_overhead_tokens")?.unwrap_or(INPUT_OVERHEAD_TOKENS),
        estimate: estimate.map_err(|what: String| table.wrong("estimate", what))?.unwrap_or_default(),
        cap_field: CapField::default(),
        allow: allowances(table)?,
    })
}

fn tokens(table: &Fields<'_>, field: &str) -> Result<Option<u32>, Mistake> {
    let tokens = table.integer(field, TOKENS_MAX)?;
    Ok(tokens.and_then(|tokens| u32::try_from(tokens).ok()))
}

/// A maximum that leaves room for a call.
fn some_tokens(table: &Fields<'_>, field: &str) -> Result<Option<u32>, Mistake> {
    match tokens(table, field)? {
        Some(0) => Err(table.wrong(field, "found 0, which no call fits; leave it out for no maximum")),
        tokens => Ok(tokens),
    }
}

/// Fields, tools and contents that a model allows by name, each with a bound and a fee.
fn allowances(table: &Fields<'_>) -> Result<BTreeMap<String, Allowance>, Mistake> {
    let Some(entries) = table.table("allow")? else { return Ok(BTreeMap::new()) };
    let names = entries.table.keys().map(|name| name.get_ref().as_ref());
    let allowance = |name: &str| {
        if !can_be_allowed(name) {
            return Err(table.wrong("allow", format_args!("found {}, which this gateway never refuses", quoted(name))));
        }
        let Some(entry) = entries.table(name)? else { return Err(entries.wrong(name, "is required")) };
        entry.allow(&["max_input_tokens", "max_output_tokens", "fee_output_tokens"])?;
        let required = |field| tokens(&entry, field)?.ok_or_else(|| entry.wrong(field, "is required: its bound"));
        let allowance = Allowance {
            max_input_tokens: required("max_input_tokens")?,
            max_output_tokens: required("max_output_tokens")?,
            fee_output_tokens: tokens(&entry, "fee_output_tokens")?.unwrap_or_default(),
        };
        Ok((name.to_owned(), allowance))
    };
    names.map(allowance).collect()
}

/// Refuses a text that cannot be an attribute's value.
fn attribute(table: &Fields<'_>, field: &str, value: &str) -> Result<(), Mistake> {
    let checked = earmark_policy::Attributes::new([("model", value)]);
    checked.map(drop).map_err(|error| table.wrong(field, error))
}

fn target(
    table: &Fields<'_>,
    field: &str,
    text: &str,
    upstreams: &[Arc<Upstream>],
    rules: &ModelRules,
) -> Result<Target, Mistake> {
    let wrong = |what: String| table.wrong(field, what);
    let (name, model) = text
        .split_once('/')
        .filter(|(_, model)| !model.is_empty())
        .ok_or_else(|| wrong(format!("found {}, allowed is \"UPSTREAM/MODEL\"", quoted(text))))?;
    attribute(table, field, model)?;
    let upstream = upstreams.iter().find(|upstream| upstream.name == name).ok_or_else(|| {
        let names: Vec<&str> = upstreams.iter().map(|upstream| upstream.name.as_str()).collect();
        wrong(format!("found the unknown upstream {}, allowed are {}", quoted(name), names.join(", ")))
    })?;
    let estimate = rules.estimate.for_model(model);
    let rules = ModelRules { cap_field: upstream.cap_field, estimate, ..rules.clone() };
    let url = target_url(&upstream.base_url, model).ok_or_else(|| {
        let url = url_of(&upstream.base_url, model);
        wrong(format!("found {}, which makes the URL {}, allowed is a URL", quoted(model), quoted(&url)))
    })?;
    Ok(Target { upstream: Arc::clone(upstream), model: model.to_owned(), url, rules })
}

/// The URL of a target in parts. `None` if its model cannot stand in it.
fn target_url(base_url: &str, model: &str) -> Option<TargetUrl> {
    let parts = url_of(base_url, model).parse::<Uri>().ok()?.into_parts();
    let (scheme, authority) = (parts.scheme?, parts.authority?);
    let port_of_scheme = if scheme == Scheme::HTTPS { 443 } else { 80 };
    let is_usual = authority.port_u16() == Some(port_of_scheme);
    let host = HeaderValue::from_str(if is_usual { authority.host() } else { authority.as_str() }).ok()?;
    let path = parts.path_and_query.map(|path| path.path().trim_end_matches('/').to_owned()).unwrap_or_default();
    Some(TargetUrl { scheme, authority, host, path })
}
