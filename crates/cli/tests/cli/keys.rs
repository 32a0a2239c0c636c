//! API keys by the command line, and that secrets never leak.

use std::path::Path;

use crate::ask::{ask_by, free};
use crate::support::{Server, TIMEOUT, command, run, wait};

/// The key in the banner.
pub(crate) fn key(server: &Server) -> String {
    let line = server.banner.lines().find_map(|line| line.strip_prefix("key:"));
    line.unwrap_or_else(|| panic!("no key in {}", server.banner)).trim().to_owned()
}

pub(crate) fn by(server: &Server, key: &str, line: &str) -> crate::support::Ran {
    let words: Vec<&str> = line.split_whitespace().collect();
    let output = command(&words).env("EARMARK_SERVER", server.url()).env("EARMARK_KEY", key).output();
    crate::support::Ran::of(output.unwrap())
}

/// Whether any file of a folder contains `text`.
pub(crate) fn is_in(folder: &Path, text: &str) -> bool {
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
fn a_new_server_prints_its_first_key_once_and_requires_keys_from_then_on() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::on(&data, &["--bootstrap-key", "--log-level", "trace,openraft=trace"]);
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
    // A leaked key is found as a whole; only its id is sent.
    let revoked = by(&server, &root, &format!("key revoke {caller}")).ends(0);
    assert!(revoked.stdout.contains(id) && !revoked.stdout.contains(caller), "{revoked:?}");
    by(&server, &root, &format!("key revoke {id}")).ends(0);
    assert!(by(&server, caller, "reserve --key a=1").ends(1).stderr.contains("401 unauthenticated"));
    let last = by(&server, &root, &format!("key revoke {}", root.split('_').nth(1).unwrap())).ends(1);
    assert!(last.stderr.contains("the last admin key"), "{last:?}");

    // A backup writes a snapshot, so the files contain the whole state.
    by(&server, &root, "cluster backup all").ends(0);
    assert!(is_in(&data.join("backups"), id), "the backup has the keys");
    server.signal("TERM");
    let stopped = server.wait();
    let secrets = [root.as_str(), caller, shown.stdout.lines().next().unwrap()];
    for secret in secrets {
        let hidden = secret.split('_').nth(2).unwrap();
        assert!(!is_in(&data, hidden), "a secret is in the data folder");
        assert!(!stopped.stderr.contains(hidden), "a secret is in the log: {}", stopped.stderr);
        assert!(!listed.stdout.contains(hidden));
    }
    assert!(is_in(&data, id), "the search must find the ids of keys");

    // With keys the flag does nothing, so that a service may be started with it every time.
    let file = folder.path().join("key");
    for words in [&["--bootstrap-key"][..], &["--bootstrap-key", file.to_str().unwrap()]] {
        let server = Server::on(&data, words);
        assert!(!server.banner.contains("key:"), "{}", server.banner);
        assert!(!file.exists());
        by(&server, &root, "limits list").ends(0);
        server.kill();
    }
    let server = Server::on(&data, &[]);
    by(&server, &root, "limits list").ends(0);
    server.line("limits list").ends(1);
}

#[test]
fn the_first_key_goes_to_a_file_that_only_its_owner_can_read() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let (data, file) = (folder.path().join("data"), folder.path().join("key"));
    let words = ["--bootstrap-key", file.to_str().unwrap(), "--log-level", "trace"];
    let server = Server::on(&data, &words);
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let text = std::fs::read_to_string(&file).unwrap();
    let root = text.trim().to_owned();
    by(&server, &root, "key create --name app --role caller").ends(0);
    assert!(server.banner.contains(&format!("key:    in {}, role admin\n", file.display())), "{}", server.banner);
    server.signal("TERM");
    let stopped = server.wait();
    let secret = root.split('_').nth(2).unwrap();
    assert!(!stopped.stdout.contains(secret) && !stopped.stderr.contains(secret) && !is_in(&data, secret));
    // The next start keeps file and key.
    let server = Server::on(&data, &words);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    by(&server, &root, "limits list").ends(0);
    // A start that was interrupted before the key was made uses the key of the file.
    let server = Server::on(&folder.path().join("other"), &words);
    by(&server, &root, "limits list").ends(0);
    std::fs::write(&file, "notes\n").unwrap();
    let other = folder.path().join("third");
    let start = ["serve", "--listen", "127.0.0.1:0", "--data", other.to_str().unwrap()];
    let refused = run(&[&start[..], &words[..2]].concat()).ends(2);
    assert!(refused.stderr.contains("exists and holds no key; name another file"), "{refused:?}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "notes\n");
}

