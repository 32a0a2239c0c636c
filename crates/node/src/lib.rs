//! A durable, replicated Book. Commands go into a Raft log on disk; every node applies the log to its own Book.

mod auth;
mod backup;
mod batch;
mod book_host;
mod bootstrap;
mod clock;
mod decisions;
mod disk;
mod entry;
mod failure;
mod fault;
mod founder_file;
mod founding;
mod identity;
mod invitations;
mod journal;
mod members;
mod net;
mod network;
mod node;
mod peer_server;
mod peers;
mod proposer;
mod raft_log;
mod reads;
mod roster;
mod runtime;
mod service;
mod slots;
mod snapshot;
mod space;
mod state_machine;
mod storage;
mod tls;
mod types;
mod vote;

pub use backup::{Backup, recover};
pub use book_host::NodeBookHost;
pub use decisions::DecisionFiles;
pub use disk::{Disk, DiskFile, RealDisk};
pub use failure::Failure;
pub use fault::{Fault, Operation};
pub use identity::{Expected, Folder, FolderLock, Identity};
pub use journal::{Journal, JournalEntry, JournalOptions, JournalPosition, JournalStream};
pub use net::{
    BoxFuture, ChannelListener, Connection, Listener, Net, PeerIdentity, RealNet, Resolve, Stream, SystemResolver,
};
pub use node::{Node, NodeBackend, NodeError, NodeOptions, Timing, stores};
pub use raft_log::{Flushed, LogReader, LogStore, Options as LogOptions};
pub use runtime::{Random, Runtime, seed_randomness};
pub use snapshot::SnapshotData;
pub use space::{DiskReserve, DiskSpace};
pub use state_machine::{BookStateMachine, SnapshotBuilder};
pub use tls::{PeerFiles, PeerTlsError, TlsNet};
pub use types::{Applied, Batch, Entry, LogId, Member, Types, Vote};
