//! One data-parallel rank: the model, driven in real time, and its publisher.
//!
//! A step's events are published before its tokens are delivered, so that a reader normally has a
//! block's event by the time the reply's last byte arrives.

use std::{collections::HashMap, sync::Arc};

use engine_model::{
    EmittedToken, Engine, EngineStats, GenerationRequest, NextAction, RequestId, SubmitError,
};
use kv_blocks::{EngineHash, Moment};
use net::Clock;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};

use crate::{publisher::RankPublisher, stream_action::StreamAction};

/// A rank, shared between its driver and its requests.
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
    /// The receivers of tokens. Each channel has room for a whole reply, so delivery never waits.
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

    /// Starts a generation; its tokens arrive at the receiver, which ends early if the engine
    /// restarts.
    pub(crate) fn submit(
        &self,
        request: GenerationRequest,
    ) -> Result<mpsc::Receiver<EmittedToken>, SubmitError> {
        let id = request.id;
        // Room for the whole reply: a send never fails because of a full channel.
        let (sender, receiver) = mpsc::channel(request.output_tokens.max(1) as usize);
        let mut core = self.core.lock();
        core.engine.submit(self.clock.now(), request)?;
        core.listeners.insert(id, sender);
        drop(core);
        self.wake.notify_one();
        Ok(receiver)
    }

    /// Removes a request from the model at once; returns `false` if it is not present.
    pub(crate) fn abort(&self, id: RequestId) -> bool {
        let mut core = self.core.lock();
        core.listeners.remove(&id);
        core.engine.abort(id)
    }

    /// Returns the names of the blocks of a request's prompt.
    pub(crate) fn prompt_names(&self, request: &GenerationRequest) -> Vec<EngineHash> {
        self.core.lock().engine.prompt_names(request)
    }

    /// Returns how many of these leading blocks of a prompt are cached here.
    pub(crate) fn held_blocks(&self, names: &[EngineHash]) -> usize {
        self.core.lock().engine.held_blocks(names)
    }

    pub(crate) fn stats(&self) -> EngineStats {
        self.core.lock().engine.stats()
    }

    /// Returns the number of requests on this rank.
    pub(crate) fn load(&self) -> usize {
        let stats = self.stats();
        stats.running + stats.waiting
    }

    pub(crate) fn reset_cache(&self) -> bool {
        self.core.lock().engine.reset_cache()
    }

    /// Carries out a test's action.
    pub(crate) async fn act(&self, action: StreamAction) {
        let Some(publisher) = &self.publisher else {
            return;
        };
        if action == StreamAction::Restart {
            publisher.cut().await;
            // One critical section, so that every event belongs to the engine life of its sequence
            // number.
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

    /// Runs the model forever.
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
                    // A request that arrives meanwhile may be ready before one whose blocks another
                    // engine sends.
                    tokio::select! {
                        () = self.sleep_until(moment) => {}
                        () = self.wake.notified() => {}
                    }
                    cursor = self.clock.now();
                }
                NextAction::Step(duration) => {
                    // From the planned end of the previous step: timers are coarser than steps, and
                    // lateness must not add up. A machine that is far too late does not catch up,
                    // it continues from now.
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
            // Under the lock: otherwise a restart may come between a step and its events.
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
            // The runtime must get control even if steps take no time.
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(left).await;
        }
    }
}
