//! Keys from the command line, and what must never be found of them.

use std::path::Path;

use crate::support::{Server, command, run};

/// The key in a greeting.
fn key(server: &Server) -> String {
    let line = server.greeting.lines().find_map(|line| line.strip_prefix("key:"));
    line.unwrap_or_else(|| panic!("no key in {}", server.greeting)).trim().to_owned()
}

fn by(server: &Server, key: &str, line: &str) -> crate::support::Ran {
    let words: Vec<&str> = line.split_whitespace().collect();
    let output = command(&words).env("EARMARK_SERVER", server.url()).env("EARMARK_KEY", key).output();
    crate::support::Ran::of(output.unwrap())
}

/// Whether a text stands in any file of a folder.
fn is_in(folder: &Path, text: &str) -> bool {
    std::fs::read_dir(folder).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        if path.is_dir() {
            return is_in(&path, text);
        }
        let bytes = std::fs::read(&path).unwrap_or_default();
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    })
}

#[test]
fn a_new_server_prints_its_first_key_once_and_asks_for_keys_from_then_on() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::on(&data, &["--bootstrap-key", "--log-level", "debug"]);
    let root = key(&server);
    let open = server.line("limits list").ends(1);
    assert!(open.stderr.contains("401 unauthenticated"), "{open:?}");
    by(&server, &root, "limits put --key a --kind rolling --capacity 9 --window 60").ends(0);

    let made = by(&server, &root, "key create --name gateway --role caller --json").ends(0).json();
    let (caller, id) = (made["key"].as_str().unwrap(), made["info"]["key_id"].as_str().unwrap());
    by(&server, caller, "reserve --key a=1").ends(0);
    let forbidden = by(&server, caller, "limits list").ends(1);
    assert!(forbidden.stderr.contains("403 forbidden"), "{forbidden:?}");
    let shown = by(&server, &root, "key create --name billing --role writer --client-id b").ends(0);
    assert!(shown.stdout.starts_with("emk_"), "{shown:?}");
    let listed = by(&server, &root, "key list").ends(0);
    for word in ["bootstrap", "gateway", "billing", "caller", "valid"] {
        assert!(listed.stdout.contains(word), "{listed:?}");
    }
    by(&server, &root, &format!("key revoke {id}")).ends(0);
    assert!(by(&server, caller, "reserve --key a=1").ends(1).stderr.contains("401 unauthenticated"));
    let last = by(&server, &root, &format!("key revoke {}", root.split('_').nth(1).unwrap())).ends(1);
    assert!(last.stderr.contains("the last key"), "{last:?}");

    // A snapshot is written too, so that the files have all there is.
    server.signal("TERM");
    let stopped = server.wait();
    let secrets = [root.as_str(), caller, shown.stdout.lines().next().unwrap()];
    for secret in secrets {
        let hidden = secret.split('_').nth(2).unwrap();
        assert!(!is_in(&data, hidden), "a secret is in the data folder");
        assert!(!stopped.stderr.contains(hidden), "a secret is in the log: {}", stopped.stderr);
        assert!(!listed.stdout.contains(hidden));
    }
    assert!(is_in(&data, id), "the ids of keys are there, so that the search finds what there is");

    let again =
        run(&["serve", "--data", data.to_str().unwrap(), "--listen", "127.0.0.1:0", "--bootstrap-key"]);
    assert_eq!(again.code, Some(2), "{again:?}");
    assert!(again.stderr.contains("there are keys already"), "{again:?}");
    let server = Server::on(&data, &[]);
    by(&server, &root, "limits list").ends(0);
    server.line("limits list").ends(1);
}

#[test]
fn a_key_comes_from_a_file_and_nonsense_is_refused_before_it_is_sent() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&["--bootstrap-key"]);
    let file = folder.path().join("key");
    std::fs::write(&file, key(&server) + "\n").unwrap();
    let list = |variable: &str, value: &str| {
        let mut list = command(&["limits", "list"]);
        let output = list.env("EARMARK_SERVER", server.url()).env(variable, value).output();
        crate::support::Ran::of(output.unwrap())
    };
    list("EARMARK_KEY_FILE", file.to_str().unwrap()).ends(0);
    assert!(list("EARMARK_KEY_FILE", "/no/such/file").ends(2).stderr.contains("cannot read /no/such/file"));
    let wrong = list("EARMARK_KEY", "two words").ends(2);
    assert!(!wrong.stderr.contains("two words"), "{wrong:?}");
}
