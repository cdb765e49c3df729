//! The scheduler: selects the sequences and blocks of each step, and computes its results.
//!
//! The order is vLLM's: running sequences first, in order of admission; then waiting ones, first
//! come first served or by priority. A block is named, and so reusable and announced, in the step
//! that schedules its last token. Announcements are published at the end of that step. A request
//! whose blocks another engine sends is passed over until they are there, as in vLLM.

use std::{collections::VecDeque, ops::Range, time::Duration};

use kv_blocks::{EngineHash, Moment, Tier};

use crate::{
    Allocation, BlockStats, CacheEvent, EmittedToken, EngineSettings, EngineStats,
    GenerationRequest, NamedRequest, RequestId, Scheduling, SubmitError,
    host_tier::{HostTier, announce_offload},
    plan::{OpenStep, StepPlan},
    pool::{BlockId, BlockPool},
    sequence::{KeepTokens, Sequence},
};

/// The next action of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextAction {
    /// A step of this length; the caller calls [`Engine::finish`] at its end.
    Step(Duration),
    /// No step before this moment.
    WaitUntil(Moment),
    /// No step until a request arrives.
    Idle,
}

/// The result of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepOutcome {
    /// Changes of the cache, to be published as one batch; may be empty.
    pub events: Vec<CacheEvent>,
    /// Generated tokens, at most one for each sequence.
    pub emitted: Vec<EmittedToken>,
}

/// A simulated engine: one data-parallel rank.
#[derive(Debug)]
pub struct Engine {
    settings: EngineSettings,
    pool: BlockPool,
    host: HostTier,
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
    open: Option<OpenStep>,
    events: Vec<CacheEvent>,
    stats: EngineStats,
}

/// The cached part of a waiting sequence.
struct CachedPrefix {
    device: Vec<BlockId>,
    host_blocks: usize,
}

impl Engine {
    /// Returns an engine with an empty cache.
    pub fn new(settings: EngineSettings) -> Self {
        Self {
            pool: BlockPool::new(settings.device_blocks),
            host: HostTier::new(settings.host_blocks),
            waiting: VecDeque::new(),
            running: Vec::new(),
            open: None,
            events: Vec::new(),
            stats: EngineStats::default(),
            settings,
        }
    }

    /// Accepts a request. The scheduler considers it first after the profile's overhead.
    ///
    /// The caller bounds the queue, as in the real engine.
    pub fn submit(&mut self, now: Moment, request: GenerationRequest) -> Result<(), SubmitError> {
        self.fits(request.prompt.len() as u64, request.output_tokens)?;
        let ready_at = now + self.settings.timing.overhead();
        self.waiting.push_back(Sequence::with_tokens(
            request,
            ready_at,
            self.settings.seed,
            self.settings.alphabet.clone(),
        ));
        Ok(())
    }

    /// Accepts a request that is known only by the names of its blocks.
    pub fn submit_named(&mut self, now: Moment, request: NamedRequest) -> Result<(), SubmitError> {
        self.fits(u64::from(request.prompt_tokens), request.output_tokens)?;
        let ready_at = now + self.settings.timing.overhead();
        self.waiting.push_back(Sequence::named(request, ready_at));
        Ok(())
    }

    fn fits(&self, prompt_tokens: u64, output_tokens: u32) -> Result<(), SubmitError> {
        if prompt_tokens == 0 || output_tokens == 0 {
            return Err(SubmitError::Empty);
        }
        let tokens = prompt_tokens + u64::from(output_tokens);
        let capacity = self.capacity_tokens();
        // The second bound keeps positions within u32, whatever the pool's size.
        if tokens > capacity.min(u64::from(u32::MAX)) {
            return Err(SubmitError::TooLong { tokens, capacity });
        }
        Ok(())
    }

    /// Drops a request at once, even within a step; returns `false` if it is not present. Its
    /// blocks stay cached.
    pub fn abort(&mut self, id: RequestId) -> bool {
        if let Some(index) = self.running.iter().position(|sequence| sequence.id() == id) {
            let sequence = self.running.remove(index);
            self.release(sequence.blocks);
        } else if let Some(index) = self.waiting.iter().position(|sequence| sequence.id() == id) {
            self.waiting.remove(index);
        } else {
            return false;
        }
        self.stats.aborted += 1;
        true
    }

