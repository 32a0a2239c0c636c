use super::*;

const LEASE: &str = "01J00000000000000000000000";

struct Names {
    default: NamespaceName,
    team: NamespaceName,
    key: LimitKey,
    vault: VaultName,
    client: ClientId,
    once: IdempotencyKey,
    lease: LeaseId,
}

impl Names {
    fn lease(&self) -> LeaseScope<'_> {
        LeaseScope(&self.default, self.lease)
    }

    fn limit(&self) -> LimitScope<'_> {
        LimitScope(&self.default, &self.key)
    }

    fn team_lease(&self) -> LeaseScope<'_> {
        LeaseScope(&self.team, self.lease)
    }

    fn team_limit(&self) -> LimitScope<'_> {
        LimitScope(&self.team, &self.key)
    }
}

fn names() -> Names {
    Names {
        default: "default".parse().unwrap(),
        team: "team-a".parse().unwrap(),
        key: "global:llm:openai:gpt-4o:rpm".parse().unwrap(),
        vault: "main".parse().unwrap(),
        client: "billing".parse().unwrap(),
        once: "invoice-7".parse().unwrap(),
        lease: LEASE.parse().unwrap(),
    }
}

#[test]
fn the_check_values_of_the_design_hold() {
    let n = names();
    assert_eq!(Label::OperatorAccount.id().to_u128(), 0xee06f35fb94212edc7e42a11203bfca8);
    assert_eq!(Label::Reserve(n.lease(), n.limit()).id().to_u128(), 0xc45e760e52ab0d347b2806411077b034);
}

