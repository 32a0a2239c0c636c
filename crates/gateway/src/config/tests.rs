use std::time::Duration;

use super::*;

const MINIMAL: &str = r#"
[[upstreams]]
name     = "openai"
api      = "openai"
base_url = "https://api.openai.com/v1/"

[[models]]
name    = "gpt-4o"
targets = ["openai/gpt-4o-2024-08-06"]
"#;

#[test]
fn a_minimal_configuration_has_every_default() {
    let config = Config::parse(MINIMAL).unwrap();
    assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
    assert_eq!((config.max_body_bytes, config.max_buffered_bytes), (32 << 20, 256 << 20));
    let upstream = &config.upstreams[0];
    assert_eq!(upstream.base_url, "https://api.openai.com/v1");
    assert_eq!(upstream.key_header, "authorization");
    assert_eq!((upstream.disconnect, upstream.drain_max), (Disconnect::Drain, 256));
    assert_eq!((upstream.drain_timeout, upstream.pause_max), (Duration::from_secs(120), Duration::from_secs(60)));
    assert!(!upstream.retry_unknown && upstream.pause.is_none() && upstream.key.is_none());
    let model = &config.models["gpt-4o"];
    assert_eq!(model.targets[0].model, "gpt-4o-2024-08-06");
    let rules = &model.targets[0].rules;
    assert_eq!((rules.input_overhead_tokens, rules.max_output_tokens, rules.max_media_tokens), (512, None, None));
}

#[test]
fn every_setting_is_read() {
    let config = Config::parse(
        r#"
listen = "0.0.0.0:443"
tls_cert = "a.pem"
tls_key = "b.pem"
max_body_bytes = 1000
[[upstreams]]
name = "azure"
api = "openai"
base_url = "https://x.openai.azure.com/openai/deployments/{model}"
key_file = "/run/secrets/azure"
key_header = "api-key"
query = { api-version = "2024-10-21" }
headers = { x-team = "a" }
cap_field = "max_tokens"
disconnect = "cancel"
drain_seconds = 3
drain_max = 4
pause = ["azure:{model}:rpm"]
pause_max_seconds = 5
retry_unknown = true
timeouts = { connect_seconds = 1, idle_seconds = 2 }
circuit_failures = 9
[[upstreams]]
name = "anthropic"
api = "anthropic"
base_url = "https://api.anthropic.com"
anthropic_beta = ["context-1m-2025-08-07"]
[[models]]
name = "gpt-4o"
targets = ["azure/gpt-4o", "azure/b/c"]
max_input_tokens = 128000
max_output_tokens = 16384
input_overhead_tokens = 0
estimate = "bytes"
max_media_tokens = 9
allow = { "tools.web_search" = { max_input_tokens = 20000, max_output_tokens = 0, fee_output_tokens = 5 } }
[[models]]
name = "claude"
targets = ["anthropic/claude"]
"#,
    )
    .unwrap();
    let azure = &config.upstreams[0];
    assert_eq!(azure.query.as_deref(), Some("api-version=2024-10-21"));
    assert_eq!((azure.key_header.as_str(), azure.headers[0].0.as_str()), ("api-key", "x-team"));
    assert_eq!(azure.cap_field, CapField::MaxTokens);
    assert_eq!((azure.disconnect, azure.retry_unknown), (Disconnect::Cancel, true));
    assert_eq!(azure.timeouts.first_byte, Duration::from_secs(600));
    assert_eq!(azure.timeouts.idle, Duration::from_secs(2));
    assert!(azure.pause.is_some());
    assert_eq!(config.upstreams[1].key_header, "x-api-key");
    let model = &config.models["gpt-4o"];
    let rules = &model.targets[0].rules;
    assert_eq!((rules.max_input_tokens, rules.max_output_tokens), (Some(128_000), Some(16_384)));
    assert_eq!((rules.max_media_tokens, rules.cap_field), (Some(9), CapField::MaxTokens));
    assert_eq!(rules.allow["tools.web_search"].max_input_tokens, 20_000);
    assert_eq!(model.targets[1].model, "b/c");
    let url = &model.targets[1].url;
    assert_eq!((url.authority.as_str(), url.path.as_str()), ("x.openai.azure.com", "/openai/deployments/b%2Fc"));
    let url = &config.models["claude"].targets[0].url;
    assert_eq!(
        (url.scheme.as_str(), url.host.as_bytes(), url.path.as_str()),
        ("https", b"api.anthropic.com".as_slice(), "")
    );
}

