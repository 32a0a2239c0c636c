//! The attributes of a caller's calls: what its credentials fix, what the request may add.

use earmark_core::{KEY_ATTRIBUTE, KeyId, Role, quoted};
use earmark_policy::Attributes;

use super::{AuthError, Caller};

/// The attributes that any caller may state.
const STATED_BY_ALL: [&str; 2] = ["model", "provider"];
/// The attributes that a gateway states for its clients, from the route.
const STATED_BY_GATEWAYS: [&str; 2] = ["alias", "operation"];

/// Why the attributes of a request are refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AttributeRefusal {
    /// A name or a value is not allowed, or there are too many.
    Malformed(String),
    /// The credentials do not allow an attribute, which the message names.
    Forbidden(AuthError),
}

impl Caller {
    /// The attributes of a call: the labels of the credentials, `key`, and what the request asks for.
    ///
    /// Without keys, and by a gateway that acts for no client, every attribute may be set, `key` included: a gateway
    /// completes the calls of clients whose keys are revoked, and then states all attributes of the call.
    pub(crate) fn attributes<N: AsRef<str>, V: AsRef<str>>(
        &self,
        asked: Vec<(N, V)>,
    ) -> Result<Attributes, AttributeRefusal> {
        self.merge(asked, |name| self.may_state(name))
    }

    /// The attributes of a call to explain. A reader may ask about any call that its labels do not contradict, because
    /// explaining takes nothing.
    pub(crate) fn attributes_to_explain(&self, asked: Vec<(String, String)>) -> Result<Attributes, AttributeRefusal> {
        self.merge(asked, |name| !self.is_client() || self.may_state(name))
    }

    fn merge<N: AsRef<str>, V: AsRef<str>>(
        &self,
        asked: Vec<(N, V)>,
        may_state: impl Fn(&str) -> bool,
    ) -> Result<Attributes, AttributeRefusal> {
        let malformed = |error: earmark_policy::AttributeError| AttributeRefusal::Malformed(error.to_string());
        let asked = Attributes::new(asked).map_err(malformed)?;
        if self.is_local || self.role == Role::Gateway {
            return Ok(asked);
        }
        for (name, value) in asked.iter() {
            let refusal = match self.labels.get(name) {
                _ if name == KEY_ATTRIBUTE => "it is the id of the key that calls, which no request sets".to_owned(),
                Some(label) if label == value => continue,
                Some(label) => {
                    let kind = self.kind();
                    format!("found {}, the label of this {kind} is {}", quoted(value), quoted(label))
                }
                None if may_state(name) => continue,
                None => format!("this {} may not set it; allowed is what its may_set names", self.kind()),
            };
            return Err(AttributeRefusal::Forbidden(AuthError::Forbidden(format!("attributes: {name}: {refusal}"))));
        }
        let added = asked.iter().filter(|(name, _)| self.labels.get(name).is_none());
        let key = self.key_id.as_ref().map(|id| (KEY_ATTRIBUTE, KeyId::as_str(id)));
        Attributes::new(self.labels.iter().chain(added).chain(key)).map_err(malformed)
    }

    fn may_state(&self, name: &str) -> bool {
        STATED_BY_ALL.contains(&name)
            || (self.by_gateway && STATED_BY_GATEWAYS.contains(&name))
            || self.may_set.has(name)
    }
}

#[cfg(test)]
mod tests {
    use earmark_core::{Labels, MaySet};

    use super::*;

    fn session(role: Role) -> Caller {
        let labels = Labels::new([("tenant", "acme"), ("plan", "pro")]).unwrap();
        let caller = Caller::from_session("user:1".parse().unwrap(), role, "team".parse().unwrap(), labels);
        let may_set = MaySet::new(["user", "plan"]).unwrap();
        Caller { may_set, key_id: Some("k1".parse().unwrap()), ..caller }
    }

    /// The attributes as text, or the name in the refusal.
    fn ask(caller: &Caller, asked: &[(&str, &str)]) -> Result<String, String> {
        match caller.attributes(asked.to_vec()) {
            Ok(all) => Ok(all.iter().map(|(name, value)| format!("{name}={value} ")).collect()),
            Err(AttributeRefusal::Malformed(message)) => Err(format!("400 {message}")),
            Err(AttributeRefusal::Forbidden(error)) => Err(format!("403 {}", error.message())),
        }
    }

    #[test]
    fn a_request_adds_what_its_key_may_set_and_contradicts_no_label() {
        let direct = session(Role::Caller);
        let through = Caller::through(&session(Role::Client), &session(Role::Gateway));
        let labels = "key=k1 plan=pro tenant=acme ";
        assert_eq!(ask(&direct, &[]).unwrap(), labels);
        assert_eq!(ask(&direct, &[("tenant", "acme")]).unwrap(), labels);
        let added = [("user", "u1"), ("model", "m")];
        assert_eq!(ask(&direct, &added).unwrap(), "key=k1 model=m plan=pro tenant=acme user=u1 ");
        for caller in [&direct, &through] {
            for (name, value, refusal) in [
                ("tenant", "globex", "403 attributes: tenant: found \"globex\", the label of this session is \"acme\""),
                ("plan", "free", "403 attributes: plan: found \"free\", the label"),
                ("key", "k1", "403 attributes: key: it is the id of the key"),
                ("key", "k2", "403 attributes: key: "),
                ("feature", "chat", "403 attributes: feature: this session may not set it"),
                ("Tenant", "acme", "400 attributes: found the name \"Tenant\""),
                ("user", "", "400 attributes: user: found 0 bytes"),
            ] {
                let found = ask(caller, &[(name, value)]).unwrap_err();
                assert!(found.starts_with(refusal), "{name}={value}: {found}");
            }
            assert!(ask(caller, &[("user", "a"), ("user", "b")]).unwrap_err().starts_with("400"));
            assert!(ask(caller, &[("tenant", "acme"), ("tenant", "globex")]).unwrap_err().starts_with("400"));
        }
        for name in ["alias", "operation"] {
            assert!(ask(&direct, &[(name, "x")]).unwrap_err().starts_with("403"), "{name}");
            assert!(ask(&through, &[(name, "x")]).unwrap().contains(&format!("{name}=x ")));
        }
    }

    #[test]
    fn a_gateway_for_itself_and_a_server_without_keys_may_set_everything() {
        let local = Caller::local("system:local".parse().unwrap(), "default".parse().unwrap());
        for caller in [local, session(Role::Gateway)] {
            let all = [("key", "k9"), ("operation", "chat"), ("tenant", "globex")];
            assert_eq!(ask(&caller, &all).unwrap(), "key=k9 operation=chat tenant=globex ");
        }
    }

    #[test]
    fn a_reader_explains_any_call_that_its_labels_do_not_contradict() {
        let explain = |caller: &Caller, name: &str, value: &str| {
            caller.attributes_to_explain(vec![(name.to_owned(), value.to_owned())]).is_ok()
        };
        let reader = session(Role::Reader);
        assert!(explain(&reader, "feature", "chat") && !explain(&reader, "tenant", "globex"));
        assert!(!explain(&reader, "key", "k2"));
        let through = Caller::through(&session(Role::Client), &session(Role::Gateway));
        assert!(explain(&through, "user", "u1") && !explain(&through, "feature", "chat"));
    }
}