    /// Begins a step at `now`, if there is work. While a step is open it returns that step again.
    pub fn begin(&mut self, now: Moment) -> NextAction {
        if let Some(open) = &self.open {
            return NextAction::Step(open.duration);
        }
        let mut plan = StepPlan {
            budget: self.settings.max_num_batched_tokens.max(1),
            ..StepPlan::default()
        };
        let preempted = self.schedule_running(&mut plan);
        if !preempted {
            self.admit_waiting(now, &mut plan);
        }
        if plan.chunks.is_empty() {
            return self
                .waiting
                .iter()
                .map(|waiting| waiting.ready_at)
                .min()
                .map_or(NextAction::Idle, NextAction::WaitUntil);
        }
        let duration = self.settings.timing.step(plan.work);
        self.open = Some(OpenStep {
            duration,
            chunks: plan.chunks,
        });
        NextAction::Step(duration)
    }

    /// Ends the open step; without one, does nothing.
    pub fn finish(&mut self) -> StepOutcome {
        let Some(open) = self.open.take() else {
            return StepOutcome::default();
        };
        self.stats.steps += 1;
        let mut emitted = Vec::new();
        let mut index = 0;
        for chunk in open.chunks {
            // Chunks are in the order of `running`; a missing one was aborted in the meantime.
            let Some(offset) = self.running[index..]
                .iter()
                .position(|sequence| sequence.id() == chunk.id)
            else {
                continue;
            };
            index += offset;
            self.running[index].computed += chunk.tokens;
            if self.settings.allocation == Allocation::Reserved {
                self.name_filled(index, self.running[index].computed);
            }
            let sequence = &mut self.running[index];
            if sequence.computed == sequence.len() {
                if sequence.emitted == 0 {
                    self.stats.prompt_tokens += u64::from(sequence.prompt_tokens);
                }
                let (token, finish) = sequence.generate();
                self.stats.generated_tokens += 1;
                let cached_tokens = sequence.cached_tokens.unwrap_or(0);
                emitted.push(EmittedToken {
                    id: chunk.id,
                    token,
                    cached_tokens,
                    finish,
                });
                if finish.is_some() {
                    let sequence = self.running.remove(index);
                    self.release(sequence.blocks);
                    self.stats.finished += 1;
                    continue;
                }
            }
            index += 1;
        }
        StepOutcome {
            events: std::mem::take(&mut self.events),
            emitted,
        }
    }

    /// Begins and ends a step at once, for callers in virtual time; `None` if there is no work at
    /// `now`.
    pub fn step(&mut self, now: Moment) -> Option<(Duration, StepOutcome)> {
        match self.begin(now) {
            NextAction::Step(duration) => Some((duration, self.finish())),
            NextAction::WaitUntil(_) | NextAction::Idle => None,
        }
    }

    /// Empties the device's cache; returns `false` without a change while blocks are in use, as the
    /// real engine does. The announcement is published with the next step. The host tier keeps its
    /// blocks.
    pub fn reset_cache(&mut self) -> bool {
        if self.pool.free() < self.pool.total() {
            return false;
        }
        self.pool.forget_names();
        if self.settings.prefix_caching {
            self.events.push(CacheEvent::Cleared);
        }
        true
    }

    /// Resets the engine to the state of a new process: all state is lost, nothing is announced.
    /// Returns the lost requests.
    pub fn restart(&mut self) -> Vec<RequestId> {
        let lost: Vec<_> = self
            .running
            .drain(..)
            .chain(self.waiting.drain(..))
            .collect();
        self.open = None;
        for sequence in &lost {
            for block in sequence.blocks.iter().rev() {
                self.pool.release(*block);
            }
        }
        self.pool.forget_names();
        self.host.clear();
        self.events.clear();
        self.stats = EngineStats::default();
        lost.iter().map(Sequence::id).collect()
    }

