//! Names with every allowed character, over every protocol.

use earmark_client::core::{Definition, GrantTerms, Kind, LimitKey, Operation, Overdraft};
use earmark_client::{Job, Scope, TryAcquire, Writer, WriterOptions};

use crate::fixture::{each_way, limiter};
use crate::support::soon;

const NAMES: [&str; 15] = [
    ".",
    "..",
    "/",
    "a/b",
    "a%2Fb",
    "a%252Fb",
    "a//b",
    "a/../b",
    "%",
    "k=v",
    "k+v",
    "a|b",
    "~",
    "a:b@c_d-e",
    "a/usage",
];

fn slots(key: &LimitKey, capacity: u64) -> Definition {
    Definition::new(key.clone(), Kind::Concurrency { timeout_seconds: 60 }, capacity)
}

#[tokio::test]
async fn a_key_with_any_allowed_character_names_its_own_limit() {
    for (way, client, _server) in each_way().await {
        let keys = NAMES.map(|name| LimitKey::new(name).unwrap());
        for (capacity, key) in (1..).zip(&keys) {
            client.put_limit(&slots(key, capacity), soon()).await.unwrap();
        }
        let limiter = limiter(&client);
        for (capacity, key) in (1..).zip(&keys) {
            let view = client.limit(key, soon()).await.unwrap();
            assert_eq!(view.definition, slots(key, capacity), "{way}");
            let job = Job::new([(key.clone(), capacity)]).unwrap();
            let guard = limiter.acquire(&job, soon()).await.unwrap();
            assert_eq!(client.usage(key, soon()).await.unwrap().reserved, capacity, "{way} {key}");
            let TryAcquire::Denied(denial) = limiter.try_acquire(&job, soon()).await.unwrap() else { panic!("{key}") };
            assert_eq!(denial.limited_by, std::slice::from_ref(key), "{way}");
            drop(guard);
        }
        assert!(limiter.flush(soon()).await);
        assert_eq!(client.limits(soon()).await.unwrap().len(), keys.len());
        for (key, left) in keys.iter().zip((0..keys.len()).rev()) {
            client.delete_limit(key, soon()).await.unwrap();
            assert_eq!(client.limits(soon()).await.unwrap().len(), left, "{way} {key}");
        }
    }
}

#[tokio::test]
async fn an_account_with_any_allowed_character_has_its_own_balance() {
    for (way, client, _server) in each_way().await {
        let folder = tempfile::tempdir().unwrap();
        let scope = Scope { namespace: "default".parse().unwrap(), vault: "main".parse().ok() };
        let options = WriterOptions::new(folder.path().join("sequence"), scope, "billing+1".parse().unwrap());
        let mut writer = Writer::open(&client, options, soon()).await.unwrap();
        for (amount, name) in (1..).zip(NAMES) {
            let (account, asset) = (|| name.parse().unwrap(), "usd".parse().unwrap());
            let open = Operation::OpenAccount { account: account(), overdraft: Overdraft::Deny, plan: None };
            let issue =
                Operation::Issue { account: account(), asset, amount, memo: String::new(), terms: GrantTerms::PLAIN };
            writer.write(vec![open, issue], soon()).await.unwrap();
        }
        let vault = "main".parse().unwrap();
        for (amount, name) in (1..).zip(NAMES) {
            let balances = client.balances(&vault, &name.parse().unwrap(), soon()).await.unwrap();
            assert_eq!(balances[0].available, amount, "{way} {name}");
        }
    }
}