#[test]
fn a_key_with_labels_is_listed_with_them_and_knows_itself() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::on(&folder.path().join("data"), &["--bootstrap-key"]);
    let root = key(&server);
    let line = "key create --name app --role caller --label tenant=acme --label plan=pro --may-set user --json";
    let made = by(&server, &root, line).ends(0).json();
    assert_eq!(made["info"]["labels"], serde_json::json!({"plan": "pro", "tenant": "acme"}));
    let listed = by(&server, &root, "key list").ends(0).stdout;
    let row = listed.lines().find(|line| line.contains(" app ")).unwrap();
    assert!(row.contains("plan=pro tenant=acme") && row.contains(" user "), "{listed}");
    let all = by(&server, &root, "key list --json").ends(0).json();
    assert_eq!(all["keys"][1]["may_set"], serde_json::json!(["user"]));
    let app = made["key"].as_str().unwrap();
    let who = by(&server, app, "whoami").ends(0).stdout;
    assert!(who.contains("caller") && who.contains("plan=pro tenant=acme") && who.contains("user"), "{who}");
    let who = by(&server, app, "whoami --json").ends(0).json();
    assert_eq!((&who["namespace"], &who["role"]), (&"default".into(), &"caller".into()));
    assert_eq!(who["labels"], made["info"]["labels"]);
    assert_eq!(by(&server, &root, "whoami --json").ends(0).json()["labels"], serde_json::json!({}));
    let client = by(&server, &root, "key create --name laptop --role client --json").ends(0).json();
    let refused = by(&server, client["key"].as_str().unwrap(), "whoami").ends(1);
    assert!(refused.stderr.contains("has role client, which calls through a gateway only"), "{refused:?}");
}

/// TLS private keys of clients and nodes must not leak, also when a reload fails.
#[test]
fn private_keys_are_in_no_log_and_in_no_data_folder() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let mut params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    params.subject_alt_names.push(rcgen::SanType::URI("earmark://node/1".try_into().unwrap()));
    let signing_key = rcgen::KeyPair::generate().unwrap();
    let pair = rcgen::CertifiedKey { cert: params.self_signed(&signing_key).unwrap(), signing_key };
    let pem = pair.signing_key.serialize_pem();
    let [cert, private] = ["cert.pem", "key.pem"].map(|name| folder.path().join(name));
    std::fs::write(&cert, pair.cert.pem()).unwrap();
    std::fs::write(&private, &pem).unwrap();
    let [cert, private] = [&cert, &private].map(|path| path.to_str().unwrap());
    let peers = free();
    let tls = ["--tls-cert", cert, "--tls-key", private, "--peer-listen", &peers, "--bootstrap", &peers];
    let nodes = ["--peer-cert", cert, "--peer-key", private, "--peer-ca", cert];
    let more = ["--bootstrap-key", "--log-level", "trace,openraft=trace"];
    let server = Server::on(&data, &[&tls[..], &nodes[..], &more[..]].concat());
    let root = key(&server);
    let list = || {
        let mut list = command(&["limits", "list"]);
        let list = list.env("EARMARK_SERVER", server.url()).env("EARMARK_KEY", &root);
        crate::support::Ran::of(list.env("EARMARK_CA_FILE", cert).output().unwrap())
    };
    let listed = list().ends(0);
    // Half of a key, a key in place of a certificate, and an empty key.
    for (path, text) in
        [(private, &pem[..pem.len() / 2]), (cert, pem.as_str()), (private, "-----BEGIN PRIVATE KEY-----")]
    {
        std::fs::write(path, text).unwrap();
        server.signal("HUP");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    std::fs::write(cert, pair.cert.pem()).unwrap();
    list().ends(0);
    server.signal("TERM");
    let stopped = server.wait();
    assert!(stopped.stderr.contains("SIGHUP: reload failed"), "the files were not reloaded");
    let secrets = pem.lines().filter(|line| !line.starts_with("-----"));
    for secret in secrets.chain([root.split('_').nth(2).unwrap()]) {
        assert!(!stopped.stderr.contains(secret), "a secret is in the log");
        assert!(!stopped.stdout.contains(secret) && !listed.stderr.contains(secret));
        assert!(!is_in(&data, secret), "a secret is in the data folder");
    }
}