    /// Returns counters and current values.
    pub fn stats(&self) -> EngineStats {
        EngineStats {
            running: self.running.len(),
            waiting: self.waiting.len(),
            blocks: BlockStats {
                used: self.pool.total() - self.pool.free(),
                total: self.pool.total(),
                cached: self.pool.named(),
                host: self.host.len(),
            },
            ..self.stats
        }
    }

    /// Returns every cached block with its tier, sorted; a block with two copies occurs twice.
    pub fn cached_blocks(&self) -> Vec<(Tier, EngineHash)> {
        let device = self.pool.names().map(|hash| (Tier::Device, hash));
        let mut blocks: Vec<_> = device
            .chain(self.host.names().map(|hash| (Tier::Host, hash)))
            .collect();
        blocks.sort_unstable();
        blocks
    }

    /// Returns the names of the blocks of a request's prompt that a cache can hold, in their order.
    pub fn prompt_names(&self, request: &GenerationRequest) -> Vec<EngineHash> {
        let Some(most) = request.prompt.len().checked_sub(1) else {
            return Vec::new();
        };
        let size = self.settings.block_size;
        let mut sequence = Sequence::with_tokens(
            request.clone(),
            Moment::START,
            self.settings.seed,
            self.settings.alphabet.clone(),
        );
        sequence.names(most / size.len(), size).to_vec()
    }

    /// Returns how many of these leading blocks of a prompt it holds, and so could send to another
    /// engine.
    pub fn held_blocks(&self, names: &[EngineHash]) -> usize {
        names
            .iter()
            .take_while(|name| self.pool.find(**name).is_some() || self.host.holds(**name))
            .count()
    }

    /// Returns the tokens that fit on the device: the maximum of prompt and reply together.
    pub fn capacity_tokens(&self) -> u64 {
        u64::from(self.settings.device_blocks) * u64::from(self.settings.block_size.tokens())
    }

    /// Gives every running sequence its next tokens; returns `true` if it preempted one because of
    /// missing blocks.
    fn schedule_running(&mut self, plan: &mut StepPlan) -> bool {
        let mut preempted = false;
        let mut index = 0;
        while index < self.running.len() && plan.budget > 0 {
            let sequence = &self.running[index];
            let tokens = (sequence.len() - sequence.computed).min(plan.budget);
            if self.grow(index, tokens) {
                plan.add(
                    &self.running[index],
                    tokens,
                    &self.settings.timing,
                    &mut self.stats,
                );
                index += 1;
            } else {
                // This preempts a sequence without tokens in this step; that may be the requesting
                // sequence itself.
                self.preempt_one_from(index);
                preempted = true;
            }
        }
        preempted
    }

    /// Preempts the youngest sequence, or the youngest of those with the highest priority number.
    fn preempt_one_from(&mut self, index: usize) {
        let later = self.running.iter().enumerate().skip(index);
        let Some((index, _)) = later.max_by_key(|(_, sequence)| self.turn(sequence)) else {
            return;
        };
        let mut sequence = self.running.remove(index);
        self.release(std::mem::take(&mut sequence.blocks));
        sequence.computed = 0;
        sequence.named_blocks = 0;
        self.stats.preemptions += 1;
        self.waiting.push_front(sequence);
    }

    /// Returns the scheduling order of a sequence: the lowest is next; of equals the first.
    fn turn(&self, sequence: &Sequence) -> i64 {
        match self.settings.scheduling {
            Scheduling::Arrival => 0,
            Scheduling::Priority => sequence.priority(),
        }
    }

    /// Returns the index of the next waiting sequence.
    fn next_waiting(&self, now: Moment) -> Option<usize> {
        let ready = |sequence: &Sequence| sequence.ready_at <= now;
        match self.settings.scheduling {
            // Mostly the first one: all but those that wait for blocks become ready in their order.
            Scheduling::Arrival => self.waiting.iter().position(ready),
            Scheduling::Priority => {
                let ready = self
                    .waiting
                    .iter()
                    .enumerate()
                    .filter(|(_, sequence)| ready(sequence));
                ready
                    .min_by_key(|(_, sequence)| self.turn(sequence))
                    .map(|(index, _)| index)
            }
        }
    }

