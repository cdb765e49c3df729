//! `EventPublisher`: publishes an engine's KV events in vLLM's form, so that a router follows its
//! cache.

mod block_hash;

use std::time::Duration;

use bytes::Bytes;
use kv_blocks::{DpRank, HashScheme, SequenceHash};
use kv_events::{
    frames::ReplayForm,
    vllm::{self, EventEncoding, WireEvent, WireHash, WireRemoved, WireStored},
};
use net::{Clock, ListenError};
use parking_lot::Mutex;
use pyo3::{exceptions::PyValueError, prelude::*, types::PyTuple};
use tokio::runtime::Runtime;
use zmtp::{BatchForm, BatchPublisher, Endpoint, ReplayBuffer};

use self::block_hash::{block_hash, block_hashes};
use crate::{
    errors,
    kv_index::{block_size_of, rank_of},
    tokens::{detached_from, token_ids},
};

/// Time that `close` gives to messages which subscribers have not taken yet.
const LINGER: Duration = Duration::from_secs(1);
/// Longest topic, medium and name of an adapter, in bytes.
const LONGEST_NAME: usize = 256;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<EventPublisher>()
}

/// Publishes which KV-cache blocks an engine holds, for routers that send a prompt to the engine
/// with the longest cached beginning of it.
///
/// The messages are vLLM's: a ZeroMQ PUB socket with numbered msgpack batches, and a ROUTER socket
/// that sends past batches again to a reader that missed some.
///
/// Args:
///     endpoint: where to listen for subscribers: ``tcp://host:port`` (``*`` for every address, port
///         0 for any free port) or ``ipc:///absolute/path``.
///     replay_endpoint: where to listen for replay requests; without it, a reader that misses a
///         batch can only begin anew.
///     topic: text in front of each message; subscribers may choose by it.
///     buffer_steps: most past batches that are kept for replay, 1 to 1000000.
///     buffer_bytes: most bytes of these batches, 1 to 2**40.
///
/// No method but ``close`` waits for a reader: one that is too slow loses messages, and asks for them again. All
/// methods may be called by several threads at once. Each data-parallel rank needs a publisher of
/// its own, as in vLLM.
///
/// A publisher does not survive a fork: in the child process every method fails. Use it as a context
/// manager, or call ``close``.
///
/// Raises:
///     ValueError: an argument is out of range; the message names it and the expected value.
///     WarmrouteError: ``conflict`` if the endpoint is in use, ``invalid_request`` if it cannot be
///         listened on.
///
/// Example:
///     >>> with EventPublisher("tcp://127.0.0.1:0", "tcp://127.0.0.1:0") as publisher:
///     ...     blocks = publisher.stored([1, 2, 3, 4], block_size=2)
///     ...     publisher.removed(blocks[1:])
#[pyclass(frozen, module = "warmroute")]
#[derive(Debug)]
pub(crate) struct EventPublisher {
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

#[pymethods]
impl EventPublisher {
    #[new]
    #[pyo3(signature = (
        endpoint, replay_endpoint = None, topic = "", *, buffer_steps = 10_000, buffer_bytes = 67_108_864
    ))]
    fn new(
        py: Python<'_>,
        endpoint: &str,
        replay_endpoint: Option<&str>,
        topic: &str,
        buffer_steps: i64,
        buffer_bytes: i64,
    ) -> PyResult<Self> {
        let events = endpoint_of("endpoint", endpoint)?;
        let replay = replay_endpoint
            .map(|text| endpoint_of("replay_endpoint", text))
            .transpose()?;
        if topic.len() > LONGEST_NAME {
            return Err(PyValueError::new_err(format!(
                "topic has {} bytes: expected at most {LONGEST_NAME}",
                topic.len()
            )));
        }
        let history = ReplayBuffer::new(
            limit_of("buffer_steps", buffer_steps, 1_000_000)?,
            limit_of("buffer_bytes", buffer_bytes, 1 << 40)?,
        );
        let form = BatchForm {
            topic: topic.to_owned(),
            replay: ReplayForm::New,
        };
        py.detach(|| Self::bind(&events, replay.as_ref(), form, history))
            .map_err(PyErr::from)
    }

    /// The endpoint of the subscribers' socket, with the port that the system chose.
    #[getter]
    fn endpoint(&self) -> String {
        self.endpoint.to_string()
    }

    /// The endpoint of the replay socket, or ``None``.
    #[getter]
    fn replay_endpoint(&self) -> Option<String> {
        self.replay_endpoint.as_ref().map(ToString::to_string)
    }

    /// The number of connections with a subscription at this moment.
    #[getter]
    fn subscribers(&self) -> PyResult<usize> {
        self.check_process()?;
        let running = self.running.lock();
        running
            .as_ref()
            .map(|running| running.sockets.subscribers())
            .ok_or_else(closed)
    }

    /// Publishes that blocks can be reused from now on, and returns their hashes.
    ///
    /// Args:
    ///     tokens: token ids of the blocks, one block after the other: a sequence of integers, bytes
    ///         of native 32-bit integers, or a buffer of them.
    ///     hashes: the engine's own names of the blocks, unique for their content and everything
    ///         before it: integers of 64 bits, or digests of 8 to 32 bytes of which the last 8
    ///         count. By default they are computed from the tokens, and a partial block at the end
    ///         is left out.
    ///     parent: the hash of the block before the first one; ``None`` where a prompt begins.
    ///     block_size: tokens per block, 1 to 65536.
    ///     medium: where the blocks are: ``"GPU"``, ``"CPU"``, ``"DISK"`` or another name.
    ///     lora: name of the adapter with which they were computed.
    ///     dp_rank: data-parallel rank of the engine, 0 to 65535.
    ///
    /// Returns:
    ///     The hashes as integers, for ``removed`` and as ``parent`` of the blocks that follow.
    ///     Without a whole block the list is empty, and nothing is published.
    ///
    /// Raises:
    ///     ValueError: an argument is out of range, a block is named twice, or the numbers of tokens
    ///         and hashes do not fit.
    ///     WarmrouteError: ``conflict`` if the publisher is closed, or belongs to the parent
    ///         process.
    #[pyo3(signature = (
        tokens, *, hashes = None, parent = None, block_size = 16, medium = "GPU", lora = None, dp_rank = 0
    ))]
    #[allow(
        clippy::too_many_arguments,
        reason = "they are the arguments of the Python method"
    )]
    fn stored(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        hashes: Option<&Bound<'_, PyAny>>,
        parent: Option<&Bound<'_, PyAny>>,
        block_size: i64,
        medium: &str,
        lora: Option<&str>,
        dp_rank: i64,
    ) -> PyResult<Vec<u64>> {
        let (size, rank) = (block_size_of(block_size)?, rank_of(dp_rank)?);
        let medium = Some(checked_name("medium", medium)?);
        let lora_name = lora.map(|lora| checked_name("lora", lora)).transpose()?;
        let parent = parent
            .map(|parent| block_hash("parent", parent))
            .transpose()?;
        let mut tokens = token_ids("tokens", tokens)?;
        let hashes: Vec<WireHash> = match hashes {
            Some(hashes) => block_hashes("hashes", hashes)?,
            None => {
                tokens.truncate(tokens.len() / size.len() * size.len());
                let before = parent.map(WireHash::low).map(SequenceHash);
                let before = before.or_else(|| lora.map(root_of_adapter));
                let chain = detached_from(py, tokens.len(), || {
                    HashScheme::default().chain(before, &tokens, size)
                });
                chain.into_iter().map(|hash| hash.0.into()).collect()
            }
        };
        if tokens.len() != hashes.len() * size.len() {
            return Err(PyValueError::new_err(format!(
                "tokens has {} tokens and hashes {} blocks: expected {} tokens, block_size for each block",
                tokens.len(),
                hashes.len(),
                hashes.len() * size.len()
            )));
        }
        let names: Vec<u64> = hashes.iter().map(|hash| hash.low()).collect();
        check_unique(&names, parent.map(WireHash::low))?;
        if !names.is_empty() {
            let stored = WireStored {
                hashes,
                parent,
                tokens,
                block_size: size.tokens(),
                lora_id: None,
                lora_name,
                medium,
                extra_keys: None,
            };
            self.publish(py, &WireEvent::Stored(stored), rank)?;
        }
        Ok(names)
    }

    /// Publishes that blocks have left a medium.
    ///
    /// Args:
    ///     hashes: their hashes, as given to or returned by ``stored``; with none, nothing is
    ///         published.
    ///     medium: the medium that they have left.
    ///     dp_rank: data-parallel rank of the engine.
    ///
    /// Raises:
    ///     ValueError: an argument is out of range.
    ///     WarmrouteError: as ``stored``.
    #[pyo3(signature = (hashes, *, medium = "GPU", dp_rank = 0))]
    fn removed(
        &self,
        py: Python<'_>,
        hashes: &Bound<'_, PyAny>,
        medium: &str,
        dp_rank: i64,
    ) -> PyResult<()> {
        let rank = rank_of(dp_rank)?;
        let medium = Some(checked_name("medium", medium)?);
        let hashes = block_hashes("hashes", hashes)?;
        if hashes.is_empty() {
            return Ok(());
        }
        self.publish(
            py,
            &WireEvent::Removed(WireRemoved { hashes, medium }),
            rank,
        )
    }

    /// Publishes that the engine's whole cache is empty.
    ///
    /// Args:
    ///     dp_rank: data-parallel rank of the engine.
    ///
    /// Raises:
    ///     ValueError: the rank is out of range.
    ///     WarmrouteError: as ``stored``.
    #[pyo3(signature = (dp_rank = 0))]
    fn cleared(&self, py: Python<'_>, dp_rank: i64) -> PyResult<()> {
        self.publish(py, &WireEvent::Cleared, rank_of(dp_rank)?)
    }

    /// Stops listening; readers have a second to take what was published. A second call does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.check_process()?;
        py.detach(|| {
            let running = self.running.lock().take();
            if let Some(RunningPublisher { sockets, tasks, .. }) = running {
                tasks.block_on(sockets.close(LINGER));
                tasks.shutdown_timeout(LINGER);
            }
        });
        Ok(())
    }

    fn __enter__(publisher: PyRef<'_, Self>) -> PyRef<'_, Self> {
        publisher
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        format!("EventPublisher({:?})", self.endpoint.to_string())
    }
}