#[test]
fn a_command_trusts_the_roots_of_the_system_unless_the_environment_names_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let pair = |name: &str| {
        let pair = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let [cert, key] = ["cert", "key"].map(|part| folder.path().join(format!("{name}-{part}.pem")));
        std::fs::write(&cert, pair.cert.pem()).unwrap();
        std::fs::write(&key, pair.signing_key.serialize_pem()).unwrap();
        [cert, key].map(|path| path.to_str().unwrap().to_owned())
    };
    let ([cert, private], [other, _]) = (pair("server"), pair("other"));
    let server = Server::start(&["--tls-cert", &cert, "--tls-key", &private]);
    // SSL_CERT_FILE stands for the root certificates of the system.
    let list = |system: &str, file: &str| {
        let mut list = command(&["limits", "list", "--server", &server.url()]);
        let list = list.env("SSL_CERT_FILE", system).env("EARMARK_CA_FILE", file);
        crate::support::Ran::of(list.output().unwrap())
    };
    list(&cert, "").ends(0);
    list(&other, &cert).ends(0);
    list(&cert, &other).ends(1);
    let refused = list(&other, "").ends(1);
    assert!(refused.stderr.contains("EARMARK_CA_FILE names a PEM file"), "{refused:?}");
}

/// An unauthenticated peer can do everything, so keys need authenticated peers or an explicit flag.
#[test]
fn a_server_with_keys_needs_peer_certificates_or_insecure_peers() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let peers = free();
    let open = Server::on(&folder.path().join("open"), &["--peer-listen", &peers, "--bootstrap", &peers]);
    let refused = open.line("key create --name root --role admin").ends(1);
    assert!(refused.stderr.contains("--peer-cert"), "{refused:?}");
    open.line("limits list").ends(0);
    open.kill();

    let founder = ["--peer-listen", &peers, "--bootstrap", &peers, "--insecure-peers", "--bootstrap-key"];
    let server = Server::on(&data, &founder);
    let root = key(&server);
    by(&server, &root, "key create --name gateway --role caller").ends(0);
    server.kill();
    let words = ["serve", "--listen", "127.0.0.1:0", "--peer-listen", &peers, "--data"];
    let again = run(&[&words[..], &[data.to_str().unwrap()]].concat());
    assert_eq!(again.code, Some(2), "{again:?}");
    assert!(again.stderr.contains("this server has keys, but any process"), "{again:?}");
    let server = Server::on(&data, &["--peer-listen", &peers, "--insecure-peers"]);
    by(&server, &root, "limits list").ends(0);
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

