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
    assert_eq!(Label::Reserve(&n.default, n.lease, &n.key).id().to_u128(), 0xc45e760e52ab0d347b2806411077b034);
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
        (
            Label::Void(&n.default, n.lease, &n.key),
            format!("xfer:void:{LEASE}:{key}"),
            0xa02759defd3c1c8e50e75a2a9b5a5732,
        ),
        (
            Label::Rereserve(&n.default, n.lease, &n.key),
            format!("xfer:rereserve:{LEASE}:{key}"),
            0x439ef228da893cd05baba58fb94694f8,
        ),
        (
            Label::Debt(&n.default, n.lease, &n.key),
            format!("xfer:debt:{LEASE}:{key}"),
            0x580364cfcf88708b7c123074a6ca4d0d,
        ),
        (Label::LeaseAnchor(&n.default, n.lease), format!("xfer:lease:{LEASE}"), 0x1da2366cd70c4a4f9090a7ac89ad7a02),
        (
            Label::LeaseComplete(&n.default, n.lease),
            format!("xfer:complete:{LEASE}"),
            0x5cf415c927578da6bd1daca081242246,
        ),
        (capacity(&n.default), format!("xfer:capacity:{key}:3:2"), 0xae7629e5bbf5d39ad43d4f8fc0fd7a90),
        (cleared(&n.default), format!("xfer:cleared:{key}:3:2"), 0x53f7e0d824d57486951dc6038c8d6b33),
        (Label::Lease(&n.default, n.lease), format!("lease:default:{LEASE}"), 0x81ceedadbb147f5876646f5d70a0971a),
        (Label::LimitAccount(&n.team, &n.key), format!("acct:limit:team-a/{key}"), 0xd286f60f9176838632e75fe359e9afcc),
        (
            Label::Reserve(&n.team, n.lease, &n.key),
            format!("xfer:reserve:{LEASE}:team-a/{key}"),
            0x61b06d0f6abf8d09311c586d1e545d6a,
        ),
        (
            Label::LeaseAnchor(&n.team, n.lease),
            format!("xfer:lease:team-a/{LEASE}"),
            0xde03b2cfabd619e4af40d61c20db8134,
        ),
        (capacity(&n.team), format!("xfer:capacity:team-a/{key}:3:2"), 0xb5bc23d1164f4d4e24679dae7256799e),
        (cleared(&n.team), format!("xfer:cleared:team-a/{key}:3:2"), 0x332fe35df760e9c18b11237015b1d596),
    ]);
}

#[test]
fn every_label_of_an_entry_has_its_text_and_its_id_for_ever() {
    let n = names();
    let entry = |what| Label::Entry(&n.default, &n.vault, what);
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
            entry(EntryPurpose::Key(&n.once)),
            "entry:default:main:key:invoice-7".into(),
            0x51fb2242f08cd255c7b9769bb17716a9,
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
