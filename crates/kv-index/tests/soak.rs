//! Prompts that never come twice do not take more memory than was allowed. `examples/soak` is the same for longer.
//! A program of its own, since it measures the memory of its process.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

#[path = "soak/memory.rs"]
mod memory;
#[path = "soak/mod.rs"]
mod soak;

use memory::resident_bytes;
use soak::Soak;

#[test]
fn new_prompts_for_ever_take_no_more_memory_than_allowed() {
    test_programs::require!(ProcStatus);
    let budget = 32 << 20;
    let before = resident_bytes().unwrap();
    let mut soak = Soak::new(budget);
    let mut blocks = 0;
    // Four times what would fit if a block took sixteen bytes.
    while blocks < budget / 4 {
        blocks += u64::from(soak.prompt());
        let stats = soak.index.stats();
        assert!(
            stats.bytes <= budget,
            "{} of {budget} bytes after {blocks} blocks",
            stats.bytes
        );
    }
    let grown = resident_bytes().unwrap().saturating_sub(before);
    let stats = soak.index.stats();
    assert!(stats.shed > 0, "the budget was not reached: {stats:?}");
    assert!(
        grown <= budget + budget / 10,
        "{grown} bytes more in use, {budget} allowed, {} counted",
        stats.bytes
    );
}
