//! Tool and agent traffic drawn with the published shape of such a trace: a few hot tool prompts
//! before short private tails, and chats that share one head block and sometimes continue.

use crate::random::SplitMix64;

use super::records::{BLOCKS_PER_ID, TraceRecord};

/// Number of requests in the published trace.
pub(super) const REQUESTS: usize = 23_608;
/// The longest chat that continues, in ids.
const LONGEST_CHAT: usize = 240;
/// A continued chat is one of this many latest ones.
const RECENT_CHATS: usize = 100;

/// Returns `requests` records, the same in every run.
pub(super) fn draw(requests: usize) -> Vec<TraceRecord> {
    let mut random = SplitMix64::new(7);
    let mut ids = FreshIds(1000);
    let (long_tool, short_tool, head) = (ids.fresh(12), ids.fresh(5), ids.fresh(1));
    let mut chats: Vec<Vec<u64>> = vec![];
    let mut record = |_| {
        let kind = random.unit();
        let hash_ids = if kind < 0.33 {
            ids.after(&long_tool, 1 + random.below(4))
        } else if kind < 0.5 {
            ids.after(&short_tool, 1 + random.below(2))
        } else if kind < 0.72 && chats.len() > RECENT_CHATS {
            let at = chats.len() - 1 - random.below(RECENT_CHATS);
            let longer = ids.after(&chats[at], 1 + random.below(4));
            if longer.len() < LONGEST_CHAT {
                chats[at].clone_from(&longer);
            }
            longer
        } else {
            // Lengths of new chats have an exponential distribution, 19 ids on average.
            let chat = ids.after(&head, (-(1.0 - random.unit()).ln() * 19.0) as usize + 1);
            chats.push(chat.clone());
            chat
        };
        let blocks = hash_ids.len() * BLOCKS_PER_ID - random.below(BLOCKS_PER_ID);
        TraceRecord { blocks, hash_ids }
    };
    (0..requests).map(&mut record).collect()
}

/// Returns ids that were not used before.
struct FreshIds(u64);

impl FreshIds {
    fn fresh(&mut self, count: usize) -> Vec<u64> {
        let first = self.0;
        self.0 += count as u64;
        (first..self.0).collect()
    }

    fn after(&mut self, before: &[u64], count: usize) -> Vec<u64> {
        [before, &self.fresh(count)].concat()
    }
}
