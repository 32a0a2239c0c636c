//! The definitions of a server: reads them, and changes them in batches.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use earmark_client::http::{Method, encoded};
use earmark_core::{ClientId, NamespaceName};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::document::{Name, Section};
use super::plan::{Action, Change, Existing};
use super::policy;
use crate::client::Client;
use crate::failure::Failure;
use crate::output;

const TEMPLATES: &str = "/v1/admin/templates";
const POLICY: &str = "/v1/admin/policy";

/// Changes of one write: the most that a server takes.
pub(super) const BATCH_MAX: usize = 256;
/// Bytes of one write, below the server's bound on a body. Long descriptions make a batch shorter.
const BATCH_BYTES_MAX: usize = 900 << 10;
/// Attempts at a batch. A server that elects a leader answers again within seconds.
const ATTEMPTS_MAX: u32 = 12;
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// A definition as a server lists it.
#[derive(Deserialize)]
struct Listed {
    definition: Map<String, Value>,
    #[serde(default)]
    pending_decrease_to: Option<u64>,
    revision: u64,
    /// The template of a derived limit, which nobody has defined.
    template: Option<Value>,
}

#[derive(Deserialize)]
struct Page {
    limits: Vec<Listed>,
    next: Option<String>,
}

#[derive(Deserialize)]
struct Answer {
    success: Option<Success>,
    error: Option<Refusal>,
}

#[derive(Deserialize)]
struct Success {
    results: Vec<Value>,
}

#[derive(Deserialize)]
struct Refusal {
    code: String,
    message: String,
    operation: Option<usize>,
}

impl Listed {
    fn existing(self, section: Section) -> Result<(String, Existing), String> {
        let Listed { mut definition, pending_decrease_to, revision, .. } = self;
        let is_deleting = pending_decrease_to == Some(0);
        if let Some(to) = pending_decrease_to.filter(|to| *to > 0) {
            definition.insert("capacity".into(), to.into());
        }
        let fields = section.canonical(Value::Object(definition))?;
        let key = fields.get("key").and_then(Value::as_str).unwrap_or_default().to_owned();
        Ok((key, Existing { fields, revision, is_deleting }))
    }
}

/// The definition that a server has under a key.
enum Found {
    Defined(Existing),
    /// A limit that a template derives, with its revision.
    Derived(u64),
}

/// A server.
pub(super) struct Remote {
    client: Client,
    /// The client id of the writes.
    writer: ClientId,
    /// The last sequence of the client id, by namespace.
    sequences: BTreeMap<NamespaceName, u64>,
}

impl Remote {
    pub(super) fn new(client: Client, writer: ClientId) -> Remote {
        Remote { client, writer, sequences: BTreeMap::new() }
    }

    /// Reads a page of a list: the definitions, and the position of the next page.
    pub(super) async fn page(
        &self,
        namespace: &NamespaceName,
        section: Section,
        after: Option<&str>,
    ) -> Result<(Vec<(String, Existing)>, Option<String>), Failure> {
        let path = match (section, after) {
            (Section::Templates, _) => return Ok((self.templates(namespace).await?, None)),
            (Section::Policy, _) => return Ok((self.policy(namespace).await?.into_iter().collect(), None)),
            (Section::Limits, None) => format!("/v1/admin/limits?defined=true&namespace={namespace}"),
            (Section::Limits, Some(after)) => {
                format!("/v1/admin/limits?defined=true&namespace={namespace}&after={}", encoded(after))
            }
        };
        let page: Page = self.client.call(Method::GET, &path, None).await?;
        let existing =
            page.limits.into_iter().map(|listed| listed.existing(section).map_err(|what| self.client.unexpected(what)));
        Ok((existing.collect::<Result<_, _>>()?, page.next))
    }

    async fn templates(&self, namespace: &NamespaceName) -> Result<Vec<(String, Existing)>, Failure> {
        #[derive(Deserialize)]
        struct Templates {
            templates: Vec<Listed>,
        }
        let path = format!("{TEMPLATES}?namespace={namespace}");
        let list: Templates = self.client.call(Method::GET, &path, None).await?;
        let existing =
            |listed: Listed| listed.existing(Section::Templates).map_err(|what| self.client.unexpected(what));
        list.templates.into_iter().map(existing).collect()
    }

