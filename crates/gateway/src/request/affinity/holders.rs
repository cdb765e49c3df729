//! Workers that hold the beginning of a prompt, according to streams that name whole prefixes: by
//! the key of their text, or by the sequence hash of their last block.

use std::{collections::HashMap, sync::Arc, time::Duration};

use fleet::{ModelView, PrefixViewService};
use kv_blocks::{BlockSize, Moment, PromptBlocks, PromptIdentity, SequenceHash};
use prefix_view::{Holder, PrefixHash, StorageTier};
use routing::{Affinity, PrefixHolder};

use super::{AffinityKeys, AffinityStage};

/// Longest search for the holders of a prompt's blocks. A view in Redis is asked for each step.
const SEARCH_TIME: Duration = Duration::from_millis(50);

/// A prompt as its blocks are searched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SearchedPrompt<'a> {
    pub(crate) model: &'a ModelView,
    pub(crate) blocks: Option<&'a PromptBlocks>,
    /// Whether the request has a cache salt.
    pub(crate) salted: bool,
}

impl AffinityStage {
    /// Returns the holders of the prompt's beginning by its key; `None` where no prefix streams are
    /// followed.
    pub(super) async fn prefix_holders(&self, keys: &Affinity) -> Option<Vec<PrefixHolder>> {
        let prefixes = self.fleet.prefixes()?;
        let Some(key) = keys.prefix_key else {
            return Some(Vec::new());
        };
        let holders = self.holders_of(prefixes, PrefixHash::Key(key)).await;
        let one = |holder: &Holder| prefix_holder(holder, holder.tokens);
        Some(holders.iter().map(one).collect())
    }

    /// Adds the workers that hold blocks of the prompt, where streams name those, and a policy uses
    /// prefix streams.
    pub(crate) async fn add_block_holders(
        &self,
        keys: &mut AffinityKeys,
        prompt: SearchedPrompt<'_>,
    ) {
        let (Some(prefixes), Some(holders)) = (self.fleet.prefixes(), &mut keys.holders) else {
            return;
        };
        // Events name neither salt nor adapter: such a prompt shares no blocks with plain ones.
        let Some(blocks) = prompt
            .blocks
            .filter(|blocks| !prompt.salted && blocks.identity() == PromptIdentity::Tokens)
        else {
            return;
        };
        let mut search = BlockSearch {
            stage: self,
            prefixes,
            blocks,
            until: self.clock.now() + SEARCH_TIME,
            found: HashMap::new(),
        };
        for worker in prefixes.workers_named_by_blocks() {
            let candidates = &prompt.model.candidates;
            let candidate = candidates.iter().find(|it| it.worker.name == *worker);
            let Some(candidate) = candidate.filter(|it| it.lora.is_none()) else {
                continue;
            };
            if let Some(found) = Box::pin(search.longest(worker, candidate.block_size())).await {
                add(holders, found);
            }
        }
    }

    async fn holders_of(&self, prefixes: &PrefixViewService, prefix: PrefixHash) -> Arc<[Holder]> {
        if let Some(holders) = prefixes.cached_holders(&prefix) {
            return holders;
        }
        let began = self.clock.now();
        let holders = prefixes.holders(&prefix).await;
        self.counters.record_query(self.clock.now().since(began));
        holders
    }
}

/// The search for the holders of one prompt's blocks.
struct BlockSearch<'a> {
    stage: &'a AffinityStage,
    prefixes: &'a PrefixViewService,
    blocks: &'a PromptBlocks,
    until: Moment,
    /// The holders of the blocks that were looked up: at most some fifteen for each worker.
    found: HashMap<SequenceHash, Arc<[Holder]>>,
}

impl BlockSearch<'_> {
    /// Returns how much of the prompt a worker holds. A worker that holds a block holds those
    /// before it, so that a binary search finds the last one.
    async fn longest(&mut self, worker: &Arc<str>, size: BlockSize) -> Option<PrefixHolder> {
        let chain = self.blocks.chain(size);
        let (mut held, mut end) = (0, chain.len());
        let mut longest = None;
        // Most prompts are held by no worker, or by one worker from their first block on.
        let mut next = 0;
        while held < end && self.stage.clock.now() < self.until {
            match self.holder(worker, chain.get(next)).await {
                Some(holder) => {
                    held = next + 1;
                    let tokens = u32::try_from(held).unwrap_or(u32::MAX);
                    let tokens = tokens.saturating_mul(size.tokens());
                    longest = Some(prefix_holder(&holder, tokens));
                }
                None => end = next,
            }
            next = held + (end - held) / 2;
        }
        longest
    }

    async fn holder(&mut self, worker: &Arc<str>, block: Option<&SequenceHash>) -> Option<Holder> {
        let hash = *block?;
        let holders = match self.found.get(&hash) {
            Some(holders) => Arc::clone(holders),
            None => {
                let prefix = PrefixHash::Sequence(hash);
                let holders = self.stage.holders_of(self.prefixes, prefix).await;
                self.found.insert(hash, Arc::clone(&holders));
                holders
            }
        };
        holders.iter().find(|it| it.backend == *worker).cloned()
    }
}

fn prefix_holder(holder: &Holder, tokens: u32) -> PrefixHolder {
    PrefixHolder {
        worker: Arc::clone(&holder.backend),
        tokens,
        hot: holder.tier == StorageTier::GpuHot,
    }
}

/// Adds a holder, in place of an entry of the same worker with fewer tokens.
fn add(holders: &mut Vec<PrefixHolder>, found: PrefixHolder) {
    match holders.iter_mut().find(|it| it.worker == found.worker) {
        Some(known) if known.tokens >= found.tokens => {}
        Some(known) => *known = found,
        None => holders.push(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_of_two_reports_about_a_worker_counts() {
        let report = |worker: &str, tokens, hot| PrefixHolder {
            worker: worker.into(),
            tokens,
            hot,
        };
        let mut holders = vec![report("a", 32, true)];
        for found in [
            report("a", 16, false),
            report("b", 16, false),
            report("b", 48, true),
        ] {
            add(&mut holders, found);
        }
        assert_eq!(holders, [report("a", 32, true), report("b", 48, true)]);
    }
}
