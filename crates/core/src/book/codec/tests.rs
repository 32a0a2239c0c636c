use super::*;
use crate::book::{CallMark, Extend, ExtendStep};
use crate::time::UnixMs;

/// Nodes of one cluster may run different builds during an upgrade. Add a line for a new command; do not change one.
#[test]
fn the_bytes_of_a_command_never_change() {
    let namespace = NamespaceId(0x0102);
    let lease = LeaseId::from_parts(UnixMs::new(3), 4);
    let name = NamespaceName::new("team").unwrap();
    let key = LimitKey::new("rpm").unwrap();
    let job = JobId::new("j").unwrap();
    let parts = [
        Part { limit: LimitRef::Id(LimitId { slot: 6, generation: 3 }), amount: 7 },
        Part { limit: LimitRef::Key(key.clone()), amount: 8 },
    ];
    let shared = ForeignLimit { namespace: name.clone(), key: key.clone() };
    let foreign = [Part { limit: LimitRef::Foreign(Box::new(shared)), amount: 9 }];
    let external = ExternalParts { limits: true, credit: false };
    let lease_bytes = "020104000000000000000000030000000000";
    let labels = &SettleLabels::NONE;
    let reserve = Reserve { namespace, lease, job: None, call: None, by_gateway: false, requirements: &[] };
    for (command, hex) in [
        (Command::OpenNamespace(&name), "01040000007465616d".to_owned()),
        (
            Command::DeleteLimit(DeleteLimit { namespace, key: &key, expected_revision: Some(9) }),
            "0302010109000000000000000300000072706d".to_owned(),
        ),
        (
            Command::Reserve(Reserve { requirements: &parts, ..reserve }),
            format!("04{lease_bytes}{}", "020000000106000000030000000700000000000000020300000072706d0800000000000000"),
        ),
        (
            Command::Reserve(Reserve { job: Some(&job), requirements: &parts[..1], ..reserve }),
            format!("0d{lease_bytes}{}", "010000006a010000000106000000030000000700000000000000"),
        ),
        (
            Command::Complete(Complete {
                namespace,
                lease,
                claim: LeaseClaim::default(),
                actuals: &parts[..1],
                labels,
            }),
            format!("05{lease_bytes}{}", "010000000106000000030000000700000000000000"),
        ),
        (
            Command::Complete(Complete { namespace, lease, claim: LeaseClaim::default(), actuals: &foreign, labels }),
            format!("05{lease_bytes}{}", "0100000003040000007465616d0300000072706d0900000000000000"),
        ),
        (Command::Tick, "06".to_owned()),
        (Command::AdvanceTime(UnixMs::new(5)), "0b0500000000000000".to_owned()),
        (Command::Release(Release { namespace, lease }), format!("08{lease_bytes}")),
        (
            Command::DropLimit(DropLimit { namespace, key: &key, revision: 9 }),
            "09020109000000000000000300000072706d".to_owned(),
        ),
        (
            Command::Configure(&[SettingChange { setting: Setting::LeasesMax, value: 7 }]),
            "0c01000000020700000000000000".to_owned(),
        ),
        (Command::SetExternal(external.into()), "0a0100".to_owned()),
        (
            Command::SetExternal(ExternalSetup { parts: external, ledger: Some(7) }),
            "0a020007000000000000000000000000000000".to_owned(),
        ),
    ] {
        let mut bytes = Vec::new();
        command.encode(&mut bytes);
        let found: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(found, hex, "{command:?}");
    }
}

#[test]
fn the_bytes_of_marked_commands_never_change() {
    let namespace = NamespaceId(0x0102);
    let lease = LeaseId::from_parts(UnixMs::new(3), 4);
    let job = JobId::new("j").unwrap();
    let labels = SettleLabels::new([("b", "2"), ("a", "1")]).unwrap();
    let parts = [Part { limit: LimitRef::Id(LimitId { slot: 6, generation: 3 }), amount: 7 }];
    let lease_bytes = "020104000000000000000000030000000000";
    for (command, hex) in [
        (
            Command::Reserve(Reserve {
                namespace,
                lease,
                job: Some(&job),
                call: Some(CallMark { attributes: 1, bounds: 2, policy_revision: 3 }),
                by_gateway: true,
                requirements: &parts,
            }),
            format!(
                "12{lease_bytes}07{}{}",
                "01000000020000000300000000000000", "010000006a010000000106000000030000000700000000000000"
            ),
        ),
        (
            Command::Complete(Complete {
                namespace,
                lease,
                claim: LeaseClaim { attributes: Some(5), by_gateway: true },
                actuals: &[],
                labels: &SettleLabels::NONE,
            }),
            format!("13{lease_bytes}030500000000000000"),
        ),
        (
            Command::Complete(Complete {
                namespace,
                lease,
                claim: LeaseClaim::default(),
                actuals: &[],
                labels: &labels,
            }),
            format!("14{lease_bytes}000201000000610100000031010000006201000000{}", "3200000000"),
        ),
    ] {
        let mut bytes = Vec::new();
        command.encode(&mut bytes);
        let found: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(found, hex, "{command:?}");
        assert_eq!(CommandBuffer::default().decode(&bytes), Ok((command, bytes.len())));
    }
}

#[test]
fn the_bytes_of_an_extension_never_change() {
    let namespace = NamespaceId(0x0102);
    let lease = LeaseId::from_parts(UnixMs::new(3), 4);
    let parts = [7, 8].map(|amount| Part { limit: LimitRef::Key(LimitKey::new("rpm").unwrap()), amount });
    let (add, used) = parts.split_at(1);
    use ExtendStep::{Begin, Deny, DenyClosed, DenyFrozen, Grow, Judge, Renew, Return, Whole};
    let begin = Begin { reserved_at: UnixMs::new(0x0203) };
    let steps = [Whole, Grow, Return, Renew, Judge, Deny, DenyFrozen, DenyClosed, begin];
    for (step, code) in steps.into_iter().zip(1_u8..) {
        let command = Command::Extend(Extend {
            namespace,
            lease,
            number: 5,
            add,
            used,
            claim: LeaseClaim::default(),
            renew: true,
            step,
        });
        let mut bytes = Vec::new();
        command.encode(&mut bytes);
        let found: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let head = "1102010400000000000000000003000000000005000000";
        let tail = "010001000000020300000072706d070000000000000001000000020300000072706d0800000000000000";
        let time = if step == begin { "0302000000000000" } else { "" };
        assert_eq!(found, format!("{head}{code:02x}{time}{tail}"), "{step:?}");
        assert_eq!(CommandBuffer::default().decode(&bytes), Ok((command, bytes.len())));
    }
}
