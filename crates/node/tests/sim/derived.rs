//! Limits of templates and calendars, limits that only count, and pauses.

use std::sync::Arc;

use earmark_admission::{Backend, DeleteTemplateRequest, LimitError, PauseLimitRequest, PutTemplateRequest};
use earmark_core::{Definition, Kind, LimitKey, Period, Principal, Template};
use earmark_node::NodeBackend;
use tokio::time::sleep;

use crate::caller::Caller;
use crate::churn::{CAPACITY, HOLD_SECONDS, Taken};
use crate::support::client::{definition, key, namespace};

const ROLLING: Kind = Kind::Rolling { window_seconds: HOLD_SECONDS };
/// Longer than a simulation.
const PAUSE_MS: u64 = 3_600_000;

impl Caller {
    /// Uses one template per round. Only this caller names its keys, so it knows what each of them must hold.
    pub async fn derive_limits(mut self) {
        let mut round = 0;
        while !self.context.is_over() {
            round += 1;
            self.derive(round).await;
            self.delete_template(&pattern(round)).await;
            for name in ["override", "month", "shadow"] {
                self.delete(&format!("derived:{round}:{name}")).await;
            }
            let pause = self.ms(0, 300);
            sleep(pause).await;
        }
    }

    /// `None` if the simulation ends in the middle.
    async fn derive(&mut self, round: u64) -> Option<()> {
        let name = |user: &str| format!("derived:{round}:{user}");
        let template = Definition { key: pattern(round), ..definition("any", ROLLING, CAPACITY) };
        self.put_template(template).await?;
        let (first, second) = (name("first"), name("second"));
        if self.take_new(&first, 4).await? == Taken::Allowed {
            self.must_hold(&first, 4, "after a reserve of its template").await?;
            self.must_not(&first, 7, Taken::Allowed).await?;
        }
        self.must_hold(&second, 0, "before its first reserve").await?;
        self.override_and_pause(&name("override")).await?;
        let month = Kind::Calendar { period: Period::Month, utc_offset_minutes: 0 };
        self.put_limit(None, definition(&name("month"), month, CAPACITY)).await?;
        if self.take_new(&name("month"), CAPACITY).await? == Taken::Allowed {
            self.must_not(&name("month"), 1, Taken::Allowed).await?;
        }
        let shadow = Definition { enforce: false, ..definition(&name("shadow"), ROLLING, CAPACITY) };
        self.put_limit(None, shadow).await?;
        self.must_not(&name("shadow"), 3 * CAPACITY, Taken::Denied).await?;
        self.delete_template(&pattern(round)).await?;
        let taken = self.take_new(&second, 1).await?;
        // A put without an answer may be applied late, after the delete.
        let is_wrong = taken == Taken::Allowed && !self.has_template(&pattern(round)).await?;
        self.context.oracle.borrow_mut().must(!is_wrong, || format!("{second} has no template and is {taken:?}"));
        Some(())
    }

    /// An override has a capacity of its own, and a pause refuses everybody until it is resumed.
    async fn override_and_pause(&mut self, name: &str) -> Option<()> {
        self.put_limit(None, definition(name, ROLLING, 2 * CAPACITY)).await?;
        if self.take_new(name, CAPACITY + 1).await? == Taken::Allowed {
            self.must_hold(name, CAPACITY + 1, "by its override").await?;
        }
        self.pause(name, PAUSE_MS).await?;
        self.must_not(name, 1, Taken::Allowed).await?;
        self.pause(name, 0).await
    }

    async fn take_new(&mut self, name: &str, amount: u64) -> Option<Taken> {
        let lease = self.new_lease();
        self.take(None, lease, &[(name, amount)]).await
    }

    async fn must_not(&mut self, name: &str, amount: u64, wrong: Taken) -> Option<()> {
        let taken = self.take_new(name, amount).await?;
        self.context.oracle.borrow_mut().must(taken != wrong, || format!("{amount} of {name} is {taken:?}"));
        Some(())
    }

    async fn put_template(&mut self, definition: Definition) -> Option<()> {
        let template = Template::new(definition).unwrap();
        while !self.context.is_over() {
            let template = template.clone();
            let what = format!("put template {}", template.key());
            let request = PutTemplateRequest { namespace: namespace(), template, expected_revision: None };
            let put = async move |node: Arc<NodeBackend>| node.put_template(Principal::System, request).await;
            if let Some(Ok(_)) = self.attempt(None, &what, put).await {
                return Some(());
            }
        }
        None
    }

    async fn delete_template(&mut self, key: &LimitKey) -> Option<()> {
        while !self.context.is_over() {
            let request = DeleteTemplateRequest { namespace: namespace(), key: key.clone(), expected_revision: None };
            let delete = async move |node: Arc<NodeBackend>| node.delete_template(Principal::System, request).await;
            let answer = self.attempt(None, &format!("delete template {key}"), delete).await;
            if let Some(Ok(_) | Err(LimitError::NotFound)) = answer {
                return Some(());
            }
        }
        None
    }

    async fn has_template(&mut self, key: &LimitKey) -> Option<bool> {
        while !self.context.is_over() {
            let ask = async move |node: Arc<NodeBackend>| node.templates(namespace()).await;
            if let Some(Ok(templates)) = self.attempt(None, "templates", ask).await {
                return Some(templates.iter().any(|template| template.definition.key == *key));
            }
        }
        None
    }

    async fn pause(&mut self, name: &str, for_ms: u64) -> Option<()> {
        while !self.context.is_over() {
            let (namespace, key, reason) = (namespace(), key(name), String::new());
            let request = PauseLimitRequest { namespace, key, for_ms, reason, only_lengthen: false };
            let pause = async move |node: Arc<NodeBackend>| node.pause_limit(Principal::System, request).await;
            if let Some(Ok(_)) = self.attempt(None, &format!("pause {name} for {for_ms}"), pause).await {
                return Some(());
            }
        }
        None
    }
}

fn pattern(round: u64) -> LimitKey {
    LimitKey::pattern(&format!("derived:{round}:{{user}}")).unwrap()
}