#[test]
fn each_mistake_is_named_with_field_and_line() {
    for (from, to, message) in [
        ("name     = \"openai\"", "nam = \"openai\"", "line 3: upstreams[0]: found the unknown field \"nam\""),
        ("api      = \"openai\"", "api = \"other\"", "line 4: upstreams[0].api: found \"other\", allowed are"),
        ("https://api", "ftp://api", "line 5: upstreams[0].base_url: found \"ftp://api.openai.com/v1\", allowed is"),
        ("https://api", "http://api", "line 5: upstreams[0].base_url: found http to another machine"),
        ("https://api", "https://user:pw@api", "line 5: upstreams[0].base_url: found"),
        ("api.openai.com", "api.openai.com:99999", "line 5: upstreams[0].base_url: found"),
        ("api.openai.com", "api.openai.com:0", "line 5: upstreams[0].base_url: found"),
        ("api.openai.com", "api..com", "line 5: upstreams[0].base_url: found"),
        (
            "api.openai.com",
            "{model}.openai.com",
            "line 9: models[0].targets: found \"gpt-4o-2024-08-06\", which makes the URL",
        ),
        ("openai/gpt-4o-2024-08-06", "gpt-4o", "line 9: models[0].targets: found \"gpt-4o\", allowed is"),
        ("openai/gpt-4o-2024-08-06", "azure/gpt-4o", "line 9: models[0].targets: found the unknown upstream \"azure\""),
        ("[[models]]", "pause = [\"a:{\"]\n[[models]]", "line 7: upstreams[0].pause: "),
        ("[[models]]", "estimate = 1\n[[models]]", "line 7: upstreams[0]: found the unknown field \"estimate\""),
        ("[[models]]", "key_env = \"A\"\nkey_file = \"B\"\n[[models]]", "line 8: upstreams[0].key_file: found key_env"),
        ("[[models]]", "drain_max = 0\n[[models]]", "line 7: upstreams[0].drain_max: found 0, allowed are whole"),
        ("[[models]]", "headers = { host = \"a\" }\n[[models]]", "line 7: upstreams[0].headers: found host, which"),
        (
            "[[models]]",
            "key_env = \"A\"\nheaders = { authorization = \"b\" }\n[[models]]",
            "line 8: upstreams[0].headers: found authorization, which has the key",
        ),
        (
            "targets =",
            "max_output_tokens = 0\ntargets =",
            "line 9: models[0].max_output_tokens: found 0, which no call",
        ),
        (
            "targets =",
            "allow = { tool = { max_input_tokens = 1, max_output_tokens = 1 } }\ntargets =",
            "line 9: models[0].allow: found \"tool\", which this gateway never refuses",
        ),
        ("targets =", "estimate = \"tokenizer\"\ntargets =", "line 9: models[0].estimate: found \"tokenizer\""),
        ("\n[[upstreams]]", "listen = \"0.0.0.0:1\"\n[[upstreams]]", "line 1: listen: found 0.0.0.0:1, where keys"),
        ("\n[[upstreams]]", "tls_key = \"a\"\n[[upstreams]]", "line 1: tls_cert: is required with tls_key"),
        ("[[models]]", "[[models]", "line 7: not valid TOML: "),
    ] {
        let text = MINIMAL.replacen(from, to, 1);
        assert_ne!(text, MINIMAL, "{from}");
        let mistake = Config::parse(&text).unwrap_err().to_string();
        assert!(mistake.starts_with(message), "{to}: {mistake}");
    }
    for (route, message) in [
        ("path = \"/v1/x\"", "line 10: routes[0].target: is required"),
        ("path = \"/v1/x?a=b\"\ntarget = \"openai/m\"", "line 11: routes[0].path: found \"/v1/x?a=b\", allowed is"),
        ("path = \"/v1/../x\"\ntarget = \"openai/m\"", "line 11: routes[0].path: found"),
        (
            "path = \"/v1/chat/completions\"\ntarget = \"openai/m\"",
            "line 11: routes[0].path: found /v1/chat/completions, which",
        ),
        ("path = \"/v1/x\"\nmethod = \"HEAD\"\ntarget = \"openai/m\"", "line 12: routes[0].method: found \"HEAD\""),
        ("path = \"/v1/x\"\ntarget = \"a/m\"", "line 12: routes[0].target: found the unknown upstream \"a\""),
        (
            "path = \"/v1/x\"\ntarget = \"openai/m\"\n[[routes]]\npath = \"/v1/x\"\ntarget = \"openai/m\"",
            "line 14: routes[1].path: found POST /v1/x twice",
        ),
    ] {
        let mistake = Config::parse(&format!("{MINIMAL}[[routes]]\n{route}\n")).unwrap_err().to_string();
        assert!(mistake.starts_with(message), "{route}: {mistake}");
    }
    assert!(Config::parse("").unwrap_err().to_string().contains("upstreams: is required"));
}

#[test]
fn a_secret_is_found_or_named_and_never_shown() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    let source = SecretSource::File(path.clone());
    let missing = source.open("openai").unwrap_err().to_string();
    assert!(missing.starts_with("upstream openai: key_file: cannot read "), "{missing}");
    std::fs::write(&path, " sk-secret\n").unwrap();
    let secret = source.open("openai").unwrap();
    assert_eq!(secret.header("Bearer ").unwrap(), "Bearer sk-secret");
    assert!(secret.is_in(b"your key sk-secret is wrong"));
    assert_eq!(format!("{secret:?} {:?}", secret.header("")), "Secret(..) Some(Sensitive)");
    for (content, what) in [("", "is empty"), (" \n", "is empty"), ("two words", "holds no key"), ("é", "holds no key")]
    {
        std::fs::write(&path, content).unwrap();
        let error = source.open("openai").unwrap_err().to_string();
        assert!(error.contains(what) && !error.contains("two words"), "{error}");
    }
    let unset = SecretSource::Env("EARMARK_TEST_UNSET_KEY".into()).open("openai").unwrap_err().to_string();
    assert!(unset.contains("the environment variable EARMARK_TEST_UNSET_KEY is not set"), "{unset}");
}
