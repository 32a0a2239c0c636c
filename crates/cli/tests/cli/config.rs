//! `serve --config`, `EARMARK_*` and `earmark config check`.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::support::{Ran, Server, command, run, wait};

fn file(text: &str) -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("earmark.toml");
    fs::write(&path, text).unwrap();
    (folder, path)
}

#[test]
fn a_server_takes_its_settings_from_a_file_variables_and_flags() {
    let (folder, path) = file("in_memory = true\nlisten = '127.0.0.1:0'\ncredits = 'sqlite:unused.db'\n");
    let credits = format!("sqlite:{}", folder.path().join("credit.db").display());
    let mut serve = command(&["serve", "--config", path.to_str().unwrap()]);
    let server = Server::of(serve.env("EARMARK_CREDITS_URL", &credits).env("EARMARK_CONNECTIONS_MAXX", "1"));
    assert!(server.banner.contains("leases: in memory"), "{}", server.banner);
    assert!(server.banner.contains(&format!("credit: in {credits}")), "{}", server.banner);
    server.line("health").ends(0);
    server.signal("TERM");
    let ran = server.wait().ends(0);
    assert!(ran.stderr.contains("EARMARK_CONNECTIONS_MAXX: unknown variable"), "{ran:?}");
    let refused = command(&["serve", "--queue-max", "1024"]).env("EARMARK_IN_MEMORY", "maybe").output().unwrap();
    let refused = Ran::of(refused).ends(2);
    assert!(refused.stderr.contains("EARMARK_IN_MEMORY: found \"maybe\", allowed are true and false"), "{refused:?}");
    let refused = command(&["serve", "--in-memory"]).env("EARMARK_NODE_ID", "2").output().unwrap();
    let refused = Ran::of(refused).ends(2);
    assert!(refused.stderr.contains("--node-id from the variable EARMARK_NODE_ID"), "{refused:?}");
}

#[test]
fn a_hangup_reads_the_file_again_and_a_wrong_file_changes_nothing() {
    let (_folder, path) = file("in_memory = true\nlisten = '127.0.0.1:0'\nlog_level = 'warn'\n");
    let logs = |server: &Server| {
        // The level decides whether this line is written.
        server.signal("HUP");
        server.line("health").ends(0);
    };
    let server = Server::of(&mut command(&["serve", "--config", path.to_str().unwrap()]));
    fs::write(&path, "in_memory = true\nlog_level = 'loud'\n").unwrap();
    logs(&server);
    fs::write(&path, "in_memory = true\nlisten = '127.0.0.1:0'\nqueue_max = 1024\nlog_level = 'info'\n").unwrap();
    logs(&server);
    // Reloading is asynchronous: it is done once a further signal finds nothing wrong.
    wait("the server to answer", || server.line("health").code == Some(0));
    logs(&server);
    server.signal("TERM");
    let ran = server.wait().ends(0);
    assert!(ran.stderr.contains("reload failed") && ran.stderr.contains("earmark.toml:2: log_level"), "{ran:?}");
    assert!(
        ran.stderr.contains("this setting changes at the next start") && ran.stderr.contains("queue_max"),
        "{ran:?}"
    );
    assert!(ran.stderr.contains("finishing open requests"), "the level is info now: {ran:?}");
}

#[test]
fn config_check_reads_the_file_and_all_files_that_it_names() {
    let (folder, path) = file("in_memory = true\nqueue_max = 1024\n");
    let ok = run(&["config", "check", path.to_str().unwrap()]).ends(0);
    assert_eq!(ok.stdout, format!("{}: ok (2 settings)\n", path.display()));
    let missing = folder.path().join("missing").display().to_string();
    let at = |flag: &str| format!("{flag} = '{missing}'\n");
    for (text, message) in [
        ("listen = '0.0.0.0:7878'\nin_memory = true\n".to_owned(), "--bootstrap-key"),
        ("in_memory = true\ndata = 'd'\n".to_owned(), "cannot be used with"),
        ("tls_cert = 'a'\n".to_owned(), "--tls-key"),
        (at("limits"), "--limits: "),
        (at("gateway"), "missing: "),
        (at("credits_url_file"), "--credits-url-file: cannot read"),
        (format!("{}{}", at("tls_cert"), at("tls_key")), "--tls-cert: "),
        (format!("{}audience = 'a'\nissuer = 'b'\n", at("issuer_keys")), "--issuer-keys: "),
        (
            format!("{}{}{}peer_listen = '127.0.0.1:7101'\n", at("peer_cert"), at("peer_key"), at("peer_ca")),
            "--peer-cert: ",
        ),
        ("ledger = 'a'\n".to_owned(), "--ledger: "),
        ("credits = 'a'\n".to_owned(), "earmark.toml:1: credits: found \"a\", allowed are sqlite:PATH"),
        (format!("data = '{}'\n", path.display()), "--data: cannot use"),
    ] {
        fs::write(&path, &text).unwrap();
        let ran = run(&["config", "check", path.to_str().unwrap()]).ends(2);
        assert!(ran.stderr.contains(message), "{text}: {ran:?}");
    }
    fs::write(&path, [0xff, 0xfe]).unwrap();
    for (path, message) in [
        (path.to_str().unwrap(), "not text in UTF-8"),
        (missing.as_str(), "cannot read it: No such file"),
        (folder.path().to_str().unwrap(), "cannot read it: Is a directory"),
    ] {
        let ran = run(&["config", "check", path]).ends(2);
        assert!(ran.stderr.contains(&format!("{path}: {message}")), "{ran:?}");
    }
    assert!(fs::read_dir(folder.path()).unwrap().count() == 1, "checking writes nothing");
}
