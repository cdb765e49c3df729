//! The publisher: its sockets, the state of its stream, and the thread that serves them.

use std::time::Duration;

use bytes::Bytes;
use kv_blocks::DpRank;
use kv_events::vllm::{self, EventEncoding, WireEvent, WireHash, WireRemoved};
use net::Clock;
use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};
use zmtp::{BatchPublisher, Endpoint, ReplayBuffer};

use crate::{CreateError, PublishError, PublisherOptions, StoredBlocks, options::CheckedOptions};

/// Time that `close` gives to messages which subscribers have not taken yet.
const LINGER: Duration = Duration::from_secs(1);

/// Publishes the KV events of one engine. All methods may be called by several threads at once; but
/// for `create` and `close` none waits for the network.
///
/// It does not survive a fork: in the child process its methods fail with [`PublishError::Forked`],
/// and its end waits for nothing. `create` and `close` must not be called in an async task.
///
/// ```
/// use event_publisher::{DpRank, EventPublisher, PublisherOptions};
///
/// let publisher = EventPublisher::create(&PublisherOptions::at("tcp://127.0.0.1:0"))?;
/// publisher.cleared(DpRank(0))?;
/// publisher.close()?;
/// assert!(publisher.cleared(DpRank(0)).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct EventPublisher {
    /// Bound addresses, with the ports that the system chose.
    endpoint: Endpoint,
    replay_endpoint: Option<Endpoint>,
    /// The process that created it.
    process: u32,
    /// `None` once it is closed.
    running: Mutex<Option<RunningPublisher>>,
}

/// The sockets, the stream's state and the thread that serves them.
#[derive(Debug)]
struct RunningPublisher {
    sockets: BatchPublisher,
    history: ReplayBuffer,
    next_seq: u64,
    tasks: Runtime,
}

impl EventPublisher {
    /// Binds the sockets and starts their thread.
    ///
    /// # Errors
    ///
    /// An option is out of range, or an endpoint cannot be listened on.
    pub fn create(options: &PublisherOptions<'_>) -> Result<Self, CreateError> {
        let CheckedOptions {
            events,
            replay,
            history,
            form,
        } = options.check()?;
        let tasks = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("warmroute-events")
            .enable_all()
            .build()
            .map_err(CreateError::NoThread)?;
        let bound = tasks.block_on(BatchPublisher::bind(
            &events,
            replay.as_ref(),
            form,
            &history,
        ));
        let (sockets, endpoint, replay_endpoint) = bound?;
        Ok(Self {
            endpoint,
            replay_endpoint,
            process: std::process::id(),
            running: Mutex::new(Some(RunningPublisher {
                sockets,
                history,
                next_seq: 0,
                tasks,
            })),
        })
    }

    /// Returns the endpoint of the subscribers' socket, with the port that the system chose.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Returns the endpoint of the replay socket.
    pub fn replay_endpoint(&self) -> Option<&Endpoint> {
        self.replay_endpoint.as_ref()
    }

    /// Returns the number of connections with a subscription.
    ///
    /// # Errors
    ///
    /// The publisher is closed, or belongs to another process.
    pub fn subscribers(&self) -> Result<usize, PublishError> {
        self.check_process()?;
        let running = self.running.lock();
        running
            .as_ref()
            .map(|running| running.sockets.subscribers())
            .ok_or(PublishError::Closed)
    }

    /// Publishes that blocks can be reused from now on, and returns the low 64 bits of their hashes.
    /// Without a whole block nothing is published.
    ///
    /// # Errors
    ///
    /// A block is named twice, the numbers of tokens and hashes do not fit, or the publisher is
    /// closed or belongs to another process. Nothing is published then.
    pub fn stored(&self, blocks: StoredBlocks, rank: DpRank) -> Result<Vec<u64>, PublishError> {
        let event = blocks.into_event()?;
        let names: Vec<u64> = event.hashes.iter().map(|hash| hash.low()).collect();
        if !names.is_empty() {
            self.publish(&WireEvent::Stored(event), rank)?;
        }
        Ok(names)
    }

    /// Publishes that blocks have left a medium; with none, nothing is published.
    ///
    /// # Errors
    ///
    /// The publisher is closed, or belongs to another process.
    pub fn removed(
        &self,
        hashes: Vec<WireHash>,
        medium: String,
        rank: DpRank,
    ) -> Result<(), PublishError> {
        if hashes.is_empty() {
            return Ok(());
        }
        let medium = Some(medium);
        self.publish(&WireEvent::Removed(WireRemoved { hashes, medium }), rank)
    }

    /// Publishes that the engine's whole cache is empty.
    ///
    /// # Errors
    ///
    /// The publisher is closed, or belongs to another process.
    pub fn cleared(&self, rank: DpRank) -> Result<(), PublishError> {
        self.publish(&WireEvent::Cleared, rank)
    }

    /// Stops listening; readers have a second to take what was published. A second call does
    /// nothing.
    ///
    /// # Errors
    ///
    /// The publisher belongs to another process.
    pub fn close(&self) -> Result<(), PublishError> {
        self.check_process()?;
        let running = self.running.lock().take();
        if let Some(RunningPublisher { sockets, tasks, .. }) = running {
            tasks.block_on(sockets.close(LINGER));
            tasks.shutdown_timeout(LINGER);
        }
        Ok(())
    }

    fn publish(&self, event: &WireEvent, rank: DpRank) -> Result<(), PublishError> {
        self.check_process()?;
        let ts = Clock::system().unix_ms() as f64 / 1e3;
        let events = std::slice::from_ref(event);
        let payload = vllm::encode(ts, Some(rank.0), events, EventEncoding::CURRENT);
        let payload = Bytes::from(payload);
        let mut running = self.running.lock();
        let running = running.as_mut().ok_or(PublishError::Closed)?;
        let seq = running.next_seq;
        running.next_seq += 1;
        running.history.push((seq, payload.clone()));
        running.sockets.send(seq, &payload);
        Ok(())
    }

