//! `earmark apply`, `diff`, `export` and `import`: the limits, templates and policies of a server as files.

mod document;
mod export;
mod fields;
pub(crate) mod import;
mod json;
mod lines;
mod plan;
mod policy;
mod remote;
pub(crate) mod toml;
pub(crate) mod tree;
mod yaml;

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::PathBuf;

use clap::Args;
use earmark_core::{ClientId, NamespaceName};
use serde_json::{Value, json};

use self::document::{Document, Format, Section, Source};
use self::export::Exporter;
use self::fields::needed;
use self::plan::{Action, Change, Counts, Plan};
use self::remote::Remote;
use crate::client::{self, Client, ClientArgs};
use crate::failure::{Done, Failure};
use crate::output::{self, thousands};

pub(crate) const APPLY_HELP: &str = "\
A file has lists `limits`, `templates`, `rules` and `prices`, a field `unmatched`, and a list `namespaces` whose items have
a `namespace` and lists of their own. A definition has the fields of `earmark limits put --file`; rules, prices and
`unmatched` are those of a policy (`earmark policy put`). The name of a file says its format: .yaml, .yml, .toml or .json.

The policy of a namespace is one document, which the rules and prices of all files make up, in their order. Only an admin
of default may put it.

All files are checked before the first change. Definitions that are the same on the server are left alone, so an
interrupted run is continued by the same command. A definition that somebody else changes meanwhile is not overwritten.

Examples:
  earmark apply limits.yaml
  earmark apply --dry-run limits.yaml
  earmark apply --prune platform.toml tenants.toml
  earmark apply limits.yaml rules.toml prices.toml
  earmark export --format json | earmark apply --format json -";

pub(crate) const DIFF_HELP: &str = "\
Exit codes: 0 without a difference, 2 with one, 1 for a failure or a mistake in a file.

Examples:
  earmark diff limits.yaml
  earmark diff --prune platform.toml tenants.toml
  earmark diff --json limits.yaml | jq -r '.change[].key'";

pub(crate) const EXPORT_HELP: &str = "\
Writes definitions, without the fields that have their default, and without limits that are derived from templates.
`earmark apply` of the output changes nothing.

Examples:
  earmark export > limits.yaml
  earmark export --format toml > limits.toml
  earmark export --namespace default --namespace team > limits.yaml";

/// The client id of `apply`. Its writes need one; admins may share it.
const WRITER: &str = "earmark-apply";

#[derive(Args, Debug)]
pub(crate) struct FileArgs {
    /// Files with limits, in YAML, TOML or JSON; - reads standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Format of standard input
    #[arg(long, value_enum, default_value_t = Format::Yaml)]
    format: Format,
    /// Namespace of the lists that name none
    #[arg(long, default_value = NamespaceName::DEFAULT)]
    namespace: NamespaceName,
    /// Also delete what the files do not name, in the lists that they have
    #[arg(long)]
    prune: bool,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

#[derive(Args, Debug)]
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    pub(crate) files: FileArgs,
    /// Show what would be changed, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask before deleting
    #[arg(long)]
    yes: bool,
    /// Client id of the writes. A key that is bound to a client id needs that one
    #[arg(long = "client", value_name = "ID", default_value = WRITER)]
    writer: ClientId,
}

#[derive(Args, Debug)]
pub(crate) struct DiffArgs {
    #[command(flatten)]
    pub(crate) files: FileArgs,
}

#[derive(Args, Debug)]
pub(crate) struct ExportArgs {
    /// Format of the output
    #[arg(long, value_enum, default_value_t = Format::Yaml)]
    format: Format,
    /// Namespace to export; may be repeated
    #[arg(long, default_value = NamespaceName::DEFAULT)]
    namespace: Vec<NamespaceName>,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

impl FileArgs {
    fn read(&self) -> Result<Document, Failure> {
        Source { files: &self.files, format: self.format, namespace: &self.namespace }.read()
    }

    /// Compares the files with the server.
    async fn plan(&self, document: Document, remote: &Remote) -> Result<Plan, Failure> {
        let mut existing = BTreeMap::new();
        for (namespace, section) in &document.lists {
            existing.extend(remote.list(namespace, *section).await?);
        }
        Plan::of(document, existing, self.prune)
    }

