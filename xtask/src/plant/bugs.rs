//! Bugs that the simulation must find, as edits of the source.

/// One bug.
pub(crate) struct Bug {
    pub(crate) name: &'static str,
    /// A description of the bug.
    pub(crate) what: &'static str,
    pub(crate) edits: &'static [Edit],
    /// The test that finds it.
    pub(crate) test: &'static str,
}

/// One replacement in one file. `from` occurs exactly once.
pub(crate) struct Edit {
    pub(crate) path: &'static str,
    pub(crate) from: &'static str,
    pub(crate) to: &'static str,
}

/// Adds a switch that turns off duplicate detection.
const LET_CORE: Edit = Edit {
    path: "crates/core/src/lib.rs",
    from: "pub use book::*;",
    to: "thread_local! { pub static DEDUPE: std::cell::Cell<bool> = const { std::cell::Cell::new(true) }; }\npub use book::*;",
};
/// Applies a duplicate write as a new one while the switch is off.
const LET_SEQUENCE: Edit = Edit {
    path: "crates/core/src/sequence.rs",
    from: "            Some(kept) if kept.content == content => Verdict::Committed(&kept.result),",
    to: "            Some(kept) if kept.content == content && crate::DEDUPE.get() => Verdict::Committed(&kept.result),\n            Some(kept) if kept.content == content => Verdict::Next(SequenceClaim { hash, stream }),",
};
/// Adds the node id and a flag for the first entry to the state machine.
const LET_STRUCT: Edit = Edit {
    path: "crates/node/src/state_machine.rs",
    from: "pub struct BookStateMachine {\n",
    to: "pub struct BookStateMachine {\n    pub(crate) id: u64,\n    is_first: bool,\n",
};
/// Initialises the added fields.
const LET_NEW: Edit = Edit {
    path: "crates/node/src/state_machine.rs",
    from: "        BookStateMachine { applied_state, reader: BatchReader::default() }",
    to: "        BookStateMachine { id: 0, is_first: true, applied_state, reader: BatchReader::default() }",
};
/// Sets the node id.
const LET_NODE: Edit = Edit {
    path: "crates/node/src/node.rs",
    from: "        let machine = BookStateMachine::new(Arc::clone(&applied_state));",
    to: "        let mut machine = BookStateMachine::new(Arc::clone(&applied_state));\n        machine.id = id;",
};