    /// Checks that this is the process that created the publisher: a child has neither the thread
    /// nor, perhaps, the locks. It is called before any lock is taken.
    ///
    /// # Errors
    ///
    /// The publisher belongs to another process.
    pub fn check_process(&self) -> Result<(), PublishError> {
        let own = std::process::id();
        if own == self.process {
            return Ok(());
        }
        Err(PublishError::Forked {
            owner: self.process,
            own,
        })
    }
}

impl Drop for EventPublisher {
    fn drop(&mut self) {
        let running = self.running.get_mut().take();
        if std::process::id() != self.process {
            // The threads that its end would wait for exist in the parent only.
            std::mem::forget(running);
        } else if let Some(RunningPublisher { sockets, tasks, .. }) = running {
            drop(sockets);
            tasks.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;
    use kv_blocks::{BlockSize, EngineHash};
    use kv_events::vllm::{EventBatch, VllmEvent};

    use super::*;

    const FREE: &str = "tcp://127.0.0.1:0";

    fn publisher(buffer_steps: i64) -> EventPublisher {
        let options = PublisherOptions {
            buffer_steps,
            ..PublisherOptions::at(FREE)
        };
        EventPublisher::create(&options).expect("a free port of this machine")
    }

    /// One block of two tokens.
    fn block(hash: u64) -> StoredBlocks {
        StoredBlocks {
            tokens: vec![1, 2],
            hashes: Some(vec![WireHash::from(hash)]),
            parent: None,
            block_size: BlockSize::new(2).expect("in range"),
            medium: "GPU".to_owned(),
            lora_name: None,
        }
    }

    /// The batches that a reader could ask for.
    fn kept(publisher: &EventPublisher) -> Vec<(u64, EventBatch)> {
        let running = publisher.running.lock();
        let history = &running.as_ref().expect("it is open").history;
        let decoded =
            |(seq, payload): (u64, Bytes)| (seq, vllm::decode(&payload).expect("vLLM's form"));
        history.since(0).into_iter().map(decoded).collect()
    }

    #[test]
    #[contract("DY37")]
    fn each_call_is_a_numbered_batch_with_its_event_and_rank() {
        let publisher = publisher(10);
        assert_eq!(publisher.stored(block(7), DpRank(3)), Ok(vec![7]));
        let left = publisher.removed(vec![WireHash::from(7)], "CPU".to_owned(), DpRank(3));
        assert_eq!(left, Ok(()));
        assert_eq!(publisher.cleared(DpRank(3)), Ok(()));
        let batches = kept(&publisher);
        let numbers: Vec<_> = batches.iter().map(|(seq, it)| (*seq, it.dp_rank)).collect();
        assert_eq!(numbers, [(0, Some(3)), (1, Some(3)), (2, Some(3))]);
        let events: Vec<_> = batches.into_iter().flat_map(|(_, it)| it.events).collect();
        let [
            Ok(VllmEvent::Stored(stored)),
            Ok(VllmEvent::Removed(removed)),
            Ok(VllmEvent::Cleared),
        ] = &*events
        else {
            panic!("{events:?}");
        };
        assert_eq!(stored.block_hashes, [EngineHash(7)]);
        assert_eq!(stored.location.medium.as_deref(), Some("GPU"));
        assert_eq!(removed.block_hashes, [EngineHash(7)]);
        assert_eq!(removed.location.medium.as_deref(), Some("CPU"));
    }

    #[test]
    #[contract("DY37")]
    fn nothing_is_published_without_blocks_or_for_refused_ones() {
        let publisher = publisher(10);
        let mut none = block(7);
        none.tokens = Vec::new();
        none.hashes = Some(Vec::new());
        assert_eq!(publisher.stored(none, DpRank(0)), Ok(Vec::new()));
        assert_eq!(
            publisher.removed(Vec::new(), "GPU".to_owned(), DpRank(0)),
            Ok(())
        );
        let mut refused = block(7);
        refused.tokens.push(3);
        assert!(matches!(
            publisher.stored(refused, DpRank(0)),
            Err(PublishError::Argument(_))
        ));
        assert!(kept(&publisher).is_empty());
    }

    #[test]
    #[contract("DY37")]
    fn batches_for_replay_are_bounded() {
        let publisher = publisher(3);
        for hash in 0..5 {
            assert_eq!(publisher.stored(block(hash), DpRank(0)), Ok(vec![hash]));
        }
        let numbers: Vec<_> = kept(&publisher).into_iter().map(|(seq, _)| seq).collect();
        assert_eq!(numbers, [2, 3, 4]);
    }

    #[test]
    #[contract("DY37")]
    fn a_closed_publisher_refuses_events_and_frees_its_endpoint() {
        let publisher = publisher(10);
        let endpoint = publisher.endpoint().to_string();
        let options = PublisherOptions::at(&endpoint);
        assert!(matches!(
            EventPublisher::create(&options),
            Err(CreateError::InUse(_))
        ));
        assert_eq!(publisher.close(), Ok(()));
        assert_eq!(publisher.close(), Ok(()));
        assert_eq!(publisher.cleared(DpRank(0)), Err(PublishError::Closed));
        assert_eq!(publisher.subscribers(), Err(PublishError::Closed));
        let again = EventPublisher::create(&options).expect("the port is free again");
        assert_eq!(again.endpoint().to_string(), endpoint);
    }
}