    fn remote(&self, writer: ClientId) -> Result<Remote, Failure> {
        Ok(Remote::new(Client::new(&self.client.url())?, writer))
    }
}

/// The changes of a plan as JSON, by what they do.
fn document(changes: &[Change], unchanged: usize) -> Value {
    let of = |is: fn(&Action) -> bool| -> Vec<Value> {
        changes.iter().filter(|change| is(&change.action)).map(Change::json).collect()
    };
    json!({
        "create": of(|action| matches!(action, Action::Create { .. })),
        "change": of(|action| matches!(action, Action::Change { .. })),
        "delete": of(|action| matches!(action, Action::Delete)),
        "unchanged": unchanged,
    })
}

fn summary(plan: &Plan) -> String {
    let Counts { created, changed, deleted } = plan.counts();
    let [created, changed, deleted, unchanged] =
        [created, changed, deleted, plan.unchanged].map(|count| thousands(count as u128));
    let kept = match plan.kept {
        0 => String::new(),
        kept => format!("; {} more on the server are in no file (see --prune)", thousands(kept as u128)),
    };
    format!("{created} to create, {changed} to change, {deleted} to delete, {unchanged} unchanged{kept}\n")
}

pub(crate) fn diff(args: &DiffArgs) -> Result<Done, Failure> {
    let files = &args.files;
    // Exit code 2 means a difference.
    let failed = |failure| match failure {
        Failure::Usage(message) => Failure::Conflict(message),
        other => other,
    };
    let wanted = files.read().map_err(failed)?;
    let writer = ClientId::new(WRITER).map_err(|error| Failure::Usage(error.to_string()))?;
    let plan = client::block_on(async { files.plan(wanted, &files.remote(writer)?).await }).map_err(failed)?;
    match files.client.json {
        true => output::print_json(&document(&plan.changes, plan.unchanged))?,
        false => output::print(&(plan::show(&plan.changes) + &summary(&plan)))?,
    }
    Ok(if plan.changes.is_empty() { Done::Ok } else { Done::Different })
}

pub(crate) fn apply(args: &ApplyArgs) -> Result<Done, Failure> {
    let files = &args.files;
    let wanted = files.read()?;
    client::block_on(async {
        let mut remote = files.remote(args.writer.clone())?;
        let plan = files.plan(wanted, &remote).await?;
        if args.dry_run {
            match files.client.json {
                true => output::print_json(&document(&plan.changes, plan.unchanged))?,
                false => output::print(&(plan::show(&plan.changes) + "dry run: " + &summary(&plan)))?,
            }
            return Ok(Done::Ok);
        }
        if !args.yes && !confirm(&plan)? {
            output::complain("earmark: nothing was changed");
            return Ok(Done::Failed);
        }
        execute(&mut remote, plan, files.client.json).await
    })
}

/// Asks before a deletion. Without a terminal it needs `--yes`.
fn confirm(plan: &Plan) -> Result<bool, Failure> {
    let deletions = plan.deletions();
    if deletions.is_empty() {
        return Ok(true);
    }
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(Failure::Usage(format!(
            "--prune would delete {deletions}; there is no terminal to ask on, so give --yes, or look first with --dry-run"
        )));
    }
    let shown: String = plan.changes.iter().filter(|change| change.deletes()).map(Change::text).collect();
    let failed = |source| Failure::System { what: "the terminal", source };
    let mut stderr = io::stderr();
    write!(stderr, "{}delete {deletions}? [y/N] ", output::visible_lines(&shown)).map_err(failed)?;
    stderr.flush().map_err(failed)?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(failed)?;
    Ok(["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()))
}

/// Applies the changes in batches, and reports each batch once it is committed.
async fn execute(remote: &mut Remote, plan: Plan, is_json: bool) -> Result<Done, Failure> {
    let (total, unchanged) = (plan.changes.len(), plan.unchanged);
    let mut queue = VecDeque::from(plan.changes);
    let (mut applied, mut counts) = (Vec::new(), Counts::default());
    let mut failure = None;
    while !queue.is_empty() {
        match remote.apply(&mut queue).await {
            Ok(batch) => {
                batch.iter().for_each(|(change, _)| counts.add(change));
                if is_json {
                    applied.extend(batch.into_iter().map(|(change, _)| change));
                } else {
                    clear_progress();
                    output::print(&batch.iter().map(line).collect::<String>())?;
                }
                show_progress(total.saturating_sub(queue.len()), total);
            }
            Err(error) => {
                failure = Some(error);
                break;
            }
        }
    }
    clear_progress();
    let Counts { created, changed, deleted } = counts;
    if is_json && failure.is_none() {
        let mut value = document(&applied, unchanged);
        value["applied"] = json!({"created": created, "changed": changed, "deleted": deleted});
        output::print_json(&value)?;
    } else if !is_json {
        let texts = [created, changed, deleted, unchanged].map(|count| thousands(count as u128));
        let [created, changed, deleted, unchanged] = texts;
        output::print(&format!("{created} created, {changed} changed, {deleted} deleted, {unchanged} unchanged\n"))?;
    }
    let Some(failure) = failure else { return Ok(Done::Ok) };
    let done = created + changed + deleted;
    output::complain(&format!(
        "earmark: {} of {} changes were applied; the same command continues with the rest",
        thousands(done as u128),
        thousands(total as u128)
    ));
    Err(failure)
}

/// One applied change for people.
fn line((change, status): &(Change, String)) -> String {
    let key = &change.name.key;
    let place = match change.name.namespace.is_default() {
        true => String::new(),
        false => format!(" in {}", change.name.namespace),
    };
    match (&change.action, status.as_str()) {
        (Action::Create { .. }, _) => format!("created {key}{place}\n"),
        (Action::Change { .. }, "decreasing") => format!("changed {key}{place}, in force once enough is free\n"),
        (Action::Change { .. }, _) => format!("changed {key}{place}\n"),
        (Action::Delete, "decreasing") => format!("deleted {key}{place}, gone once nothing is reserved\n"),
        (Action::Delete, _) => format!("deleted {key}{place}\n"),
    }
}

/// Shows how far a long run is, on a terminal only.
fn show_progress(done: usize, total: usize) {
    if total > remote::BATCH_MAX && io::stderr().is_terminal() {
        let [done, total] = [done, total].map(|count| thousands(count as u128));
        _ = write!(io::stderr(), "\r{done} of {total} changes");
    }
}

fn clear_progress() {
    if io::stderr().is_terminal() {
        _ = write!(io::stderr(), "\r\x1b[K");
    }
}

pub(crate) fn export(args: &ExportArgs) -> Result<Done, Failure> {
    let mut namespaces = args.namespace.clone();
    namespaces.sort_by_key(|namespace| (!namespace.is_default(), namespace.clone()));
    namespaces.dedup();
    let writer = ClientId::new(WRITER).map_err(|error| Failure::Usage(error.to_string()))?;
    let format = if args.client.json { Format::Json } else { args.format };
    let exported = client::block_on(async {
        let remote = Remote::new(Client::new(&args.client.url())?, writer);
        let mut exporter = Exporter::new(BufWriter::new(io::stdout().lock()), format);
        for namespace in &namespaces {
            exporter.namespace(namespace).map_err(closed)?;
            let policy = remote.policy_to_export(namespace).await?;
            if let Some(unmatched) = policy.get("unmatched").filter(|unmatched| **unmatched == "allow") {
                exporter.field("unmatched", unmatched).map_err(closed)?;
            }
            for section in Section::ALL {
                export_list(&remote, &mut exporter, namespace, section).await?;
            }
            for list in policy::LISTS {
                export_policy(&mut exporter, list, policy.get(list)).map_err(closed)?;
            }
        }
        exporter.end().map_err(closed)
    });
    match exported {
        Err(Failure::System { source, .. }) if source.kind() == io::ErrorKind::BrokenPipe => Ok(Done::Ok),
        exported => exported.map(|()| Done::Ok),
    }
}

fn closed(source: io::Error) -> Failure {
    Failure::System { what: "standard output", source }
}

/// Writes the rules or the prices of a policy, if there is one.
fn export_policy(exporter: &mut Exporter<impl Write>, list: &str, items: Option<&Value>) -> io::Result<()> {
    let Some(items) = items.and_then(Value::as_array).filter(|items| !items.is_empty()) else { return Ok(()) };
    exporter.list(list)?;
    for item in items.iter().filter_map(Value::as_object) {
        exporter.item(list, policy::ordered(item))?;
    }
    exporter.end_list(list)
}

async fn export_list(
    remote: &Remote,
    exporter: &mut Exporter<impl Write>,
    namespace: &NamespaceName,
    section: Section,
) -> Result<(), Failure> {
    exporter.list(section.name()).map_err(closed)?;
    let mut after = None;
    loop {
        let (page, next) = remote.page(namespace, section, after.as_deref()).await?;
        for (_, existing) in page.iter().filter(|(_, existing)| !existing.is_deleting) {
            exporter.item(section.name(), needed(section, &existing.fields)).map_err(closed)?;
        }
        match next {
            Some(next) => after = Some(next),
            None => return exporter.end_list(section.name()).map_err(closed),
        }
    }
}
