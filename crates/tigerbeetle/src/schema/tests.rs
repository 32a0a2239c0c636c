//! Tests of ids, bits and chains.

use super::*;

fn key(name: &str) -> LimitKey {
    name.parse().unwrap()
}

#[test]
fn the_check_values_of_the_design_hold() {
    assert_eq!(CommonAccounts::new().operator, 0xee06f35fb94212edc7e42a11203bfca8);
    let lease = LeaseName::new("default".parse().unwrap(), "01J00000000000000000000000".parse().unwrap());
    assert_eq!(
        lease.reserve_id(Some(&LimitName::in_default("global:llm:openai:gpt-4o:rpm")), 0, PartVersion::default()),
        0xc45e760e52ab0d347b2806411077b034
    );
}

/// Fingerprints are stored: with another algorithm every retry would look like other requirements.
#[test]
fn a_fingerprint_is_for_ever() {
    let (rpm, tpm) = (key("rpm"), key("tpm"));
    assert_eq!(fingerprint([(&rpm, 1), (&tpm, 60)].into_iter()), 0x161e4757ed93108e);
    assert_ne!(fingerprint([(&rpm, 1)].into_iter()), fingerprint([(&rpm, 2)].into_iter()));
    assert_ne!(fingerprint([(&rpm, 1)].into_iter()), fingerprint([(&tpm, 1)].into_iter()));
}

#[test]
fn a_void_has_an_id_even_where_the_key_is_lost() {
    let lease = LeaseName::new("default".parse().unwrap(), "01J00000000000000000000000".parse().unwrap());
    let rpm = LimitName::in_default("rpm");
    let first = PartVersion::default();
    assert_ne!(lease.void_id(Some(&rpm), 7, first), lease.void_id(None, 7, first));
    assert_ne!(lease.void_id(None, 7, first), lease.void_id(None, 8, first));
    assert_ne!(lease.void_id(Some(&rpm), 7, first), lease.void_id(Some(&rpm), 7, first.next_round()));
}

/// Two transfers with one id would be one transfer.
#[test]
fn every_version_of_a_reservation_has_ids_of_its_own() {
    let lease = LeaseName::new("default".parse().unwrap(), "01J00000000000000000000000".parse().unwrap());
    let rpm = LimitName::in_default("rpm");
    let mut ids = vec![lease.end_id()];
    for extension in [0, 1, 2, 11, 12] {
        ids.extend([lease.anchor_id(extension), lease.next_anchor(extension).id]);
        ids.push(lease.used(&CommonAccounts::new(), extension, &rpm, 1).id);
        for (round, name) in [(0, Some(&rpm)), (1, Some(&rpm)), (2, Some(&rpm)), (0, None), (1, None)] {
            let version = PartVersion { extension, round };
            assert_eq!(PartVersion::from_bits(version.bits() | 0xffff), version);
            ids.extend([lease.reserve_id(name, 7, version), lease.void_id(name, 7, version)]);
        }
    }
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count);
}

#[test]
fn an_anchor_is_read_as_it_was_made() {
    let lease = LeaseName::new("default".parse().unwrap(), "01J00000000000000000000000".parse().unwrap());
    for decision in [
        Decision::Reserved,
        Decision::Extended,
        Decision::Denied { rank: 31, never: true },
        Decision::Denied { rank: 0, never: false },
        Decision::Short { rank: 3, why: CreditShortage::Closed },
    ] {
        for (number, has_credit) in [(0, false), (1, true), (10_000, false)] {
            let (is_call, by_gateway) = (has_credit, number == 0);
            let anchor = Anchor { amount: 5, is_call, by_gateway, ..Anchor::made(number, 7, decision, has_credit) };
            let transfer = lease.anchor(&CommonAccounts::new(), &anchor);
            assert_eq!(Anchor::read(&transfer), Some(anchor));
            assert!(has(transfer.flags, TransferFlags::Pending));
            assert_eq!(Anchor::read(&lease.end(number, Ending::Completed)), None);
        }
    }
}

#[test]
fn a_chain_is_linked_up_to_its_last_transfer() {
    let mut chain = [Transfer::default(); 3];
    link(&mut chain);
    assert_eq!(chain.map(|transfer| has(transfer.flags, TransferFlags::Linked)), [true, true, false]);
    link(&mut []);
}
