//! `EventPublisher`: publishes an engine's KV events in vLLM's form, so that a router follows its
//! cache.

mod block_hash;

use event_publisher::{
    ArgumentError, CreateError, PublishError, PublisherOptions, StoredBlocks, checked_name,
};
use pyo3::{exceptions::PyValueError, prelude::*, types::PyTuple};

use self::block_hash::{block_hash, block_hashes};
use crate::{
    errors,
    kv_index::{block_size_of, rank_of},
    tokens::{detached_from, token_ids},
};

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
    publisher: event_publisher::EventPublisher,
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
        let options = PublisherOptions {
            endpoint,
            replay_endpoint,
            topic,
            buffer_steps,
            buffer_bytes,
        };
        let publisher = py.detach(|| event_publisher::EventPublisher::create(&options));
        let publisher = publisher.map_err(create_error)?;
        Ok(Self { publisher })
    }

    /// The endpoint of the subscribers' socket, with the port that the system chose.
    #[getter]
    fn endpoint(&self) -> String {
        self.publisher.endpoint().to_string()
    }

    /// The endpoint of the replay socket, or ``None``.
    #[getter]
    fn replay_endpoint(&self) -> Option<String> {
        self.publisher.replay_endpoint().map(ToString::to_string)
    }

    /// The number of connections with a subscription at this moment.
    #[getter]
    fn subscribers(&self) -> PyResult<usize> {
        self.publisher.subscribers().map_err(publish_error)
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
        let (block_size, rank) = (block_size_of(block_size)?, rank_of(dp_rank)?);
        let medium = checked_name("medium", medium).map_err(argument_error)?;
        let lora_name = lora
            .map(|lora| checked_name("lora", lora))
            .transpose()
            .map_err(argument_error)?;
        let parent = parent
            .map(|parent| block_hash("parent", parent))
            .transpose()?;
        let tokens = token_ids("tokens", tokens)?;
        let hashes = hashes
            .map(|hashes| block_hashes("hashes", hashes))
            .transpose()?;
        let count = tokens.len();
        let blocks = StoredBlocks {
            tokens,
            hashes,
            parent,
            block_size,
            medium,
            lora_name,
        };
        detached_from(py, count, || self.publisher.stored(blocks, rank)).map_err(publish_error)
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
        let medium = checked_name("medium", medium).map_err(argument_error)?;
        let hashes = block_hashes("hashes", hashes)?;
        detached_from(py, hashes.len(), || {
            self.publisher.removed(hashes, medium, rank)
        })
        .map_err(publish_error)
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
        let rank = rank_of(dp_rank)?;
        detached_from(py, 0, || self.publisher.cleared(rank)).map_err(publish_error)
    }

    /// Stops listening; readers have a second to take what was published. A second call does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.publisher.close()).map_err(publish_error)
    }

    fn __enter__(publisher: PyRef<'_, Self>) -> PyRef<'_, Self> {
        publisher
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        format!("EventPublisher({:?})", self.endpoint())
    }
}

fn argument_error(error: ArgumentError) -> PyErr {
    PyValueError::new_err(error.0)
}

fn create_error(error: CreateError) -> PyErr {
    match error {
        CreateError::Argument(error) => argument_error(error),
        CreateError::NoThread(error) => error.into(),
        CreateError::InUse(error) => errors::error("conflict", error.to_string()),
        CreateError::Unusable(error) => errors::error("invalid_request", error.to_string()),
    }
}

fn publish_error(error: PublishError) -> PyErr {
    match error {
        PublishError::Argument(error) => argument_error(error),
        PublishError::Closed | PublishError::Forked { .. } => {
            errors::error("conflict", error.to_string())
        }
    }
}
