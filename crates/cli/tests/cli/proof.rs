//! `earmark audit export` and `earmark audit verify`.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use tempfile::TempDir;

use crate::support::{Server, run};

#[test]
fn an_export_is_verified_without_a_server_and_a_change_is_named() {
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("data");
    let server = Server::on(&data, &[]);
    server.issue_credit(700).ends(0);
    let file = folder.path().join("earmark.audit");
    let path = file.to_str().unwrap();
    let made = server.earmark(&["audit", "export", path, "--json"]).ends(0).json();
    assert_eq!((&made["assets"][0]["issued"], &made["assets"][0]["live"]), (&"700".into(), &"700".into()));
    for private in [&file, &data.join("signing-key")] {
        assert_eq!(fs::metadata(private).unwrap().permissions().mode() & 0o777, 0o600, "{private:?}");
    }
    let again = server.earmark(&["audit", "export", path]).ends(2);
    assert!(again.stderr.contains("the file exists"), "{again:?}");
    let key_file = folder.path().join("keys.json");
    let keys = key_file.to_str().unwrap();
    fs::write(&key_file, server.earmark(&["audit", "keys", "--json"]).ends(0).stdout).unwrap();
    let table = server.earmark(&["audit", "keys"]).ends(0);
    assert!(table.stdout.contains(made["public_key"].as_str().unwrap()), "{table:?}");
    drop(server);

    let shown = run(&["audit", "verify", path]).ends(0);
    assert!(shown.stdout.contains("is intact") && shown.stdout.contains("the file's own key"), "{shown:?}");
    let key = made["public_key"].as_str().unwrap();
    let head = format!("{}:{}", made["records"], made["head"].as_str().unwrap());
    let given = run(&["audit", "verify", path, "--public-key", key, "--head", &head, "--json"]).ends(0).json();
    assert_eq!((&given["valid"], &given["key_is_given"]), (&true.into(), &true.into()));
    let other = run(&["audit", "verify", path, "--public-key", &"0".repeat(64)]).ends(1);
    assert!(other.stderr.contains("which is not a given key"), "{other:?}");
    let both = run(&["audit", "verify", path, "--public-key", key, "--keys", keys]).ends(2);
    assert!(both.stderr.contains("--public-key"), "{both:?}");
    let listed = run(&["audit", "verify", path, "--keys", keys, "--json"]).ends(0).json();
    assert_eq!(listed["key_is_given"], true);
    let shown = run(&["audit", "verify", path, "--keys", keys]).ends(0);
    assert!(shown.stdout.contains("with a given key"), "{shown:?}");
    // The key of another node, as if that had been stolen.
    let text = fs::read_to_string(&key_file).unwrap();
    for (changed, wrong) in [
        (text.replace("\"node_id\":1", "\"node_id\":2"), "which is not a given key"),
        (text.replace(key, &"0".repeat(64)), "which is not a given key"),
        (text.replace(key, "0"), "public_key: found \"0\", a public key is 64 hexadecimal digits"),
        ("{}".to_owned(), "missing field `keys`"),
    ] {
        assert_ne!(changed, text);
        fs::write(&key_file, changed).unwrap();
        let refused = run(&["audit", "verify", path, "--keys", keys]);
        assert!(refused.stderr.contains(wrong), "{refused:?}");
    }

    let mut bytes = fs::read(&file).unwrap();
    // A byte of the first record, behind the header of 136 bytes.
    bytes[150] ^= 1;
    fs::write(&file, bytes).unwrap();
    let changed = run(&["audit", "verify", path]).ends(1);
    assert!(changed.stderr.contains("record 1 (log index"), "{changed:?}");
}

#[test]
fn credit_in_a_database_and_servers_in_memory_have_no_export() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("earmark.audit");
    let url = format!("sqlite:{}", folder.path().join("credit.db").display());
    let server = Server::on(&folder.path().join("data"), &["--credits", &url]);
    let refused = server.earmark(&["audit", "export", file.to_str().unwrap()]).ends(1);
    assert!(refused.stderr.contains("kept in a database (--credits)"), "{refused:?}");
    let server = Server::start(&[]);
    let refused = server.earmark(&["audit", "export", file.to_str().unwrap()]).ends(1);
    assert!(refused.stderr.contains("keeps no journal"), "{refused:?}");
    let refused = server.earmark(&["audit", "keys"]).ends(1);
    assert!(refused.stderr.contains("in memory"), "{refused:?}");
    assert_eq!(
        fs::read_dir(folder.path())
            .unwrap()
            .filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|end| end == "partial"))
            .count(),
        0
    );
}
