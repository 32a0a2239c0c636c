use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use clap::{Arg, ArgAction};

use super::*;

/// Settings of a file, of variables such as `EARMARK_LISTEN=...`, and of a command line.
fn settings(file: &str, variables: &[(&str, &str)], line: &str) -> Result<Vec<String>, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("earmark.toml");
    std::fs::write(&path, file).unwrap();
    let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
    let mut variables: BTreeMap<String, String> =
        variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    variables.insert("EARMARK_CONFIG".to_owned(), path.display().to_string());
    let read = Settings::read(&command(), &words, &variables);
    let shown = |failure: Failure| failure.to_string().replace(&path.display().to_string(), "FILE");
    let words = read.map_err(shown)?.words().into_iter().map(|word| word.into_string().unwrap());
    Ok(words.filter(|word| !word.starts_with("--config=")).collect())
}

#[test]
fn a_flag_wins_over_a_variable_and_a_variable_over_the_file() {
    let file = "listen = '127.0.0.1:1'\nqueue_max = 1024\n";
    let variables = [("EARMARK_LISTEN", "127.0.0.1:2")];
    let words = |variables: &[(&str, &str)], line| settings(file, variables, line).unwrap();
    assert_eq!(words(&[], ""), ["--listen=127.0.0.1:1", "--queue-max=1024"]);
    assert_eq!(words(&variables, ""), ["--listen=127.0.0.1:2", "--queue-max=1024"]);
    for line in ["--listen 127.0.0.1:3", "--listen=127.0.0.1:3"] {
        assert_eq!(words(&variables, line), ["--queue-max=1024"]);
    }
    let empty = [("EARMARK_LISTEN", "")];
    assert_eq!(words(&empty, ""), ["--listen=127.0.0.1:1", "--queue-max=1024"], "an empty variable is unset");
}

#[test]
fn switches_and_lists_have_values_of_their_own() {
    let file = "in_memory = true\nattribute_claim = ['tenant=org', 'plan=plan']\nretention = 900\n";
    let all = ["--attribute-claim=tenant=org", "--attribute-claim=plan=plan", "--in-memory", "--retention=900"];
    assert_eq!(settings(file, &[], "").unwrap(), all);
    let variables = [("EARMARK_IN_MEMORY", "false"), ("EARMARK_ATTRIBUTE_CLAIM", "a=b,c=d")];
    let words = ["--attribute-claim=a=b", "--attribute-claim=c=d", "--retention=900"];
    assert_eq!(settings(file, &variables, "").unwrap(), words);
    assert_eq!(settings("in_memory = false\n", &[], "").unwrap(), Vec::<String>::new());
}

#[test]
fn a_higher_source_replaces_the_alternative_of_a_lower_one() {
    let file = "data = '/srv/earmark'\ncredits = 'sqlite:a.db'\n";
    assert_eq!(settings(file, &[], "--in-memory").unwrap(), ["--credits=sqlite:a.db"]);
    let variables = [("EARMARK_IN_MEMORY", "true"), ("EARMARK_CREDITS_URL_FILE", "url")];
    assert_eq!(settings(file, &variables, "").unwrap(), ["--credits-url-file=url", "--in-memory"]);
    // A switch that is off once hid the folder of the file, and the server began on an empty one.
    let off = [("EARMARK_IN_MEMORY", "false")];
    assert_eq!(settings(file, &off, "").unwrap(), ["--credits=sqlite:a.db", "--data=/srv/earmark"]);
    let url = [("EARMARK_CREDITS_URL", "sqlite:b.db")];
    assert_eq!(settings("", &url, "").unwrap(), ["--credits=sqlite:b.db"]);
    assert_eq!(settings("", &url, "--credits-url-file url").unwrap(), Vec::<String>::new());
    assert_eq!(settings("log_level = 'debug'\n", &[("RUST_LOG", "warn")], "").unwrap(), ["--log-level=warn"]);
}

#[test]
fn a_mistake_in_the_file_is_named_with_its_line() {
    for (file, message) in [
        ("\nlistn = 'a'\n", "FILE:2: listn: unknown field; fields are the flags"),
        ("config = 'a'\n", "FILE:1: config: unknown field"),
        ("queue-max = 1024\n", "FILE:1: queue-max: unknown field"),
        ("queue_max = 1\n", "FILE:1: queue_max: 1 is not in 256..=16777216"),
        ("\n\nin_memory = 'yes'\n", "FILE:3: in_memory: found \"yes\", allowed is true or false"),
        ("join = [1, [2]]\n", "FILE:1: join: found [1,[2]], allowed is a list of texts"),
        ("queue_max = true\n", "FILE:1: queue_max: found true, allowed is a text or a number"),
        ("queue_max = [1024]\n", "FILE:1: queue_max: found [1024], allowed is a text or a number"),
        ("[queue]\nmax = 1\n", "FILE:1: queue: unknown field"),
        ("[queue_max]\na = 1\n", "FILE:1: queue_max: found {\"a\":1}, allowed is a text or a number"),
        ("audience = ''\n", "FILE:1: audience: found \"\", allowed is a value"),
        ("listen = \n", "FILE:1: not valid TOML"),
        ("log_format = 'xml'\n", "FILE:1: log_format: found \"xml\", allowed are human, json"),
    ] {
        let error = settings(file, &[], "").unwrap_err();
        assert!(error.starts_with(message), "{file}: {error}");
    }
    let missing = Settings::of_file(&command(), Path::new("/no/such/file")).unwrap_err().to_string();
    assert!(missing.contains("/no/such/file"), "{missing}");
}

