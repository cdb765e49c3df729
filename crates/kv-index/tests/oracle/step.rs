//! One operation.
//!
//! Every step is valid in every state: numbers are taken modulo the available items, and a step
//! without any does nothing. So a reduction may remove any steps of a failing trial.

use kv_blocks::Tier;

use super::random::SplitMix64;

/// Where a stored range of a prompt begins.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Start {
    /// At the prompt's first block.
    Root,
    /// Behind the target's leading blocks.
    Behind,
    /// Anywhere: behind a gap, or behind a parent that the target did not announce.
    At(usize),
}

/// Which of a prompt's held blocks are removed, and in which order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pattern {
    /// The last ones, from the end.
    Tail(usize),
    /// The first ones, from the root.
    Head(usize),
    /// Some in the middle.
    Middle(usize, usize),
    /// Those selected by the bits of a number.
    Scattered(u64),
    /// All of them.
    All,
}

/// An operation on an index.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OracleStep {
    Store {
        target: usize,
        space: usize,
        prompt: usize,
        start: Start,
        blocks: usize,
        tier: Tier,
        labels: bool,
    },
    Remove {
        target: usize,
        space: usize,
        prompt: usize,
        pattern: Pattern,
        tier: Tier,
        strangers: usize,
    },
    /// The device reports a clear.
    Cleared {
        target: usize,
    },
    Clear {
        target: usize,
    },
    ClearStream {
        target: usize,
        space: usize,
        tier: Tier,
    },
    /// Clears a target; its engine hashes may be of another kind from then on.
    Restart {
        target: usize,
        naming: usize,
    },
    RemoveWorker {
        target: usize,
    },
    Register {
        target: usize,
        model: usize,
    },
    Expect {
        target: usize,
        space: usize,
        prompt: usize,
        blocks: usize,
        ttl_s: u64,
        lasting: bool,
    },
    /// Retracts one of the last speculative calls, counted from the newest.
    Retract {
        which: usize,
    },
    Wait {
        seconds: u64,
    },
    Expire,
    Hole {
        target: usize,
    },
    Trust {
        target: usize,
        trusted: bool,
    },
    /// A lookup of a prompt's beginning, followed by unknown blocks.
    Look {
        space: usize,
        prompt: usize,
        blocks: usize,
        strangers: usize,
    },
}

impl OracleStep {
    pub(crate) fn generate(dice: &mut SplitMix64) -> Self {
        let target = dice.below(1 << 16);
        let space = dice.below(1 << 16);
        let prompt = dice.below(1 << 16);
        let blocks = if dice.chance(60) {
            1 << 16
        } else {
            dice.below(200)
        };
        match dice.below(1000) {
            0..400 => {
                let start = match dice.below(100) {
                    0..55 => Start::Root,
                    55..80 => Start::Behind,
                    _ => Start::At(dice.below(200)),
                };
                Self::Store {
                    target,
                    space,
                    prompt,
                    start,
                    blocks,
                    tier: tier(dice),
                    labels: dice.chance(50),
                }
            }
            400..720 => {
                let pattern = match dice.below(100) {
                    0..40 => Pattern::Tail(dice.within(1, 40)),
                    40..50 => Pattern::Head(dice.within(1, 40)),
                    50..60 => Pattern::Middle(dice.below(200), dice.within(1, 40)),
                    60..75 => Pattern::Scattered(dice.roll()),
                    _ => Pattern::All,
                };
                let strangers = if dice.chance(5) { dice.within(1, 3) } else { 0 };
                Self::Remove {
                    target,
                    space,
                    prompt,
                    pattern,
                    tier: tier(dice),
                    strangers,
                }
            }
            720..725 => Self::Cleared { target },
            725..728 => Self::Clear { target },
            728..740 => Self::ClearStream {
                target,
                space,
                tier: tier(dice),
            },
            740..745 => Self::Restart {
                target,
                naming: dice.below(1 << 16),
            },
            745..747 => Self::RemoveWorker { target },
            747..770 => Self::Register {
                target,
                model: usize::from(dice.chance(10)),
            },
            770..850 => Self::Expect {
                target,
                space,
                prompt,
                blocks,
                ttl_s: dice.within(1, 20) as u64,
                lasting: dice.chance(50),
            },
            850..860 => Self::Retract {
                which: dice.below(8),
            },
            860..880 => Self::Wait {
                seconds: dice.within(1, 5) as u64,
            },
            880..885 => Self::Expire,
            885..890 => Self::Hole { target },
            890..900 => Self::Trust {
                target,
                trusted: dice.chance(70),
            },
            _ => {
                let strangers = if dice.chance(30) {
                    dice.within(1, 5)
                } else {
                    0
                };
                Self::Look {
                    space,
                    prompt,
                    blocks,
                    strangers,
                }
            }
        }
    }
}

fn tier(dice: &mut SplitMix64) -> Tier {
    match dice.below(10) {
        0..6 => Tier::Device,
        6..8 => Tier::Host,
        8 => Tier::Disk,
        _ => Tier::Remote,
    }
}
