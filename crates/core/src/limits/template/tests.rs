use super::*;
use crate::id::{AssetName, VaultName};
use crate::limits::{Branch, CreditTerms, TemplateId};

fn rolling(key: &str) -> Template {
    Template::new(Definition::new(LimitKey::pattern(key).unwrap(), Kind::Rolling { window_seconds: 60 }, 5)).unwrap()
}

fn credit(key: &str, account: &str) -> Result<Template, TemplateError> {
    let terms = CreditTerms {
        timeout_seconds: 60,
        vault: VaultName::new("main").unwrap(),
        account: AccountName::pattern(account).unwrap(),
        asset: AssetName::new("usd").unwrap(),
        revenue: AccountName::new("revenue").unwrap(),
        on_timeout: Default::default(),
    };
    Template::new(Definition::new(LimitKey::pattern(key).unwrap(), Kind::Credit(terms), 0))
}

fn key(text: &str) -> LimitKey {
    LimitKey::new(text).unwrap()
}

#[test]
fn a_refused_template_key_says_what_was_found_and_what_is_allowed() {
    for (text, mistake) in [
        ("", "template key: found 0 bytes, allowed are 1 to 256"),
        ("user:u1:rpm", "template key: found \"user:u1:rpm\", a template needs a placeholder such as {user}"),
        ("user:{}:rpm", "template key: found \"{}\", allowed is a placeholder"),
        ("user:{User}:rpm", "template key: found \"{User}\", allowed is a placeholder"),
        ("user:{user1}:rpm", "template key: found \"{user1}\", allowed is a placeholder"),
        ("user:id-{user}:rpm", "template key: found \"id-{user}\", allowed is a placeholder"),
        ("user:{a}{b}:rpm", "template key: found \"{a}{b}\", allowed is a placeholder"),
        ("user:{user:rpm", "template key: found \"{user\", allowed is a placeholder"),
        ("{user}:{user}", "template key: found {user} twice, allowed is each placeholder once"),
        ("{a}:{b}:{c}:{d}:{e}", "template key: found 5 placeholders, allowed are 1 to 4"),
        ("1:2:3:4:5:6:7:8:9:10:11:12:{a}", "template key: found 13 segments, allowed are 1 to 12"),
        ("us er:{user}", "template key: found ' ' in \"us er\", allowed are characters of keys and placeholders"),
    ] {
        let error = LimitKey::pattern(text).unwrap_err().to_string();
        assert!(error.starts_with(mistake), "{text}: {error}");
    }
    assert!(LimitKey::pattern(&format!("{{a}}:{}", "x".repeat(253))).is_err());
    for text in ["{user}", "a:{b}:{c_d}:{e}:{f}", "a::{b}", "{a}:", "1:2:3:4:5:6:7:8:9:10:11:{a}"] {
        assert!(LimitKey::pattern(text).is_ok(), "{text}");
    }
}

#[test]
fn a_limit_has_no_placeholder_and_a_template_has_one() {
    let pattern = rolling("user:{user}").into_definition();
    let error = pattern.validate().unwrap_err().to_string();
    assert_eq!(error, "key: found a placeholder, allowed only in a template");
    let error = Template::new(Definition { key: key("user:u1"), ..pattern }).unwrap_err().to_string();
    assert_eq!(error, "key: found \"user:u1\", a template needs a placeholder such as {user}");
    assert!(LimitKey::new("user:{user}").is_err());
}

#[test]
fn a_key_matches_the_template_with_as_many_segments_and_the_same_literals() {
    let template = rolling("user:{user}:rpm");
    for (text, is_match) in [
        ("user:u1:rpm", true),
        ("user:user:rpm", true),
        ("user:u1:tpm", false),
        ("user::rpm", false),
        ("user:u1", false),
        ("user:u1:rpm:more", false),
        ("user:u1:x:rpm", false),
    ] {
        assert_eq!(template.matches(&key(text)), is_match, "{text}");
        assert_eq!(tree(&["user:{user}:rpm"]).find(text).is_some(), is_match, "{text}");
    }
}

fn tree(keys: &[&str]) -> Branch {
    let mut tree = Branch::default();
    for (number, key) in (0..).zip(keys) {
        tree.insert(&LimitKey::pattern(key).unwrap(), TemplateId(number));
    }
    tree
}

#[test]
fn the_leftmost_literal_wins_whatever_the_order_of_the_templates() {
    let mut keys = ["{a}:{b}:{c}", "{a}:{b}:rpm", "{a}:u1:{c}", "user:{b}:{c}", "user:{b}:rpm", "user:u1:{c}"];
    for _ in 0..2 {
        let tree = tree(&keys);
        for (text, winner) in [
            ("user:u1:rpm", "user:u1:{c}"),
            ("user:u2:rpm", "user:{b}:rpm"),
            ("user:u2:tpm", "user:{b}:{c}"),
            ("team:u1:rpm", "{a}:u1:{c}"),
            ("team:u2:rpm", "{a}:{b}:rpm"),
            ("team:u2:tpm", "{a}:{b}:{c}"),
        ] {
            let found = tree.find(text).map(|id| keys[usize::from(id.0)]);
            assert_eq!(found, Some(winner), "{text}");
        }
        keys.reverse();
    }
}

/// A literal that leads nowhere must not hide a placeholder further left.
#[test]
fn a_dead_end_after_a_literal_falls_back_to_the_placeholder() {
    let tree = tree(&["user:{b}:rpm", "{a}:{b}:tpm"]);
    assert_eq!(tree.find("user:u1:tpm"), Some(TemplateId(1)));
    assert_eq!(tree.find("user:u1:rpd"), None);
}

#[test]
fn the_account_of_a_credit_template_takes_the_placeholders_of_the_key() {
    let template = credit("{tenant}:{user}:usd", "tenant:{tenant}").unwrap();
    let derived = template.derive(&key("acme:u1:usd")).unwrap();
    assert_eq!(derived.key.as_str(), "acme:u1:usd");
    assert_eq!(derived.kind.terms().unwrap().account.as_str(), "tenant:acme");
    assert!(derived.validate().is_ok());

    let error = credit("{tenant}:usd", "{user}").unwrap_err().to_string();
    assert_eq!(error, "account: found {user}, allowed are the placeholders of the key");
    let long = credit("{tenant}", "account:{tenant}").unwrap();
    assert_eq!(long.derive(&key(&"x".repeat(256))), None, "its account would have 264 bytes");
}
