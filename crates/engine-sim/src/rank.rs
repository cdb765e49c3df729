//! One data-parallel rank: the model, driven in real time, and its publisher.
//!
//! A step's events are published before its tokens are delivered, so that a reader has normally heard of a block by
//! the time the reply's last byte arrives.

use std::{collections::HashMap, sync::Arc};

use engine_model::{
    EmittedToken, Engine, EngineStats, GenerationRequest, NextAction, RequestId, SubmitError,
};
use kv_blocks::Moment;
use net::Clock;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};

use crate::publisher::{RankPublisher, StreamAction};

/// A rank, shared between its driver and the requests on it.
#[derive(Debug)]
pub(crate) struct SimRank {
    core: Mutex<RankCore>,
    wake: Notify,
    clock: Clock,
    pub(crate) publisher: Option<RankPublisher>,
}

#[derive(Debug)]
struct RankCore {
    engine: Engine,
    /// Who waits for tokens. Each channel holds a whole reply, so delivering never waits.
    listeners: HashMap<RequestId, mpsc::Sender<EmittedToken>>,
}

impl SimRank {
    pub(crate) fn new(engine: Engine, publisher: Option<RankPublisher>, clock: Clock) -> Self {
        Self {
            core: Mutex::new(RankCore {
                engine,
                listeners: HashMap::new(),
            }),
            wake: Notify::new(),
            clock,
            publisher,
        }
    }

    /// Starts a generation; its tokens come out of the receiver, which ends early if the engine restarts.
    pub(crate) fn submit(
        &self,
        request: GenerationRequest,
    ) -> Result<mpsc::Receiver<EmittedToken>, SubmitError> {
        let id = request.id;
        // Room for the whole reply: nothing is ever refused for want of it.
        let (sender, receiver) = mpsc::channel(request.output_tokens.max(1) as usize);
        let mut core = self.core.lock();
        core.engine.submit(self.clock.now(), request)?;
        core.listeners.insert(id, sender);
        drop(core);
        self.wake.notify_one();
        Ok(receiver)
    }

    /// Takes a request out of the model at once; false if it is not there any more.
    pub(crate) fn abort(&self, id: RequestId) -> bool {
        let mut core = self.core.lock();
        core.listeners.remove(&id);
        core.engine.abort(id)
    }

    pub(crate) fn stats(&self) -> EngineStats {
        self.core.lock().engine.stats()
    }

    /// Requests on this rank.
    pub(crate) fn load(&self) -> usize {
        let stats = self.stats();
        stats.running + stats.waiting
    }

    pub(crate) fn reset_cache(&self) -> bool {
        self.core.lock().engine.reset_cache()
    }

    /// Does what a test asked for.
    pub(crate) async fn act(&self, action: StreamAction) {
        let Some(publisher) = &self.publisher else {
            return;
        };
        if action == StreamAction::Restart {
            publisher.cut().await;
            // One step, so that every event belongs to the life that its number counts in.
            {
                let mut core = self.core.lock();
                core.engine.restart();
                core.listeners.clear();
                publisher.forget();
            }
            publisher.listen_again().await;
        } else {
            publisher.act(action);
        }
    }

    /// Runs the model for ever.
    pub(crate) async fn drive(self: Arc<Self>) {
        let mut cursor = self.clock.now();
        loop {
            let next = self.core.lock().engine.begin(self.clock.now());
            match next {
                NextAction::Idle => {
                    self.wake.notified().await;
                    cursor = self.clock.now();
                }
                NextAction::WaitUntil(moment) => {
                    // A request that came meanwhile is behind the one that is waited for.
                    self.sleep_until(moment).await;
                    cursor = self.clock.now();
                }
                NextAction::Step(duration) => {
                    // From the planned end of the step before: timers are coarser than steps, and lateness must not
                    // add up. A machine that is hopelessly late does not catch up, it goes on from now.
                    cursor = cursor + duration;
                    let late = self.clock.now().since(cursor);
                    if late > std::time::Duration::from_millis(250) {
                        cursor = self.clock.now();
                    }
                    self.sleep_until(cursor).await;
                    self.finish_step().await;
                }
            }
        }
    }

    async fn finish_step(&self) {
        let (outcome, published) = {
            let mut core = self.core.lock();
            let outcome = core.engine.finish();
            // Under the lock: a restart may come between a step and its events otherwise.
            let published = self
                .publisher
                .as_ref()
                .filter(|_| !outcome.events.is_empty());
            if let Some(publisher) = published {
                publisher.publish(&outcome.events);
            }
            (outcome, published.is_some())
        };
        if published {
            // Lets the sockets write first.
            tokio::task::yield_now().await;
        }
        let mut core = self.core.lock();
        for emitted in outcome.emitted {
            let gone = match core.listeners.get(&emitted.id) {
                Some(listener) => listener.try_send(emitted).is_err() || emitted.finish.is_some(),
                None => false,
            };
            if gone {
                core.listeners.remove(&emitted.id);
            }
        }
    }

    async fn sleep_until(&self, moment: Moment) {
        let left = moment.since(self.clock.now());
        if left.is_zero() {
            // The runtime must get a word in even when steps take no time.
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(left).await;
        }
    }
}