/// A URL with `http` in place of `https` would expose the key on the network.
#[test]
fn a_key_is_not_sent_in_clear_to_another_machine_unless_that_is_said() {
    let server = Server::start(&["--bootstrap-key"]);
    let root = key(&server);
    let at = |url: &str, line: &str, key: Option<&str>| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut command = command(&words);
        key.map(|key| command.env("EARMARK_KEY", key));
        crate::support::Ran::of(command.env("EARMARK_SERVER", url).output().unwrap())
    };
    // No server listens at this address, and no request is sent.
    for line in [
        "limits put --key a --kind rolling --capacity 9 --window 60",
        "limits get a",
        "limits list",
        "limits delete a",
        "reserve --key a=1",
        "complete --lease 01ARZ3NDEKTSV4RRFFQ69G5FAV",
        "write --client a --sequence 1",
        "balance --account a",
        "audit",
        "audit --changes",
        "cluster status",
        "cluster add --node-id 2 --address 127.0.0.1:7102",
        "cluster remove --node-id 2",
        "cluster backup",
        "key create --name a --role reader",
        "key list",
        "whoami",
        "key revoke abc",
        "bench --http http://192.0.2.1:1 --seconds 1",
    ] {
        let refused = at("http://192.0.2.1:1", line, Some(&root)).ends(2);
        assert!(refused.stderr.contains("--insecure-plaintext"), "{line}: {refused:?}");
        assert!(!refused.stderr.contains(&root), "{line}");
    }
    // 0.0.0.0 is not a loopback address, but reaches this machine.
    let url = server.url().replace("127.0.0.1", "0.0.0.0");
    at(&url, "limits list", Some(&root)).ends(2);
    at(&url, "limits list --insecure-plaintext", Some(&root)).ends(0);
    let keyless = at(&url, "limits list", None).ends(1);
    assert!(keyless.stderr.contains("401 unauthenticated"), "{keyless:?}");
}

/// Creates an admin key of a namespace.
fn admin(server: &Server, root: &str, namespace: &str) -> String {
    let line = format!("key create --name ops --role admin --namespace {namespace} --json");
    by(server, root, &line).ends(0).json()["key"].as_str().unwrap().to_owned()
}

fn id(key: &str) -> &str {
    key.split('_').nth(1).unwrap()
}