impl EventPublisher {
    fn bind(
        events: &Endpoint,
        replay: Option<&Endpoint>,
        form: BatchForm,
        history: ReplayBuffer,
    ) -> Result<Self, BindError> {
        let tasks = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("warmroute-events")
            .enable_all()
            .build()
            .map_err(BindError::NoThread)?;
        let bound = tasks.block_on(BatchPublisher::bind(events, replay, form, &history));
        let (sockets, endpoint, replay_endpoint) = bound.map_err(BindError::Listen)?;
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

    fn publish(&self, py: Python<'_>, event: &WireEvent, rank: DpRank) -> PyResult<()> {
        self.check_process()?;
        let tokens = match event {
            WireEvent::Stored(stored) => stored.tokens.len(),
            WireEvent::Removed(removed) => removed.hashes.len(),
            WireEvent::Cleared => 0,
        };
        detached_from(py, tokens, || {
            let ts = Clock::system().unix_ms() as f64 / 1e3;
            let events = std::slice::from_ref(event);
            let payload = vllm::encode(ts, Some(rank.0), events, EventEncoding::CURRENT);
            let payload = Bytes::from(payload);
            let mut running = self.running.lock();
            let running = running.as_mut()?;
            let seq = running.next_seq;
            running.next_seq += 1;
            running.history.push((seq, payload.clone()));
            running.sockets.send(seq, &payload);
            Some(())
        })
        .ok_or_else(closed)
    }

    /// Checks that this is the process that created the publisher: a child has neither the thread
    /// nor, perhaps, the locks. It is called before any lock is taken.
    fn check_process(&self) -> PyResult<()> {
        let own = std::process::id();
        if own == self.process {
            return Ok(());
        }
        Err(errors::error(
            "conflict",
            format!(
                "this EventPublisher belongs to process {} and does not survive the fork into process {own}: create \
                 one after the fork",
                self.process
            ),
        ))
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

/// Why a publisher could not start.
#[derive(Debug)]
enum BindError {
    NoThread(std::io::Error),
    Listen(ListenError),
}

impl From<BindError> for PyErr {
    fn from(error: BindError) -> Self {
        match error {
            BindError::NoThread(error) => error.into(),
            BindError::Listen(error @ ListenError::Taken { .. }) => {
                errors::error("conflict", error.to_string())
            }
            BindError::Listen(error) => errors::error("invalid_request", error.to_string()),
        }
    }
}

fn closed() -> PyErr {
    errors::error(
        "conflict",
        "this EventPublisher is closed: create another one",
    )
}

fn endpoint_of(argument: &str, text: &str) -> PyResult<Endpoint> {
    text.parse::<Endpoint>()
        .map_err(|error| PyValueError::new_err(format!("{argument}: {error}")))
}

fn limit_of(argument: &str, value: i64, most: i64) -> PyResult<usize> {
    usize::try_from(value)
        .ok()
        .filter(|_| (1..=most).contains(&value))
        .ok_or_else(|| {
            PyValueError::new_err(format!("{argument} is {value}: expected 1 to {most}"))
        })
}

fn checked_name(argument: &str, name: &str) -> PyResult<String> {
    if (1..=LONGEST_NAME).contains(&name.len()) {
        return Ok(name.to_owned());
    }
    Err(PyValueError::new_err(format!(
        "{argument} has {} bytes: expected 1 to {LONGEST_NAME}",
        name.len()
    )))
}

/// Returns what stands before the first block of a prompt with an adapter, so that its blocks have
/// other hashes than those of the same tokens without it.
fn root_of_adapter(lora: &str) -> SequenceHash {
    let bytes: Vec<u32> = lora.bytes().map(u32::from).collect();
    SequenceHash(HashScheme::default().block_hash(&bytes).0)
}

/// A reader ignores an event that names a block twice, so it must not be published.
fn check_unique(names: &[u64], parent: Option<u64>) -> PyResult<()> {
    let mut sorted: Vec<_> = names.iter().copied().chain(parent).collect();
    sorted.sort_unstable();
    match sorted.array_windows().find(|[one, next]| one == next) {
        None => Ok(()),
        Some([twice, _]) => Err(PyValueError::new_err(format!(
            "hashes and parent name the block {twice} twice: expected a hash for each block"
        ))),
    }
}
