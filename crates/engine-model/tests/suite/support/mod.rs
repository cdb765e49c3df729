//! An engine with a clock that the test advances.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use engine_model::{
    Allocation, CacheEvent, EmittedToken, Engine, EngineSettings, EngineTiming, Finish,
    GenerationRequest, NextAction, Profile, RequestId, Scheduling, StepOutcome,
};
use kv_blocks::{BlockSize, EngineHash, MediaItem, Moment, PromptMedia, Tier};

pub(crate) const BLOCK: u32 = 4;

pub(crate) fn settings(device_blocks: u32) -> EngineSettings {
    EngineSettings {
        block_size: BlockSize::new(u64::from(BLOCK)).unwrap(),
        device_blocks,
        host_blocks: 0,
        prefix_caching: true,
        max_num_seqs: 8,
        max_num_batched_tokens: 1_000,
        allocation: Allocation::Growing,
        scheduling: Scheduling::Arrival,
        timing: EngineTiming::new(Profile::named("toy").unwrap()).overhead_ms(0.0),
        seed: 1,
        alphabet: (1_000..2_000).collect(),
    }
}

pub(crate) fn request(id: u64, prompt: &[u32], output_tokens: u32) -> GenerationRequest {
    GenerationRequest {
        id: RequestId(id),
        prompt: prompt.into(),
        media: PromptMedia::default(),
        output_tokens,
        finish: Finish::Length,
        script: None,
        lora: None,
        salt: None,
        transferred: false,
        fetch: None,
        priority: 0,
    }
}

pub(crate) fn transferred(request: GenerationRequest) -> GenerationRequest {
    GenerationRequest {
        transferred: true,
        ..request
    }
}

pub(crate) fn salted(salt: &str, request: GenerationRequest) -> GenerationRequest {
    GenerationRequest {
        salt: Some(Arc::from(salt)),
        ..request
    }
}

/// The request with an item of this content in place of its tokens `offset` to `offset + length`.
pub(crate) fn with_item(
    identifier: &str,
    (offset, length): (u32, u32),
    request: GenerationRequest,
) -> GenerationRequest {
    let item = MediaItem {
        identifier: identifier.into(),
        offset,
        length,
    };
    GenerationRequest {
        media: PromptMedia::new(vec![item]).expect("one item of some tokens"),
        ..request
    }
}

pub(crate) fn adapted(lora: &str, request: GenerationRequest) -> GenerationRequest {
    GenerationRequest {
        lora: Some(Arc::from(lora)),
        ..request
    }
}

/// `count` tokens unique to `kind`.
pub(crate) fn tokens(kind: u32, count: u32) -> Vec<u32> {
    (0..count).map(|index| kind * 10_000 + index).collect()
}

pub(crate) struct EngineBench {
    pub(crate) engine: Engine,
    pub(crate) now: Moment,
    pub(crate) batches: Vec<Vec<CacheEvent>>,
    pub(crate) emitted: Vec<EmittedToken>,
}

impl EngineBench {
    pub(crate) fn new(settings: EngineSettings) -> Self {
        Self {
            engine: Engine::new(settings),
            now: Moment::START,
            batches: Vec::new(),
            emitted: Vec::new(),
        }
    }

    pub(crate) fn submit(&mut self, request: GenerationRequest) {
        self.engine.submit(self.now, request).unwrap();
    }

    /// Runs one step; false if the engine is idle.
    pub(crate) fn step(&mut self) -> bool {
        loop {
            match self.engine.begin(self.now) {
                NextAction::Idle => return false,
                NextAction::WaitUntil(moment) => {
                    assert!(moment > self.now, "a wait that ends in the past would spin");
                    self.now = moment;
                }
                NextAction::Step(duration) => {
                    assert!(duration > Duration::ZERO);
                    self.now = self.now + duration;
                    let StepOutcome { events, emitted } = self.engine.finish();
                    if !events.is_empty() {
                        self.batches.push(events);
                    }
                    self.emitted.extend(emitted);
                    return true;
                }
            }
        }
    }

    /// Runs until idle; returns the batches of this run.
    pub(crate) fn run(&mut self) -> Vec<Vec<CacheEvent>> {
        let before = self.batches.len();
        for _ in 0..100_000 {
            if !self.step() {
                return self.batches[before..].to_vec();
            }
        }
        panic!("the engine never became idle");
    }

    pub(crate) fn cached_tokens(&self, id: u64) -> u32 {
        self.emitted
            .iter()
            .find(|token| token.id == RequestId(id))
            .expect("the request made a token")
            .cached_tokens
    }

    pub(crate) fn reply(&self, id: u64) -> Vec<u32> {
        self.emitted
            .iter()
            .filter(|token| token.id == RequestId(id))
            .map(|token| token.token)
            .collect()
    }
}

/// The blocks cached according to a listener that counts copies in these events.
pub(crate) fn announced_blocks<'a>(
    batches: impl IntoIterator<Item = &'a Vec<CacheEvent>>,
) -> Vec<(Tier, EngineHash)> {
    let mut counts: BTreeMap<(Tier, EngineHash), usize> = BTreeMap::new();
    for event in batches.into_iter().flatten() {
        match event {
            CacheEvent::Stored {
                hashes,
                tier,
                tokens,
                ..
            } => {
                assert_eq!(tokens.len(), hashes.len() * BLOCK as usize);
                for hash in hashes {
                    *counts.entry((*tier, *hash)).or_default() += 1;
                }
            }
            CacheEvent::Removed { hash, tier } => {
                let count = counts
                    .get_mut(&(*tier, *hash))
                    .expect("only what was stored is removed");
                *count -= 1;
                if *count == 0 {
                    counts.remove(&(*tier, *hash));
                }
            }
            CacheEvent::Cleared => counts.retain(|(tier, _), _| *tier != Tier::Device),
        }
    }
    counts
        .into_iter()
        .flat_map(|(block, count)| vec![block; count])
        .collect()
}