/// A wrong value for each flag that takes one of a fixed form, with the reason for its refusal.
const WRONG: &[(&str, &str, &str)] = &[
    ("listen", "localhost", "found \"localhost\", allowed is IP:PORT"),
    ("node-id", "0", "0 is not in 1.."),
    ("peer-listen", "7101", "found \"7101\", allowed is IP:PORT"),
    ("peer-advertise", "b:x", "found \"b:x\", allowed is HOST:PORT"),
    ("bootstrap", "b:x", "found \"b:x\", allowed is HOST:PORT"),
    ("join", "b:x", "found \"b:x\", allowed is HOST:PORT"),
    ("election-ms", "99", "99 is not in 100..=60000"),
    ("queue-max", "255", "255 is not in 256..=16777216"),
    ("retention", "0", "found \"0\", allowed are 1 s to 366 d"),
    ("leases-max", "0", "found \"0\", allowed are whole numbers from 1"),
    ("limits-max", "x", "found \"x\", allowed are whole numbers"),
    ("hint-concurrency-base-ms", "x", "found \"x\", allowed are whole numbers"),
    ("hint-concurrency-max-ms", "x", "found \"x\", allowed are whole numbers"),
    ("hint-rolling-base-ms", "x", "found \"x\", allowed are whole numbers"),
    ("hint-rolling-window-part", "x", "found \"x\", allowed are whole numbers"),
    ("hint-rolling-max-ms", "x", "found \"x\", allowed are whole numbers"),
    ("hint-jitter-percent", "101", "found \"101\", allowed are whole numbers from 0 to 100"),
    ("hint-decreasing-ms", "x", "found \"x\", allowed are whole numbers"),
    ("decisions-bytes", "1K", "found \"1K\", allowed are 0, and sizes from 1M"),
    ("decisions-days", "0", "0 is not in 1..=366"),
    ("key-requests-per-second", "x", "invalid digit found in string"),
    ("key-requests-at-once", "-1", "-1 is not in 0..=4294967295"),
    ("key-requests-waiting", "x", "invalid digit found in string"),
    ("attribute-claim", "tenant", "found no =, allowed is ATTRIBUTE=CLAIM"),
    ("client-certificate", "envoy", "found no =, allowed is NAME=KEY_ID"),
    ("issuer-max-age", "1y", "found \"1y\", allowed are 1 s to 366 d"),
    ("disk-reserve", "lots", "found \"lots\""),
    ("connections-max", "0", "0 is not in 1..=1000000"),
    ("connections-per-address", "0", "0 is not in 1..=1000000"),
    ("otlp-protocol", "smoke", "grpc, http/protobuf"),
    ("trace-sample", "2", "found \"2\", allowed are numbers from 0 to 1"),
    ("log-format", "xml", "human, json"),
    ("log-level", "loud", "found \"loud\", allowed are off"),
];

/// Flags whose value is a name or a path. `earmark config check` reads the paths.
const FREE: &[&str] = &[
    "audience",
    "bootstrap-key",
    "client-ca",
    "credits",
    "credits-url-file",
    "data",
    "gateway",
    "invitation-file",
    "issuer",
    "issuer-keys",
    "ledger",
    "limits",
    "namespace-claim",
    "otlp-endpoint",
    "peer-ca",
    "peer-cert",
    "peer-key",
    "role-claim",
    "tls-cert",
    "tls-key",
];

#[test]
fn every_flag_refuses_a_wrong_value_from_each_source_and_names_it() {
    let serve = command();
    for arg in settable(&serve) {
        let flag = arg.get_long().unwrap();
        let (wrong, message) = match WRONG.iter().find(|(of, ..)| *of == flag) {
            Some((_, wrong, message)) => (*wrong, *message),
            None if matches!(arg.get_action(), ArgAction::SetTrue) => ("maybe", "true"),
            None => {
                assert!(FREE.contains(&flag), "--{flag} needs a line in WRONG or in FREE");
                continue;
            }
        };
        let (field, variable) = (flag.replace('-', "_"), variable(flag));
        let in_file = settings(&format!("{field} = '{wrong}'\n"), &[], "").unwrap_err();
        assert!(in_file.starts_with(&format!("FILE:1: {field}: ")) && in_file.contains(message), "{in_file}");
        let in_variable = settings("", &[(&variable, wrong)], "").unwrap_err();
        assert!(in_variable.starts_with(&format!("{variable}: ")) && in_variable.contains(message), "{in_variable}");
        let on_line = command().try_get_matches_from(["serve", &format!("--{flag}={wrong}")]).unwrap_err().to_string();
        assert!(on_line.contains(&format!("--{flag}")), "{on_line}");
    }
    let known: Vec<&str> = settable(&serve).filter_map(Arg::get_long).collect();
    assert!(WRONG.iter().map(|(flag, ..)| flag).chain(FREE).all(|flag| known.contains(flag)));
}

#[test]
fn a_misspelt_variable_is_reported_and_another_programs_is_not() {
    let names = ["EARMARK_LISTN", "EARMARK_KEY", "EARMARK_SERVER", "EARMARK_LISTEN", "PATH"];
    let variables = names.map(|name| (name.to_owned(), "127.0.0.1:1".to_owned())).into();
    assert_eq!(Settings::read(&command(), &[], &variables).unwrap().unknown_variables, ["EARMARK_LISTN"]);
}

#[test]
fn the_note_names_the_settings_that_are_not_on_the_command_line() {
    let words = [OsString::from("--data"), OsString::from("d")];
    let variables = [("EARMARK_QUEUE_MAX".to_owned(), "1024".to_owned())].into();
    let note = Settings::read(&command(), &words, &variables).unwrap().note();
    assert_eq!(note.as_deref(), Some("not on the command line: --queue-max from the variable EARMARK_QUEUE_MAX"));
    assert_eq!(Settings::read(&command(), &words, &BTreeMap::new()).unwrap().note(), None);
}
