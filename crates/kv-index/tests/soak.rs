//! Prompts that never repeat stay within the memory budget. `examples/soak` does the same for
//! longer.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

#[path = "soak/memory.rs"]
mod memory;
#[path = "soak/mod.rs"]
mod soak;

use memory::resident_bytes;
use soak::Soak;

#[test]
fn endless_new_prompts_stay_within_the_memory_budget() {
    test_programs::require!(ProcStatus);
    let budget = 32 << 20;
    let before = resident_bytes().unwrap();
    let mut soak = Soak::new(budget);
    let mut blocks = 0;
    // Four times the blocks that fit at sixteen bytes per block.
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
    assert!(stats.shed > 0, "the budget is not reached: {stats:?}");
    assert!(
        grown <= budget + budget / 10,
        "{grown} bytes more in use, {budget} allowed, {} counted",
        stats.bytes
    );
}