/// Two namespaces use the same names for everything. Neither sees or changes data of the other, and each history names
/// its own actors.
pub(crate) fn namespaces_are_apart(server: &Server) {
    let root = key(server);
    let [ours, theirs] = ["ours", "theirs"].map(|name| (name, admin(server, &root, name)));
    let ops = |credit: u32| {
        let open = r#"{"open_account":{"account":"acme","overdraft":"deny"}}"#;
        let issue = format!(r#"{{"issue":{{"account":"acme","asset":"usd","amount":"{credit}"}}}}"#);
        format!("--client billing --sequence 1 --vault main --op {open} --op {issue} --json")
    };
    let vault = r#"--client ops --sequence 1 --op {"open_vault":{"vault":"main"}}"#;
    for ((name, key), capacity) in [(&ours, 3), (&theirs, 2)] {
        by(server, key, &format!("write --namespace {name} {vault}")).ends(0);
        let written = by(server, key, &format!("write --namespace {name} {}", ops(capacity))).ends(0).json();
        assert!(written.to_string().contains(&format!(r#""actor":"client:{}""#, id(key))), "{written}");
        let slots = format!("limits put --key slots --kind concurrency --capacity {capacity} --timeout 3600");
        by(server, key, &slots).ends(0);
        by(server, key, "limits put --key usd --kind credit --account acme --asset usd --timeout 600").ends(0);
    }
    // A repeated write returns the actor of the first one.
    let other = admin(server, &root, "ours");
    let again = by(server, &other, &format!("write --namespace ours {}", ops(3))).ends(0).json();
    assert!(again.to_string().contains(&format!("client:{}", id(&ours.1))), "{again}");
    assert!(!again.to_string().contains(id(&other)), "{again}");

    // The same lease id in both: the second reserve would be refused if the namespaces shared leases.
    let lease = ulid::Ulid::generate().to_string();
    let asks = |key: &str, amount: u32| {
        by(server, key, &format!("reserve --lease {lease} --key slots={amount} --key usd={amount}"))
    };
    asks(&ours.1, 3).ends(0);
    asks(&theirs.1, 2).ends(0);
    let seen = |key: &str| {
        let reserved = by(server, key, "limits get slots --json").ends(0).json()["usage"]["reserved"].clone();
        let held = by(server, key, "balance --account acme --json").ends(0).json()["balances"][0]["held"].clone();
        (reserved.as_u64().unwrap(), held.as_str().unwrap().to_owned())
    };
    assert_eq!((seen(&ours.1), seen(&theirs.1)), ((3, "3".into()), (2, "2".into())));
    by(server, &theirs.1, &format!("complete --lease {lease} --actual usd=0")).ends(0);
    assert_eq!((seen(&ours.1), seen(&theirs.1)), ((3, "3".into()), (0, "0".into())));
    let refused = by(server, &theirs.1, &format!("write --namespace ours {}", ops(9))).ends(1);
    assert!(refused.stderr.contains("403 forbidden"), "{refused:?}");

    reads_are_apart(server, [(ours.0, &ours.1, 3), (theirs.0, &theirs.1, 2)], &lease);
    let changes = |key: &str| by(server, key, "audit --changes").ends(0).stdout;
    assert!(!changes(&ours.1).contains("theirs"), "{}", changes(&ours.1));
    for what in ["put_limit slots", "open_vault main", "create_key", &format!("client:{}", id(&ours.1))] {
        assert!(changes(&ours.1).contains(what), "{what}: {}", changes(&ours.1));
    }
    assert!(changes(&root).contains("theirs"), "{}", changes(&root));
}

/// Status and body of a GET request with a key.
fn read(server: &Server, key: &str, path: &str) -> (u16, serde_json::Value) {
    let answered = ask_by(Some(key), &server.address, ("GET", path, ""), TIMEOUT).unwrap();
    (answered.status, serde_json::from_str(&answered.body).unwrap())
}

/// Two admins read accounts, clients, vaults and a lease of the same names, and each sees only its own.
fn reads_are_apart(server: &Server, callers: [(&str, &str, u32); 2], lease: &str) {
    let entries = "/v1/vaults/main/accounts/acme/entries";
    // A vault, an account and a client that exist in one namespace only.
    let [(ours, our_key, _), (theirs, their_key, _)] = callers;
    let write = |line: &str| by(server, their_key, &format!("write --namespace {theirs} {line}")).ends(0);
    write(r#"--client ops --sequence 2 --op {"open_vault":{"vault":"eu"}}"#);
    write(r#"--client late --sequence 1 --vault eu --op {"open_account":{"account":"hers","overdraft":"deny"}}"#);
    for path in ["/v1/vaults/eu/accounts/hers/balances", "/v1/vaults/eu/accounts/hers/entries", "/v1/vaults/eu/audit"] {
        assert_eq!(read(server, their_key, path).0, 200, "{path}");
        assert_eq!(read(server, our_key, path).0, 404, "{path}");
    }
    for (name, key, credit) in callers {
        let (status, page) = read(server, key, entries);
        let told = page["entries"].as_array().unwrap();
        assert_eq!((status, told[0]["changes"][0]["amount"].as_str()), (200, Some(&*credit.to_string())));
        for entry in told {
            assert_eq!(entry["actor"], format!("client:{}", id(key)), "{name}: {entry}");
        }
        let kinds: Vec<&str> = told.iter().map(|entry| entry["kind"].as_str().unwrap()).collect();
        let of_ours = ["transaction", "hold"];
        assert_eq!(kinds, if name == ours { of_ours.as_slice() } else { &["transaction", "hold", "release"] });
        let (_, audit) = read(server, key, "/v1/vaults/main/audit");
        assert_eq!(audit["assets"][0]["issued"], credit.to_string(), "{audit}");
        let (_, leased) = read(server, key, &format!("/v1/leases/{lease}"));
        assert_eq!(leased["lease"]["state"], if name == ours { "live" } else { "completed" }, "{leased}");
    }
    for (name, other) in [(ours, their_key), (theirs, our_key)] {
        for client in ["billing", "late"] {
            let (status, _) = read(server, other, &format!("/v1/clients/{client}?namespace={name}&vault=main"));
            assert_eq!(status, 403, "{client} of {name}");
        }
    }
    let (_, state) = read(server, our_key, &format!("/v1/clients/late?namespace={ours}&vault=main"));
    assert_eq!(state["last_committed_sequence"], 0, "{state}");
    // A database lists a committed change with a short delay.
    let changes = |key: &str| by(server, key, "audit --changes").ends(0).stdout;
    wait("the last change", || changes(their_key).contains("open_account hers"));
    for (key, own, other) in [(our_key, "issue 3 usd", "issue 2 usd"), (their_key, "issue 2 usd", "issue 3 usd")] {
        let changes = changes(key);
        assert!(changes.contains(own) && !changes.contains(other), "{changes}");
    }
    assert!(!changes(our_key).contains("hers"), "{}", changes(our_key));
}

/// The first key that writes with a client id owns it, until it is revoked.
fn client_ids_have_owners(server: &Server) {
    let root = key(server);
    let writer = |more: &str| {
        let made = by(server, &root, &format!("key create --name writer --role writer --json{more}")).ends(0).json();
        made["key"].as_str().unwrap().to_owned()
    };
    let (first, second, bound) = (writer(""), writer(""), writer(" --client-id billing"));
    let write = |key: &str, sequence: u32| {
        by(server, key, &format!("write --client billing --vault main --sequence {sequence}"))
    };
    write(&first, 1).ends(0);
    for sequence in [1, 2] {
        let refused = write(&second, sequence).ends(1);
        assert!(refused.stderr.contains("(INVALID): client_id: billing belongs to another key"), "{refused:?}");
    }
    write(&root, 2).ends(0);
    by(server, &root, &format!("key revoke {first}")).ends(0);
    write(&second, 3).ends(0);
    write(&bound, 4).ends(0);
    write(&second, 5).ends(1);
}

#[test]
fn a_client_id_belongs_to_its_first_writer_in_the_book_and_in_a_database() {
    client_ids_have_owners(&Server::start(&["--bootstrap-key"]));
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("credits.db").display());
    client_ids_have_owners(&Server::start(&["--bootstrap-key", "--credits", &url]));
}

#[test]
fn namespaces_are_apart_on_a_node() {
    let folder = tempfile::tempdir().unwrap();
    namespaces_are_apart(&Server::on(&folder.path().join("data"), &["--bootstrap-key"]));
}

#[test]
fn namespaces_are_apart_where_credit_is_in_a_database() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("credit.db").display());
    namespaces_are_apart(&Server::start(&["--bootstrap-key", "--credits", &url]));
}

#[test]
fn a_command_with_a_certificate_needs_no_key() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let first = Server::on(&data, &["--bootstrap-key"]);
    let root = key(&first);
    first.signal("TERM");
    first.wait();
    let write = |name: &str, text: String| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let own = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let (cert, private) = (write("cert.pem", own.cert.pem()), write("key.pem", own.signing_key.serialize_pem()));
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = rcgen::CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().unwrap()).unwrap();
    let client_ca = write("clients.pem", authority.pem());
    let signing_key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["app.example".to_owned()]).unwrap();
    let client = write("client.pem", params.signed_by(&signing_key, &authority).unwrap().pem());
    let client_key = write("client.key", signing_key.serialize_pem());
    let bound = format!("app.example={}", root.split('_').nth(1).unwrap());
    let flags = ["--tls-cert", &cert, "--tls-key", &private, "--client-ca", &client_ca, "--client-certificate", &bound];
    let server = Server::on(&data, &flags);
    let whoami = |cert_file: &str, key_file: &str| {
        let mut whoami = command(&["whoami", "--json", "--server", &server.url()]);
        let whoami = whoami.env("EARMARK_CA_FILE", &cert).env("EARMARK_CERT_FILE", cert_file);
        crate::support::Ran::of(whoami.env("EARMARK_CERT_KEY_FILE", key_file).output().unwrap())
    };
    assert_eq!(whoami(&client, &client_key).ends(0).json()["role"], "admin");
    whoami("", "").ends(1);
    let half = whoami(&client, "").ends(2);
    assert!(half.stderr.contains("found one, set both or none"), "{half:?}");
    let unfit = whoami(&client, &client).ends(2);
    assert!(unfit.stderr.contains("EARMARK_CERT_FILE, EARMARK_CERT_KEY_FILE: cannot read a private key"), "{unfit:?}");
}