/// Other systems store these ids, so changing a label would orphan everything stored under it.
fn check<const N: usize>(labels: [(Label<'_>, String, u128); N]) {
    for (label, text, id) in labels {
        assert_eq!(label.to_string(), text);
        assert_eq!(label.id().to_u128(), id, "{text}");
    }
}

#[test]
fn every_label_of_a_limit_has_its_text_and_its_id_for_ever() {
    let n = names();
    let capacity = |namespace| Label::Capacity { namespace, key: &n.key, change: 3, attempt: 2 };
    let cleared = |namespace| Label::Cleared { namespace, key: &n.key, change: 3, attempt: 2 };
    let key = "global:llm:openai:gpt-4o:rpm";
    check([
        (Label::OperatorAccount, "acct:operator".into(), 0xee06f35fb94212edc7e42a11203bfca8_u128),
        (Label::LeaseAccount, "acct:lease".into(), 0xcef6568b1824d4a791c19aa4b9ad43f0),
        (Label::LimitAccount(&n.default, &n.key), format!("acct:limit:{key}"), 0x5d3c6e5c7ffc849315cfc5f4cb10615e),
        (Label::DebtAccount(&n.default, &n.key), format!("acct:debt:{key}"), 0x60252f1a5f7dda02bb62ab3ccc0944be),
        (Label::Void(n.lease(), n.limit()), format!("xfer:void:{LEASE}:{key}"), 0xa02759defd3c1c8e50e75a2a9b5a5732),
        (
            Label::Rereserve(n.lease(), n.limit()),
            format!("xfer:rereserve:{LEASE}:{key}"),
            0x439ef228da893cd05baba58fb94694f8,
        ),
        (Label::Debt(n.lease(), n.limit()), format!("xfer:debt:{LEASE}:{key}"), 0x580364cfcf88708b7c123074a6ca4d0d),
        (Label::LeaseAnchor(&n.default, n.lease), format!("xfer:lease:{LEASE}"), 0x1da2366cd70c4a4f9090a7ac89ad7a02),
        (
            Label::LeaseComplete(&n.default, n.lease),
            format!("xfer:complete:{LEASE}"),
            0x5cf415c927578da6bd1daca081242246,
        ),
        (capacity(&n.default), format!("xfer:capacity:{key}:3:2"), 0xae7629e5bbf5d39ad43d4f8fc0fd7a90),
        (cleared(&n.default), format!("xfer:cleared:{key}:3:2"), 0x53f7e0d824d57486951dc6038c8d6b33),
        (Label::Lease(&n.default, n.lease), format!("lease:default:{LEASE}"), 0x81ceedadbb147f5876646f5d70a0971a),
    ]);
}

#[test]
fn every_label_of_another_namespace_has_its_text_and_its_id_for_ever() {
    let n = names();
    let capacity = |namespace| Label::Capacity { namespace, key: &n.key, change: 3, attempt: 2 };
    let cleared = |namespace| Label::Cleared { namespace, key: &n.key, change: 3, attempt: 2 };
    let key = "global:llm:openai:gpt-4o:rpm";
    check([
        (
            Label::LimitAccount(&n.team, &n.key),
            format!("acct:limit:!team-a:{key}"),
            0x2889cd7df5878fecfa0eeba0e773fa93_u128,
        ),
        (Label::DebtAccount(&n.team, &n.key), format!("acct:debt:!team-a:{key}"), 0x70c38d938e82ef421d4bbd0b5b9475a0),
        (
            Label::Reserve(n.team_lease(), n.team_limit()),
            format!("xfer:reserve:!team-a:{LEASE}:!team-a:{key}"),
            0x5a1cb4ebd1008094f3c0e78ff26e7c5f,
        ),
        (
            Label::Reserve(n.team_lease(), n.limit()),
            format!("xfer:reserve:!team-a:{LEASE}:{key}"),
            0x8960027dfb4c6414fb5c57914e82d8ad,
        ),
        (
            Label::Reserve(n.lease(), n.team_limit()),
            format!("xfer:reserve:{LEASE}:!team-a:{key}"),
            0xad450ca8d8713aa8f30a5b6ff331c20c,
        ),
        (
            Label::Void(n.team_lease(), n.team_limit()),
            format!("xfer:void:!team-a:{LEASE}:!team-a:{key}"),
            0x275463b91c853778ac92c57dd5ecc6bd,
        ),
        (
            Label::Rereserve(n.team_lease(), n.limit()),
            format!("xfer:rereserve:!team-a:{LEASE}:{key}"),
            0x8e30ed3a13cea24475b605662c9c7d1f,
        ),
        (
            Label::Debt(n.lease(), n.team_limit()),
            format!("xfer:debt:{LEASE}:!team-a:{key}"),
            0x84b7849c1d4fd9ed62e83eb6f05b05a6,
        ),
        (
            Label::LeaseAnchor(&n.team, n.lease),
            format!("xfer:lease:!team-a:{LEASE}"),
            0x321fa61b544dc730da995ea01abcf38c,
        ),
        (
            Label::LeaseComplete(&n.team, n.lease),
            format!("xfer:complete:!team-a:{LEASE}"),
            0xb31992e237ebf166ff9b719c989a3986,
        ),
        (capacity(&n.team), format!("xfer:capacity:!team-a:{key}:3:2"), 0xa3b49852073a0106761b812ffdec067c),
        (cleared(&n.team), format!("xfer:cleared:!team-a:{key}:3:2"), 0xe5d9d1e783a744b693b285b339f7cd3a),
    ]);
}

/// Labels of another namespace began with `<namespace>/`. Since keys may have a `/`, the key `team-a/rpm` of `default`
/// would have shared the account of the key `rpm` of `team-a`.
#[test]
fn keys_with_every_character_do_not_collide_with_labels_of_another_namespace() {
    let n = names();
    let rpm: LimitKey = "rpm".parse().unwrap();
    let of_team = Label::LimitAccount(&n.team, &rpm).to_string();
    for key in ["team-a/rpm", "team-a:rpm", "%21team-a:rpm", "|team-a:rpm"] {
        let key: LimitKey = key.parse().unwrap();
        assert_ne!(Label::LimitAccount(&n.default, &key).to_string(), of_team);
    }
    assert!(LimitKey::new("!team-a:rpm").is_err());
}

#[test]
fn every_label_of_an_entry_has_its_text_and_its_id_for_ever() {
    let n = names();
    let entry = |what| Label::Entry(&n.default, &n.vault, what);
    let growth = |number, attempt| GrowthAttempt { number, attempt };
    let key = "global:llm:openai:gpt-4o:rpm";
    check([
        (
            entry(EntryPurpose::Transaction(&n.client, 7)),
            "entry:default:main:tx:billing:7".into(),
            0xc7d3791fa43af68e7ad6d761885198d5,
        ),
        (
            entry(EntryPurpose::Hold(n.lease, &n.key)),
            format!("entry:default:main:hold:{LEASE}:{key}"),
            0x832a52e984e4e29de1316266921824c5,
        ),
        (
            entry(EntryPurpose::Settle(n.lease, &n.key)),
            format!("entry:default:main:settle:{LEASE}:{key}"),
            0x8fb7fd6b8d8b556af30631d3b7125b4c,
        ),
        (
            entry(EntryPurpose::Release(n.lease, &n.key)),
            format!("entry:default:main:release:{LEASE}:{key}"),
            0xb97c17ecbe06ed8b9db289e8b49f2669,
        ),
        (
            entry(EntryPurpose::Extend(n.lease, growth(3, 0), &n.key)),
            format!("entry:default:main:extend:{LEASE}:3:{key}"),
            0x73c721b8ea30d00677b47a4c81d1ca66,
        ),
        (
            entry(EntryPurpose::Extend(n.lease, growth(3, 2), &n.key)),
            format!("entry:default:main:extend:{LEASE}:3.2:{key}"),
            0x1e099f25f0f224602034527fc9ac24d8,
        ),
        (
            entry(EntryPurpose::Return(n.lease, growth(3, 2), &n.key)),
            format!("entry:default:main:return:{LEASE}:3.2:{key}"),
            0x1f43f58018bac5faf6d42f5b234b2664,
        ),
        (
            entry(EntryPurpose::Late(n.lease, &n.key)),
            format!("entry:default:main:late:{LEASE}:{key}"),
            0x6d0529ceba947cffd00e64b7ef599718,
        ),
        (
            entry(EntryPurpose::First(n.lease, 1)),
            format!("entry:default:main:first:{LEASE}:1"),
            0x1cb26bb1f2430159634ce44e189c512d,
        ),
        (
            entry(EntryPurpose::Key(&n.once)),
            "entry:default:main:key:invoice-7".into(),
            0x51fb2242f08cd255c7b9769bb17716a9,
        ),
        (
            entry(EntryPurpose::OverdraftMark(&"acme".parse().unwrap(), &"usd".parse().unwrap())),
            "entry:default:main:overdraft:usd:acme".into(),
            0xcdb8e4416f68c1b502b4316dab284f5d,
        ),
    ]);
}

#[test]
fn zero_and_the_maximum_are_no_ids_so_their_lowest_bit_flips() {
    assert_eq!(id128_with(|_| [0; 32], "any").to_u128(), 1);
    assert_eq!(id128_with(|_| [0xff; 32], "any").to_u128(), u128::MAX - 1);
    assert_eq!(id128_with(|_| [1; 32], "any").to_u128(), u128::from_le_bytes([1; 16]));
}

#[test]
fn only_the_first_sixteen_bytes_count_and_the_first_is_the_lowest() {
    let digest = |_: &[u8]| std::array::from_fn(|i| u8::try_from(i).unwrap());
    assert_eq!(id128_with(digest, "any").to_u128(), 0x0f0e0d0c0b0a09080706050403020100);
}
