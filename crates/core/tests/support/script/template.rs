//! Steps that change templates.

use earmark_core::{AccountName, Definition, Kind, LimitKey, Template};

use super::{FLAVORS, Script};
use crate::support::step::Step;

/// Template keys: some match the same keys, some differ only in the names of their placeholders.
const PATTERNS: [&str; 6] = ["t:{user}", "t:{id}", "{any}:{user}", "{any}:u1", "k03:{user}", "t:{user}:{model}"];

impl Script {
    pub(super) fn change_template(&mut self) -> Step {
        let namespace = self.namespace();
        let key = LimitKey::pattern(self.random.pick(&PATTERNS)).unwrap();
        let expected_revision = self.random.chance(20).then(|| self.random.below(40));
        if self.random.chance(30) {
            return Step::DeleteTemplate { namespace, key, expected_revision };
        }
        let known = self.shadow.templates(namespace).into_iter().map(|info| info.definition);
        let definition = match known.into_iter().find(|known| known.key == key) {
            Some(known) if self.random.chance(80) => self.redefined(known),
            Some(_) | None => {
                let flavor = self.random.pick(&FLAVORS);
                self.fresh_definition(key, flavor)
            }
        };
        let template = Box::new(Template::new(self.with_placeholder(definition)).unwrap());
        Step::PutTemplate { namespace, template, expected_revision }
    }

    /// Sometimes the account of a credit template is that of the user.
    fn with_placeholder(&mut self, mut definition: Definition) -> Definition {
        let has_user = definition.key.as_str().contains("{user}");
        if let Kind::Credit(terms) = &mut definition.kind
            && has_user
            && self.random.chance(50)
        {
            terms.account = AccountName::pattern("{user}").unwrap();
        }
        definition
    }
}
