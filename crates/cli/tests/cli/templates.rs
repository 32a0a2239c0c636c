//! Templates on a durable server: limits for users that nobody defined.

use std::time::{SystemTime, UNIX_EPOCH};

use earmark_core::{LeaseId, UnixMs};
use serde_json::{Value, json};

use crate::ask::ask;
use crate::support::{Server, TIMEOUT};

const USERS: u32 = 100_000;
const BATCH: usize = 256;
const TEMPLATE: &str = "templates put --key user:{user}:rpm --kind rolling --window 12h --capacity";

/// Reserves an amount for each user, in batches. Returns how many were allowed, and the first other answer.
fn reserve(server: &Server, users: std::ops::Range<u32>, amount: u64, pass: u128) -> (u32, Option<Value>) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    let now = UnixMs::new(u64::try_from(now).unwrap());
    let (mut allowed, mut other) = (0, None);
    let users: Vec<u32> = users.collect();
    for batch in users.chunks(BATCH) {
        let request = |user: &u32| {
            let lease = LeaseId::from_parts(now, pass << 64 | u128::from(*user));
            let requirement = json!({"key": format!("user:{user}:rpm"), "amount": amount});
            json!({"lease_id": lease.to_string(), "requirements": [requirement]})
        };
        let body = json!({"requests": batch.iter().map(request).collect::<Vec<_>>()}).to_string();
        let answer = ask(&server.address, "POST", "/v1/reserve/batch", &body, TIMEOUT).unwrap();
        assert_eq!(answer.status, 200, "{}", answer.body);
        let answer: Value = serde_json::from_str(&answer.body).unwrap();
        for result in answer["results"].as_array().unwrap() {
            match result["allowed"] == true {
                true => allowed += 1,
                false => other = other.or_else(|| Some(result.clone())),
            }
        }
    }
    (allowed, other)
}

fn quotas(server: &Server) -> (u64, u64) {
    let quotas = server.line("quota get default --json").ends(0).json()["quotas"].clone();
    (quotas["limits"]["used"].as_u64().unwrap(), quotas["derived_limits"]["used"].as_u64().unwrap())
}

#[test]
fn one_template_limits_a_hundred_thousand_users_each_on_its_own_through_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::on(folder.path(), &[]);
    server.line(&format!("{TEMPLATE} 3")).ends(0);
    assert_eq!(reserve(&server, 0..USERS / 2, 2, 1), (USERS / 2, None));
    server.kill();

    let server = Server::on(folder.path(), &[]);
    assert_eq!(reserve(&server, USERS / 2..USERS, 2, 1), (USERS / 2, None));
    // Each is within its own limit, those from before the kill too.
    let (allowed, denial) = reserve(&server, 0..USERS, 2, 2);
    assert_eq!((allowed, &denial.unwrap()["limited_by"]), (0, &json!(["user:0:rpm"])));
    assert_eq!(quotas(&server), (0, u64::from(USERS)), "none is defined");
    let listed = server.line("templates list --json").ends(0).json();
    assert_eq!(listed["templates"][0]["live"], USERS);

    server.line("limits put --key user:7:rpm --kind rolling --window 12h --capacity 10").ends(0);
    assert_eq!(reserve(&server, 7..8, 8, 3).0, 1, "the override keeps the 2 that are reserved");
    server.line(&format!("{TEMPLATE} 5")).ends(0);
    server.kill();

    let server = Server::on(folder.path(), &[]);
    assert_eq!(reserve(&server, 8..1_008, 3, 4).0, 1_000, "the changed template holds from the next decision on");
    assert_eq!(reserve(&server, 0..1_008, 4, 5).0, 0);
    let limit = server.line("limits get user:7:rpm --json").ends(0).json();
    assert_eq!((&limit["limit"]["template"], &limit["usage"]["reserved"]), (&Value::Null, &json!(10)));
    let derived = server.line("limits get user:8:rpm --json").ends(0).json();
    assert_eq!((&derived["limit"]["template"], &derived["usage"]["capacity"]), (&json!("user:{user}:rpm"), &json!(5)));
    assert_eq!(quotas(&server), (1, u64::from(USERS - 1)));
    server.line("templates delete user:{user}:rpm").ends(0);
    let (_, unknown) = reserve(&server, 8..9, 1, 6);
    assert_eq!(unknown.unwrap()["error"], "unknown_limit_key:user:8:rpm");
}

#[test]
fn templates_are_put_listed_and_deleted_and_refused_by_field() {
    let server = Server::start(&[]);
    let put = server.line("templates put --key {tenant}:rpm --kind rolling --capacity 60 --window 1m").ends(0);
    assert_eq!(put.stdout, "{tenant}:rpm is a template: 60 in any 1 min\n");
    let listed = server.line("templates list").ends(0).stdout;
    assert!(listed.contains("KEY") && listed.contains("{tenant}:rpm") && listed.contains("LIVE"), "{listed}");
    for (line, message) in [
        ("templates put --key a:rpm --kind rolling --capacity 1 --window 1m", "a template needs a placeholder"),
        ("templates put --key a-{b} --kind rolling --capacity 1 --window 1m", "as a whole segment"),
        ("templates put --key {a}:{a} --kind rolling --capacity 1 --window 1m", "found {a} twice"),
        ("limits put --key {a}:rpm --kind rolling --capacity 1 --window 1m", "key: found a placeholder"),
    ] {
        let refused = server.line(line).ends(2);
        assert!(refused.stderr.contains(message), "{line}: {}", refused.stderr);
    }
    let refused = server.line("templates put --key {id}:rpm --kind rolling --capacity 1 --window 1m").ends(1);
    assert!(refused.stderr.contains("differs only in the names of its placeholders"), "{}", refused.stderr);
    assert_eq!(server.line("templates delete {tenant}:rpm --json").ends(0).json(), json!({"ok": true}));
    server.line("templates delete {tenant}:rpm").ends(1);
}

/// Only limits were in the limits file, so templates were lost with the process.
#[test]
fn the_limits_file_keeps_templates_and_no_derived_limit() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.json");
    let server = Server::start(&["--limits", file.to_str().unwrap()]);
    server.line(&format!("{TEMPLATE} 3")).ends(0);
    server.reserve("--key user:u1:rpm=2");
    server.line("limits put --key other --kind rolling --capacity 1 --window 1m").ends(0);
    server.stop();
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("user:{user}:rpm") && !text.contains("u1"), "{text}");
    let server = Server::start(&["--limits", file.to_str().unwrap()]);
    server.line("reserve --key user:u2:rpm=4").ends(3);
    server.reserve("--key user:u2:rpm=3");
}
