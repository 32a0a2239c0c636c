//! Admission control behind one trait, [`Backend`], and its in-memory implementation, [`LocalBook`].
//!
//! A backend takes batches and answers by position. Every backend gives the answers of the Book and passes the suite in
//! `conformance`.

mod answer;
mod applied;
mod backend;
mod book_credits;
mod book_extend;
mod book_host;
mod book_limits;
mod book_request;
mod callers;
mod clock;
mod cluster;
mod composed;
#[cfg(feature = "conformance")]
#[allow(clippy::expect_used, clippy::panic, reason = "these are tests")]
pub mod conformance;
mod credit_lists;
mod credits;
mod document;
mod expired;
mod extend;
mod fullness;
mod history;
mod lease_view;
mod limits;
mod limits_file;
mod local;
mod names;
mod pauses;
mod policies;
mod private_files;
mod quotas;
mod record_store;
mod registry;
mod settings;
mod statement;
mod submitter;
mod templates;
mod usage;
mod writes;

pub use applied::{AppliedUsage, LimitOverage, TimedOutLease};
pub use backend::*;
pub use book_credits::BookCredits;
pub use book_host::{BookBackend, BookHost};
pub use book_limits::BookLimits;
pub use book_request::{Answered, Applied, BookRequest, Submission};
pub use callers::*;
pub use clock::{Clock, LogTime, ManualClock, SystemClock, SystemTimeSource, TimeSource, utc, utc_from};
pub use cluster::*;
pub use composed::{CREDIT_RETRY_MS, Composed};
pub use credit_lists::{
    AccountPage, AccountQuery, AccountView, EntryCollector, EntryOrder, EntryQuery, VaultPage, VaultQuery,
};
pub use credits::*;
pub use document::{LimitDocument, TemplateDocument};
pub use expired::{EXPIRED_HOLDS, count_expired, count_expired_hold, register_expired, watch_expiry};
pub use extend::{ExtendAnswer, ExtendRequest};
pub use fullness::LimitFullness;
pub use history::{AccountSum, ChangePager, Sums, entry_view, summary};
pub use lease_view::LeaseView;
pub use limits::*;
pub use limits_file::{LimitsFileError, NamespacedLimits, read_limits};
pub use local::{Local, LocalBook, LocalOptions};
pub use names::{NameHash, NameHasher};
pub use pauses::PauseLimitRequest;
pub use policies::PolicyError;
pub use private_files::{create_private, create_private_dir, exposure, private_file, restrict};
pub use quotas::{QuotaError, describe_quota, quota_code};
pub use record_store::{
    MemoryRecords, RECORD_BYTES_MAX, RECORDS_BYTES_MIN, RecordBounds, RecordSegment, RecordStore, StoredRecord,
};
pub use registry::PlacementError;
pub use settings::SettingEdit;
pub use statement::*;
pub use submitter::{BatchTarget, Direction, PendingItem, Submitter};
pub use templates::{DeleteTemplateRequest, PutTemplateRequest};
pub use usage::{UsageError, UsagePage, UsageQuery};
pub use writes::*;
