//! Random bytes are an error, or a Book that encodes to the same bytes.

#![no_main]

use earmark_core::Restore;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut restore = Restore::new(1);
    if restore.feed(bytes).is_err() {
        return;
    }
    if let Ok(mut book) = restore.finish() {
        let again: Vec<u8> = book.freeze().encode().flatten().collect();
        assert_eq!(again, bytes);
    }
});
