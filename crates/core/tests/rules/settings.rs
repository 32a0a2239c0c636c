//! Settings change while the Book runs, and everything decided before stays decided.

use earmark_core::{Config, ConfigureOutcome, Outcome, ReserveOutcome, Setting, SettingChange};

use crate::support::snapshot::{restore, snapshot};
use crate::support::step::Step;
use crate::support::test_book::{TestBook, concurrency, rolling};

fn configure(test: &mut TestBook, setting: Setting, value: u64) -> Outcome {
    test.apply(&Step::Configure(vec![SettingChange { setting, value }]))
}

const CONFIGURED: Outcome = Outcome::Configure(ConfigureOutcome::Configured);

#[test]
fn a_value_outside_the_allowed_range_changes_none_of_the_settings() {
    let mut test = TestBook::new();
    for setting in Setting::ALL {
        let bad = SettingChange { setting, value: setting.allowed().end() + 1 };
        let good = SettingChange { setting: Setting::LeasesMax, value: 5 };
        let outcome = test.apply(&Step::Configure(vec![good, bad]));
        assert_eq!(outcome, Outcome::Configure(ConfigureOutcome::Invalid(bad)));
    }
    assert_eq!(*test.book.config(), Config::default());
}

#[test]
fn every_setting_takes_each_end_of_its_range_and_survives_a_snapshot() {
    for setting in Setting::ALL {
        let range = setting.allowed();
        for value in [*range.start(), *range.end()] {
            let mut test = TestBook::new();
            assert_eq!(configure(&mut test, setting, value), CONFIGURED);
            assert_eq!(test.book.config().get(setting), value, "{setting:?}");
            let bytes = snapshot(&mut test.book);
            let restored = restore(&bytes, 7, 3).unwrap();
            assert_eq!(restored.config(), test.book.config(), "{setting:?}");
        }
    }
}

/// The decoder refused a snapshot with more leases than its settings allow, which no Book had before settings could
/// change.
#[test]
fn fewer_leases_than_there_are_refuse_new_ones_and_end_none() {
    let mut test = TestBook::new();
    test.put_active(concurrency("slots", 10, 60));
    let leases: Vec<_> = (0..5).map(|_| test.take(&[("slots", 1)])).collect();
    assert_eq!(configure(&mut test, Setting::LeasesMax, 2), CONFIGURED);
    let fresh = test.lease();
    assert_eq!(test.reserve(fresh, &[("slots", 1)]), ReserveOutcome::Overloaded);
    let bytes = snapshot(&mut test.book);
    test.book = restore(&bytes, bytes.len(), 1).unwrap();
    assert_eq!(test.book.leases(), 5);
    for lease in leases {
        assert!(matches!(test.reserve(lease, &[("slots", 1)]), ReserveOutcome::Exists { .. }));
    }
    assert_eq!(configure(&mut test, Setting::LeasesMax, 6), CONFIGURED);
    assert!(matches!(test.reserve(fresh, &[("slots", 1)]), ReserveOutcome::Created { .. }));
}

#[test]
fn a_shorter_retention_forgets_leases_that_ended_before_it_changed() {
    let mut test = TestBook::new();
    test.put_active(rolling("rpm", 10, 1));
    let lease = test.take(&[("rpm", 1)]);
    test.advance(10_000);
    assert!(test.info(lease).is_some());
    assert_eq!(configure(&mut test, Setting::RetentionMs, 5_000), CONFIGURED);
    assert_eq!(test.info(lease), None);
    test.tick();
    assert_eq!(test.book.leases(), 0);
    assert!(matches!(test.reserve(lease, &[("rpm", 1)]), ReserveOutcome::LeaseTooOld { .. }));
}

#[test]
fn a_longer_retention_remembers_leases_that_ended_before_it_changed() {
    let mut test = TestBook::with(Config { retention_ms: 5_000, ..Config::default() });
    test.put_active(rolling("rpm", 10, 1));
    let lease = test.take(&[("rpm", 1)]);
    test.advance(3_000);
    assert_eq!(configure(&mut test, Setting::RetentionMs, 60_000), CONFIGURED);
    test.advance(50_000);
    test.tick();
    assert!(test.info(lease).is_some());
}

#[test]
fn a_denial_gets_the_hint_of_the_settings_in_force() {
    let mut test = TestBook::new();
    test.put_active(concurrency("slots", 1, 60));
    test.take(&[("slots", 1)]);
    assert_eq!(configure(&mut test, Setting::HintJitterPercent, 0), CONFIGURED);
    assert_eq!(configure(&mut test, Setting::HintConcurrencyBaseMs, 700), CONFIGURED);
    let (_, denial) = test.denied(&[("slots", 1)]);
    assert_eq!(denial.retry_after_ms, 700);
}
