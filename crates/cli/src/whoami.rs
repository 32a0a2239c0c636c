//! `earmark whoami`: the caller, as the server sees it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::client::ClientArgs;
use crate::failure::{Done, Failure};
use crate::key::{label_text, names_text};
use crate::output::{self, table};
use crate::request;

pub(crate) const HELP: &str = "\
Labels are attributes of each call of the key. A call may set model, provider and the attributes in MAY SET.

Examples:
  earmark whoami
  EARMARK_KEY_FILE=team.key earmark whoami --json | jq .labels";

#[derive(Debug, Deserialize, Serialize)]
struct Whoami {
    actor: String,
    namespace: String,
    role: String,
    labels: BTreeMap<String, String>,
    may_set: Vec<String>,
}

pub(crate) fn run(args: &ClientArgs) -> Result<Done, Failure> {
    let caller: Whoami = request::get(args, "/v1/whoami")?;
    output::show(args.json, &caller, Whoami::text)?;
    Ok(Done::Ok)
}

impl Whoami {
    fn text(&self) -> String {
        let head = ["ACTOR", "NAMESPACE", "ROLE", "LABELS", "MAY SET"].map(str::to_owned);
        let Whoami { actor, namespace, role, labels, may_set } = self;
        let [actor, namespace, role] = [actor, namespace, role].map(String::clone);
        table(&[head, [actor, namespace, role, label_text(labels), names_text(may_set)]])
    }
}