    fn admit_waiting(&mut self, now: Moment, plan: &mut StepPlan) {
        while plan.budget > 0 && self.running.len() < self.settings.max_num_seqs.max(1) as usize {
            let Some(index) = self.next_waiting(now) else {
                break;
            };
            let Some(mut sequence) = self.waiting.remove(index) else {
                break;
            };
            let prefix = self.cached_prefix(&mut sequence);
            if !self.has_capacity(&sequence, &prefix) {
                self.waiting.insert(index, sequence);
                break;
            }
            self.use_prefix(&mut sequence, prefix, plan);
            let tokens = (sequence.len() - sequence.computed).min(plan.budget);
            self.running.push(sequence);
            let index = self.running.len() - 1;
            let grown = match self.settings.allocation {
                Allocation::Growing => self.grow(index, tokens),
                Allocation::Reserved => self.take_blocks(index, self.running[index].longest()),
            };
            debug_assert!(grown, "there was room for all that admission asks for");
            plan.add(
                &self.running[index],
                tokens,
                &self.settings.timing,
                &mut self.stats,
            );
        }
    }

    /// Returns the longest cached prefix. The last token is always computed, so a fully cached
    /// prompt of exactly k blocks uses k - 1 of them.
    fn cached_prefix(&self, sequence: &mut Sequence) -> CachedPrefix {
        if !self.settings.prefix_caching {
            return CachedPrefix {
                device: Vec::new(),
                host_blocks: 0,
            };
        }
        let size = self.settings.block_size;
        let most = size.whole_blocks(sequence.len() - 1) as usize;
        let names = sequence.names(most, size);
        let device: Vec<_> = names
            .iter()
            .map_while(|name| self.pool.find(*name))
            .collect();
        let host_blocks = names[device.len()..]
            .iter()
            .take_while(|name| self.host.holds(**name))
            .count();
        CachedPrefix {
            device,
            host_blocks,
        }
    }

    /// Returns whether the whole sequence fits at its current length, with its reply if that is
    /// reserved: half a prompt in the pool is useless.
    fn has_capacity(&self, sequence: &Sequence, prefix: &CachedPrefix) -> bool {
        let tokens = match self.settings.allocation {
            Allocation::Growing => sequence.len(),
            Allocation::Reserved => sequence.longest(),
        };
        let blocks = tokens.div_ceil(self.settings.block_size.tokens()) as usize;
        let revived = prefix
            .device
            .iter()
            .filter(|id| self.pool.is_free(**id))
            .count();
        self.pool.free() - revived >= blocks - prefix.device.len()
    }

    fn use_prefix(&mut self, sequence: &mut Sequence, prefix: CachedPrefix, plan: &mut StepPlan) {
        let size = self.settings.block_size;
        let whole = prefix.device.len() + prefix.host_blocks;
        for id in &prefix.device {
            self.pool.pin(*id);
        }
        for name in &sequence.names(whole, size)[prefix.device.len()..] {
            self.host.touch(*name);
        }
        let tokens_in = |blocks: usize| blocks as u64 * u64::from(size.tokens());
        let (device_hits, host_hits) = (
            tokens_in(prefix.device.len()),
            tokens_in(prefix.host_blocks),
        );
        sequence.named_blocks = prefix.device.len();
        sequence.blocks = prefix.device;
        // Below the sequence's own length, which is a u32.
        sequence.computed = u32::try_from(device_hits + host_hits).unwrap_or(u32::MAX);
        plan.work.reloaded_tokens += host_hits;
        if std::mem::take(&mut sequence.transferred) {
            sequence.computed = sequence.len() - 1;
        }
        let fetched = self.fetched_tokens(sequence);
        sequence.computed += fetched;
        if sequence.cached_tokens.is_none() {
            sequence.cached_tokens = Some(sequence.computed);
            if self.settings.prefix_caching {
                self.stats.queried_tokens += u64::from(sequence.len());
            }
            self.stats.device_hit_tokens += device_hits;
            self.stats.host_hit_tokens += host_hits;
            self.stats.fetched_tokens += u64::from(fetched);
        }
    }