    /// Reads the policy of a namespace.
    async fn policy(&self, namespace: &NamespaceName) -> Result<Option<(String, Existing)>, Failure> {
        #[derive(Deserialize)]
        struct Found {
            policy: String,
            revision: u64,
        }
        let path = format!("{POLICY}?namespace={namespace}");
        let found: Found = match self.client.call(Method::GET, &path, None).await {
            Ok(found) => found,
            Err(Failure::Refused { status: 404, .. }) => return Ok(None),
            Err(failure) => return Err(failure),
        };
        let document = earmark_policy::Document::parse(&found.policy);
        let document = document.map_err(|mistake| self.client.unexpected(format!("policy: {mistake}")))?;
        let (fields, revision) = (policy::canonical(&document), found.revision);
        Ok(Some((policy::name(namespace).key, Existing { fields, revision, is_deleting: false })))
    }

    /// The fields of the policy of a namespace. None without a policy, or for a caller that may not read it.
    pub(super) async fn policy_to_export(&self, namespace: &NamespaceName) -> Result<Map<String, Value>, Failure> {
        match self.policy(namespace).await {
            Ok(found) => Ok(found.map(|(_, existing)| existing.fields).unwrap_or_default()),
            Err(Failure::Refused { status: 403, message, .. }) => {
                let message = output::visible(&message);
                output::complain(&format!("earmark: the policy of {namespace} is left out: {message}"));
                Ok(Map::new())
            }
            Err(failure) => Err(failure),
        }
    }

    /// Reads a whole list.
    pub(super) async fn list(
        &self,
        namespace: &NamespaceName,
        section: Section,
    ) -> Result<BTreeMap<Name, Existing>, Failure> {
        let (mut all, mut after) = (BTreeMap::new(), None);
        loop {
            let (page, next) = self.page(namespace, section, after.as_deref()).await?;
            let named = |(key, existing)| (Name { namespace: namespace.clone(), section, key }, existing);
            all.extend(page.into_iter().map(named));
            match next {
                Some(next) => after = Some(next),
                None => return Ok(all),
            }
        }
    }

    /// Reads one definition, or the limit that a template derives for its key.
    async fn find(&self, name: &Name) -> Result<Option<Found>, Failure> {
        let Name { namespace, section, key } = name;
        if *section == Section::Policy {
            return Ok(self.policy(namespace).await?.map(|(_, existing)| Found::Defined(existing)));
        }
        if *section == Section::Templates {
            let mut all = self.templates(namespace).await?.into_iter();
            return Ok(all.find(|(found, _)| found == key).map(|(_, existing)| Found::Defined(existing)));
        }
        let path = format!("/v1/admin/limits?namespace={namespace}&prefix={}&page_size=1", encoded(key));
        let page: Page = self.client.call(Method::GET, &path, None).await?;
        let Some(listed) = page.limits.into_iter().next() else { return Ok(None) };
        let is_derived = listed.template.is_some();
        let (found, existing) = listed.existing(*section).map_err(|what| self.client.unexpected(what))?;
        let found_one = if is_derived { Found::Derived(existing.revision) } else { Found::Defined(existing) };
        Ok((found == *key).then_some(found_one))
    }

    /// Applies the first changes of the queue as one transaction, and returns them with the status of each. Changes that
    /// somebody else has made meanwhile are left out.
    pub(super) async fn apply(&mut self, queue: &mut VecDeque<Change>) -> Result<Vec<(Change, String)>, Failure> {
        if queue.front().is_some_and(|change| change.name.section != Section::Limits)
            && let Some(change) = queue.pop_front()
        {
            return self.apply_one(change).await;
        }
        let mut batch = take_batch(queue);
        let Some(namespace) = batch.first().map(|change| change.name.namespace.clone()) else { return Ok(Vec::new()) };
        let (mut attempts, mut wait) = (0, FIRST_WAIT);
        loop {
            let last = self.last_sequence(&namespace).await?;
            let body = json!({
                "namespace": namespace.as_str(), "client_id": self.writer.as_str(), "sequence": last.saturating_add(1),
                "operations": batch.iter().map(operation).collect::<Vec<_>>(),
            });
            let refusal = match self.write(&body).await {
                Ok(Ok(Success { results })) => {
                    self.sequences.insert(namespace, last.saturating_add(1));
                    let status = |result: &Value| result["status"].as_str().unwrap_or_default().to_owned();
                    return Ok(batch.into_iter().zip(results.iter().map(status)).collect());
                }
                Ok(Err(refusal)) => refusal,
                // The same write again cannot be applied twice.
                Err(failure) if attempts < ATTEMPTS_MAX && is_transient(&failure) => {
                    Refusal { code: "UNAVAILABLE".to_owned(), message: failure.to_string(), operation: None }
                }
                Err(failure) => return Err(failure),
            };
            attempts += 1;
            match refusal.code.as_str() {
                "CONDITION_FAILED" => {
                    let place = refusal.operation.filter(|place| *place < batch.len());
                    let change = place.and_then(|place| Some((place, batch.get_mut(place)?)));
                    let Some((place, change)) = change else { return Err(refused(&refusal, None)) };
                    match self.resolve(change).await? {
                        Some(revision) if attempts < ATTEMPTS_MAX => change.expected_revision = revision,
                        Some(_) => return Err(refused(&refusal, Some(change))),
                        None => drop(batch.remove(place)),
                    }
                    if batch.is_empty() {
                        return Ok(Vec::new());
                    }
                }
                // Another program writes with the same client id.
                "SEQUENCE_GAP" | "SEQUENCE_REUSED" | "ALREADY_COMMITTED" if attempts < ATTEMPTS_MAX => {
                    self.sequences.remove(&namespace);
                }
                "UNAVAILABLE" if attempts < ATTEMPTS_MAX => {
                    tokio::time::sleep(wait).await;
                    wait = wait.saturating_mul(2).min(LONGEST_WAIT);
                }
                _ => return Err(refused(&refusal, refusal.operation.and_then(|place| batch.get(place)))),
            }
        }
    }