pub(crate) const BUGS: [Bug; 10] = [
    Bug {
        name: "ack-before-fsync",
        what: "an append is acknowledged before it is on disk",
        edits: &[Edit { path: "crates/node/src/raft_log/files.rs", from: "        sync_file(&tail.file)?;", to: "" }],
        test: "three_nodes",
    },
    Bug {
        name: "dedupe-on-leader",
        what: "a write that is in the log twice is recognised by the leader, and not by the others",
        edits: &[
            LET_CORE,
            LET_SEQUENCE,
            LET_STRUCT,
            LET_NEW,
            LET_NODE,
            Edit {
                path: "crates/node/src/state_machine.rs",
                from: "        let index = entry.log_id.index;",
                to: "        let index = entry.log_id.index;\n        earmark_core::DEDUPE.set(entry.log_id.leader_id.node_id == self.id);",
            },
        ],
        test: "three_nodes",
    },
    Bug {
        name: "forget-vote",
        what: "a node that starts has forgotten whom it voted for",
        edits: &[Edit {
            path: "crates/node/src/raft_log.rs",
            from: "        Ok(LogStore { reader, queue, vote: Arc::new(Mutex::new(vote)), context })",
            to: "        let _ = vote;\n        Ok(LogStore { reader, queue, vote: Arc::new(Mutex::new(None)), context })",
        }],
        test: "three_nodes",
    },
    Bug {
        name: "apply-twice",
        what: "a node that starts applies its first entry twice, and trusts the log to hold no copies",
        edits: &[
            LET_CORE,
            LET_SEQUENCE,
            LET_STRUCT,
            LET_NEW,
            LET_NODE,
            Edit {
                path: "crates/node/src/state_machine.rs",
                from: "                    None => self.reader.apply(&mut state.book, index, &batch).map_err(|error| failed(&error))?,",
                to: "                    None => {\n                        let outcomes = self.reader.apply(&mut state.book, index, &batch).map_err(|error| failed(&error))?;\n                        if std::mem::take(&mut self.is_first) {\n                            earmark_core::DEDUPE.set(false);\n                            let _ = self.reader.apply(&mut state.book, index, &batch);\n                            earmark_core::DEDUPE.set(true);\n                        }\n                        outcomes\n                    }",
            },
        ],
        test: "three_nodes",
    },
    Bug {
        name: "local-clock",
        what: "entries are applied at the time of the node's own clock, and not at that of the entry",
        edits: &[
            Edit {
                path: "crates/node/src/state_machine.rs",
                from: "pub struct BookStateMachine {\n",
                to: "pub struct BookStateMachine {\n    pub(crate) clock: Option<Arc<crate::clock::NodeClock>>,\n",
            },
            Edit {
                path: "crates/node/src/state_machine.rs",
                from: "        BookStateMachine { applied_state, reader: BatchReader::default() }",
                to: "        BookStateMachine { clock: None, applied_state, reader: BatchReader::default() }",
            },
            Edit {
                path: "crates/node/src/state_machine.rs",
                from: "                    None => self.reader.apply(&mut state.book, index, &batch).map_err(|error| failed(&error))?,",
                to: "                    None => {\n                        let mut bytes = batch.0.to_vec();\n                        if let Some(clock) = &self.clock {\n                            let wall = clock.wall();\n                            bytes[1..9].copy_from_slice(&wall.get().to_le_bytes());\n                        }\n                        let batch = crate::types::Batch(bytes.into());\n                        self.reader.apply(&mut state.book, index, &batch).map_err(|error| failed(&error))?\n                    }",
            },
            Edit {
                path: "crates/node/src/node.rs",
                from: "        let machine = BookStateMachine::new(Arc::clone(&applied_state));",
                to: "        let mut machine = BookStateMachine::new(Arc::clone(&applied_state));\n        machine.clock = Some(Arc::clone(&clock));",
            },
        ],
        test: "three_nodes",
    },
    Bug {
        name: "stale-leader",
        what: "a leader answers reads without asking whether it still leads",
        edits: &[Edit {
            path: "crates/node/src/reads.rs",
            from: "    match timeout(node.deadline, node.raft.get_read_log_id()).await {",
            to: "    let applied = node.raft.metrics().borrow().last_applied;\n    match timeout(node.deadline, async { Ok::<_, RaftError<u64, CheckIsLeaderError<u64, crate::types::Member>>>((applied, ())) }).await {",
        }],
        test: "three_nodes",
    },
    Bug {
        name: "leader-again",
        what: "a leader that starts again in its own term answers reads before it has committed what it had",
        edits: &[Edit {
            path: "crates/node/src/reads.rs",
            from: "let index = read.map(|id| id.index).max(last_leadership);",
            to: "let index = read.map(|id| id.index).max(last_leadership.filter(|_| false));",
        }],
        test: "starts_again",
    },
    Bug {
        name: "early-follower",
        what: "a follower answers reads before it has applied what the leader told it to wait for",
        edits: &[Edit {
            path: "crates/node/src/reads.rs",
            from: "                            node.applied_state.applied(index).await;",
            to: "                            let _ = index;",
        }],
        test: "three_nodes",
    },
    Bug {
        name: "stale-limit-id",
        what: "the id of a deleted limit names the limit that has its slot now",
        edits: &[Edit {
            path: "crates/core/src/limits/table.rs",
            from: "filter(|limit| limit.generation == id.generation)",
            to: "filter(|limit| limit.generation >= id.generation)",
        }],
        test: "three_nodes",
    },
    Bug {
        name: "freed-under-a-lease",
        what: "the slot of a deleted limit is given away although a lease still names it",
        edits: &[Edit {
            path: "crates/core/src/limits.rs",
            from: "limit.phase == Phase::Deleted && limit.leases == 0",
            to: "limit.phase == Phase::Deleted",
        }],
        test: "three_nodes",
    },
];