    /// Returns how many tokens beyond its computed ones another engine has sent: whole blocks, and
    /// never the last token. They are valid once: a preempted sequence is computed.
    fn fetched_tokens(&self, sequence: &mut Sequence) -> u32 {
        let sent = std::mem::take(&mut sequence.fetched_tokens);
        if !self.settings.prefix_caching {
            return 0;
        }
        let size = self.settings.block_size;
        let whole = size.whole_blocks(sent.min(sequence.len() - 1)) * size.tokens();
        whole.saturating_sub(sequence.computed)
    }

    /// Allocates room for `tokens` more tokens of a running sequence and names the blocks that they
    /// fill; returns `false`, without a change, if blocks are missing.
    fn grow(&mut self, index: usize, tokens: u32) -> bool {
        let end = self.running[index].computed + tokens;
        if !self.take_blocks(index, end) {
            return false;
        }
        if self.settings.allocation == Allocation::Growing {
            self.name_filled(index, end);
        }
        true
    }

    /// Gives a running sequence the blocks for its first `end` tokens; returns `false`, without a
    /// change, if there are too few.
    fn take_blocks(&mut self, index: usize, end: u32) -> bool {
        let blocks = end.div_ceil(self.settings.block_size.tokens()) as usize;
        let sequence = &mut self.running[index];
        let missing = blocks.saturating_sub(sequence.blocks.len());
        if missing > self.pool.free() {
            return false;
        }
        for _ in 0..missing {
            let Some((id, evicted)) = self.pool.take() else {
                break;
            };
            sequence.blocks.push(id);
            if let Some(content) = evicted {
                let hash = content.hash;
                // While another copy remains, there is nothing to offload.
                if self.host.is_on() && self.pool.find(hash).is_none() {
                    announce_offload(self.host.offload(content), &mut self.events);
                }
                self.events.push(CacheEvent::Removed {
                    hash,
                    tier: Tier::Device,
                });
            }
        }
        true
    }

    /// Names the blocks that the first `end` tokens of a running sequence fill; announces each
    /// stretch as one event.
    fn name_filled(&mut self, index: usize, end: u32) {
        if !self.settings.prefix_caching {
            return;
        }
        let size = self.settings.block_size;
        let keep = if self.host.is_on() {
            KeepTokens::Yes
        } else {
            KeepTokens::No
        };
        let sequence = &mut self.running[index];
        let (first, whole) = (sequence.named_blocks, sequence.nameable(end, size));
        if whole <= first {
            return;
        }
        sequence.names(whole, size);
        sequence.named_blocks = whole;
        let mut stretch = first..first;
        for block in first..whole {
            let sequence = &self.running[index];
            let content = sequence.content(block, size, keep);
            let copy = self.settings.allocation == Allocation::Reserved
                && self.pool.find(content.hash).is_some();
            if copy {
                self.announce(index, stretch);
                stretch = block + 1..block + 1;
            } else {
                self.pool.name(sequence.blocks[block], content);
                stretch.end = block + 1;
            }
        }
        self.announce(index, stretch);
    }

    /// Announces named blocks of a running sequence.
    fn announce(&mut self, index: usize, blocks: Range<usize>) {
        if blocks.is_empty() {
            return;
        }
        let sequence = &self.running[index];
        self.events.push(CacheEvent::Stored {
            hashes: blocks.clone().map(|block| sequence.name(block)).collect(),
            parent: blocks
                .start
                .checked_sub(1)
                .map(|before| sequence.name(before)),
            tokens: sequence.block_tokens(blocks.clone(), self.settings.block_size),
            lora: sequence.lora.clone(),
            salt: if blocks.start == 0 {
                sequence.salt.clone()
            } else {
                None
            },
            media: sequence.media(blocks, self.settings.block_size),
            tier: Tier::Device,
        });
    }

    /// Releases the last block first: the end of a sequence is the least likely to be reused.
    fn release(&mut self, blocks: Vec<BlockId>) {
        for id in blocks.into_iter().rev() {
            match self.settings.allocation {
                Allocation::Growing => self.pool.release(id),
                Allocation::Reserved => self.pool.release_empty_first(id),
            }
        }
    }
}
