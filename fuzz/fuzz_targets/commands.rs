//! Random commands never panic, and the Book survives a snapshot unchanged.

#![no_main]

use earmark_core::{Book, CommandBuffer, Config, Restore, UnixMs, VaultId};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut book = Book::new(Config { retention_ms: 2_000, leases_max: 64, ..Config::default() }, 1);
    let mut buffer = CommandBuffer::default();
    let mut now = UnixMs::new(1_700_000_000_000);
    let mut rest = bytes;
    // A byte before each command advances time in steps of 50 ms.
    while let Some((&step, commands)) = rest.split_first() {
        now = now.plus_ms(u64::from(step) * 50);
        let Ok((command, taken)) = buffer.decode(commands) else { break };
        book.apply(now, command);
        rest = &commands[taken..];
    }
    for vault in (0..4).map(VaultId) {
        for total in book.audit(vault) {
            assert_eq!(total.issued.checked_sub(total.retired), Some(total.live), "{total:?}");
        }
    }
    let snapshot: Vec<u8> = book.freeze().encode().flatten().collect();
    let mut restore = Restore::new(2);
    restore.feed(&snapshot).expect("a Book's own snapshot");
    let mut again = restore.finish().expect("a Book's own snapshot");
    assert!(again.freeze().encode().flatten().eq(snapshot));
});