    /// Puts or deletes a template, or puts a policy, which no transaction can.
    async fn apply_one(&self, change: Change) -> Result<Vec<(Change, String)>, Failure> {
        let Change { name: Name { namespace, key, section }, action, expected_revision } = &change;
        let query = format!("namespace={namespace}&expected_revision={expected_revision}");
        let (mut attempts, mut wait) = (0, FIRST_WAIT);
        loop {
            let sent: Result<Value, Failure> = match action {
                Action::Create { fields, .. } | Action::Change { fields, .. } if *section == Section::Policy => {
                    let body = json!({"policy": policy::text(fields), "expected_revision": expected_revision});
                    self.client.send(Method::PUT, &format!("{POLICY}?namespace={namespace}"), &body).await
                }
                Action::Create { fields, .. } | Action::Change { fields, .. } => {
                    self.client.send(Method::PUT, &format!("{TEMPLATES}?{query}"), fields).await
                }
                Action::Delete => {
                    let path = format!("{TEMPLATES}?{query}&key={}", encoded(key));
                    self.client.call(Method::DELETE, &path, None).await
                }
            };
            attempts += 1;
            match sent {
                Ok(_) => return Ok(vec![(change, String::new())]),
                Err(failure) if attempts < ATTEMPTS_MAX && is_transient(&failure) => {
                    tokio::time::sleep(wait).await;
                    wait = wait.saturating_mul(2).min(LONGEST_WAIT);
                }
                Err(Failure::Refused { status: 400 | 404 | 409, error, message })
                    if message.starts_with("expected_revision:")
                        || *action == Action::Delete
                        || (*section == Section::Policy && error == "conflict") =>
                {
                    self.resolve(&change).await?;
                    return Ok(Vec::new());
                }
                Err(Failure::Refused { error, message, .. }) => {
                    let refusal = Refusal { code: error, message, operation: None };
                    return Err(refused(&refusal, Some(&change)));
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// The last sequence of the client id in a namespace; 0 where the namespace does not exist yet.
    async fn last_sequence(&mut self, namespace: &NamespaceName) -> Result<u64, Failure> {
        #[derive(Deserialize)]
        struct State {
            last_committed_sequence: u64,
        }
        if let Some(last) = self.sequences.get(namespace) {
            return Ok(*last);
        }
        let path = format!("/v1/clients/{}?namespace={namespace}", self.writer);
        let last = match self.client.call::<State>(Method::GET, &path, None).await {
            Ok(state) => state.last_committed_sequence,
            Err(Failure::Refused { status: 404, .. }) => 0,
            Err(failure) => return Err(failure),
        };
        self.sequences.insert(namespace.clone(), last);
        Ok(last)
    }

    async fn write(&self, body: &Value) -> Result<Result<Success, Refusal>, Failure> {
        let answer = self.client.post_any("/v1/write", body).await?;
        match Answer::deserialize(&answer) {
            Ok(Answer { success: Some(success), .. }) => Ok(Ok(success)),
            Ok(Answer { error: Some(refusal), .. }) => Ok(Err(refusal)),
            Ok(Answer { success: None, error: None }) => Err(self.client.unexpected("an empty answer".into())),
            Err(error) => Err(self.client.unexpected(error.to_string())),
        }
    }

    /// Resolves a change whose revision did not hold. `None`: somebody else has made just this change. A revision: the key
    /// has only a derived limit, which a definition replaces. Otherwise it fails, and says who changed what.
    async fn resolve(&self, change: &Change) -> Result<Option<u64>, Failure> {
        let found = match self.find(&change.name).await? {
            Some(Found::Derived(revision)) if matches!(change.action, Action::Create { .. }) => {
                return Ok(Some(revision));
            }
            Some(Found::Defined(existing)) => Some(existing),
            Some(Found::Derived(_)) | None => None,
        };
        let is_done = match (&change.action, &found) {
            (Action::Delete, found) => found.as_ref().is_none_or(|found| found.is_deleting),
            (Action::Create { fields, .. } | Action::Change { fields, .. }, Some(found)) => {
                !found.is_deleting && found.fields == *fields
            }
            (Action::Create { .. } | Action::Change { .. }, None) => false,
        };
        if is_done {
            return Ok(None);
        }
        let what = match found {
            Some(found) => format!("was changed meanwhile, to revision {}", found.revision),
            None => "was deleted meanwhile".to_owned(),
        };
        let by = self.last_change(&change.name).await;
        let Name { namespace, key, .. } = &change.name;
        Err(Failure::Conflict(format!(
            "{key} in {namespace} {what}{by}; look at the difference and run the command again"
        )))
    }

    /// The actor of the last change of a definition, as far as the caller may know.
    async fn last_change(&self, name: &Name) -> String {
        #[derive(Deserialize)]
        struct Log {
            entries: Vec<LogEntry>,
        }
        #[derive(Deserialize)]
        struct LogEntry {
            at_unix_ms: u64,
            actor: String,
            namespace: String,
        }
        let path = format!("/v1/audit?key={}&page_size=20", encoded(&name.key));
        let Ok(log) = self.client.call::<Log>(Method::GET, &path, None).await else { return String::new() };
        let last = log.entries.into_iter().find(|entry| entry.namespace == name.namespace.as_str());
        last.map_or(String::new(), |LogEntry { at_unix_ms, actor, .. }| {
            format!(" by {}, {}", output::visible(&actor), output::date(at_unix_ms))
        })
    }
}

/// Whether the same request may succeed later.
fn is_transient(failure: &Failure) -> bool {
    match failure {
        Failure::NoAnswer { .. } | Failure::Unreachable { .. } => true,
        Failure::Refused { status, .. } => [408, 429, 500, 503].contains(status),
        _ => false,
    }
}

fn refused(refusal: &Refusal, change: Option<&Change>) -> Failure {
    let [code, message] = [&refusal.code, &refusal.message].map(|text| output::visible(text));
    let origin = match change.map(|change| &change.action) {
        Some(Action::Create { origin, .. } | Action::Change { origin, .. }) => format!("{origin}: "),
        Some(Action::Delete) | None => String::new(),
    };
    let key = change.map_or(String::new(), |change| format!("{}: ", change.name.key));
    Failure::Conflict(format!("{origin}{key}{message} ({code})"))
}

/// A change of a limit as an operation of a write.
fn operation(change: &Change) -> Value {
    let expected_revision = change.expected_revision;
    match &change.action {
        Action::Create { fields, .. } | Action::Change { fields, .. } => {
            json!({"put_limit": {"definition": fields, "expected_revision": expected_revision}})
        }
        Action::Delete => {
            json!({"delete_limit": {"key": change.name.key, "expected_revision": expected_revision}})
        }
    }
}

/// The first changes of limits of one namespace, as many as a write takes.
fn take_batch(queue: &mut VecDeque<Change>) -> Vec<Change> {
    let (mut batch, mut bytes): (Vec<Change>, usize) = (Vec::new(), 0);
    while let Some(next) = queue.front() {
        let is_same = next.name.section == Section::Limits
            && batch.first().is_none_or(|first| first.name.namespace == next.name.namespace);
        bytes = bytes.saturating_add(operation(next).to_string().len());
        if batch.len() >= BATCH_MAX || !is_same || (bytes > BATCH_BYTES_MAX && !batch.is_empty()) {
            break;
        }
        batch.extend(queue.pop_front());
    }
    batch
}
