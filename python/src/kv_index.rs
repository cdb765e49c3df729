//! `KvIndex`: which worker holds which leading blocks of a prompt, for routers written in Python.
//!
//! Locks are taken and given up without a call into Python in between, so a thread that waits for
//! one with the interpreter's lock held cannot stop the thread that has it.

mod events;
mod snapshot_file;
mod worker_table;

use std::{path::PathBuf, sync::Arc};

use kv_blocks::{
    BlockSize, DpRank, HashScheme, Moment, Namespace, PromptIdentity, SequenceHash, Target, Tier,
};
use parking_lot::RwLock;
use pyo3::{exceptions::PyValueError, prelude::*, types::PyDict};

use self::worker_table::WorkerTable;
use crate::tokens::token_ids;

/// Smallest budget that has room for anything.
const LEAST_BUDGET: u64 = 1 << 20;
/// Largest budget, which is that of the configuration's own key.
const MOST_BUDGET: u64 = 1 << 50;
/// The model of the index's only namespace.
const MODEL: &str = "default";

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<BlockIndex>()
}

/// An index of the KV-cache blocks that each worker holds.
///
/// A prompt is cut into blocks of ``block_size`` tokens; a partial block at its end does not count.
/// Two prompts share their leading blocks as long as their tokens are equal. A worker is named by any
/// text, a data-parallel rank by a number from 0.
///
/// Args:
///     block_size: tokens per block, 1 to 65536.
///     budget_bytes: most memory of the index in bytes, at least 1 MiB. When it is used up, the
///         oldest ends of prompts are dropped.
///
/// Token ids are a list or another sequence of integers from 0 to 4294967295, ``bytes`` of native
/// 32-bit integers, or a buffer of such integers: ``array.array('I')`` or a contiguous
/// one-dimensional ``numpy.uint32`` array.
///
/// All methods may be called by several threads at once.
///
/// Raises:
///     ValueError: an argument is out of range; the message names it and the expected value.
///     TypeError: an argument is of another type.
///
/// Example:
///     >>> index = KvIndex(block_size=2)
///     >>> index.store("w1", 0, [1, 2, 3, 4])
///     2
///     >>> index.find_matches([1, 2, 3, 4, 5])
///     {('w1', 0): 2}
#[pyclass(frozen, name = "KvIndex", module = "warmroute")]
#[derive(Debug)]
pub(crate) struct BlockIndex {
    index: ::kv_index::KvIndex,
    namespace: Namespace,
    workers: RwLock<WorkerTable>,
}

#[pymethods]
impl BlockIndex {
    #[new]
    #[pyo3(signature = (block_size, budget_bytes = 536_870_912))]
    fn new(block_size: i64, budget_bytes: i64) -> PyResult<Self> {
        let block_size = block_size_of(block_size)?;
        let memory_budget = u64::try_from(budget_bytes)
            .ok()
            .filter(|bytes| (LEAST_BUDGET..=MOST_BUDGET).contains(bytes))
            .ok_or_else(|| {
                PyValueError::new_err(format!(
                    "budget_bytes is {budget_bytes}: expected {LEAST_BUDGET} to {MOST_BUDGET}"
                ))
            })?;
        Ok(Self {
            index: ::kv_index::KvIndex::new(::kv_index::IndexSettings {
                memory_budget,
                secret: runtime::random(),
                ..::kv_index::IndexSettings::default()
            }),
            namespace: Namespace {
                model: Arc::from(MODEL),
                lora: None,
                salt: None,
                block_size,
                identity: PromptIdentity::Tokens,
            },
            workers: RwLock::default(),
        })
    }

    /// Tokens per block.
    #[getter]
    fn block_size(&self) -> u32 {
        self.namespace.block_size.tokens()
    }

    /// Records that a worker holds the whole blocks of a prompt, and returns their number.
    ///
    /// Args:
    ///     worker: name of the worker, 1 to 256 bytes of UTF-8.
    ///     dp_rank: its data-parallel rank, 0 to 65535; 0 without data parallelism.
    ///     tokens: token ids of the prompt, from its first token on.
    ///     tier: ``"device"``, ``"host"``, ``"disk"`` or ``"remote"``.
    ///
    /// Storing a prompt again changes nothing. The number is smaller than that of the prompt's whole
    /// blocks where the budget leaves no room.
    ///
    /// Raises:
    ///     ValueError: a name, rank or tier that is not possible, or too many workers.
    #[pyo3(signature = (worker, dp_rank, tokens, tier = "device"))]
    fn store(
        &self,
        py: Python<'_>,
        worker: &str,
        dp_rank: i64,
        tokens: &Bound<'_, PyAny>,
        tier: &str,
    ) -> PyResult<u32> {
        let (rank, tier) = (rank_of(dp_rank)?, tier_of(tier)?);
        let tokens = token_ids("tokens", tokens)?;
        let stored = py.detach(|| {
            let chain = self.chain(&tokens);
            self.with_target(worker, rank, |target| self.add(target, None, &chain, tier))
        });
        stored.map_err(PyValueError::new_err)
    }

    /// Records that a worker no longer holds the blocks of a prompt in a tier, and returns the
    /// number of blocks that it had.
    ///
    /// Args:
    ///     worker: name of the worker; an unknown one has no blocks.
    ///     dp_rank: its data-parallel rank.
    ///     tokens: token ids of the prompt, from its first token on.
    ///     tier: the tier that the blocks left.
    ///     keep_blocks: number of leading blocks that stay, for example because another prompt
    ///         shares them; by default every whole block of the prompt is removed.
    ///
    /// Blocks behind a removed one stay recorded, but a prompt matches only up to the first block
    /// that is missing.
    ///
    /// Raises:
    ///     ValueError: a rank, a tier or a number of blocks that is not possible.
    #[pyo3(signature = (worker, dp_rank, tokens, tier = "device", *, keep_blocks = 0))]
    fn remove(
        &self,
        py: Python<'_>,
        worker: &str,
        dp_rank: i64,
        tokens: &Bound<'_, PyAny>,
        tier: &str,
        keep_blocks: i64,
    ) -> PyResult<u32> {
        let (rank, tier) = (rank_of(dp_rank)?, tier_of(tier)?);
        let keep = usize::try_from(keep_blocks).map_err(|_| {
            PyValueError::new_err(format!("keep_blocks is {keep_blocks}: expected 0 or more"))
        })?;
        let tokens = token_ids("tokens", tokens)?;
        Ok(py.detach(|| {
            let chain = self.chain(&tokens);
            let workers = self.workers.read();
            let (Some(target), Some(leaving)) = (workers.find(worker, rank), chain.get(keep..))
            else {
                return 0;
            };
            self.index
                .remove_hashes(target, &self.namespace, leaving, tier)
                .applied
        }))
    }

    /// Empties the index, or the part of one worker or rank.
    ///
    /// Args:
    ///     worker: name of the worker to forget with all its ranks; without it, all workers.
    ///     dp_rank: the only rank of the worker that is emptied.
    ///
    /// Raises:
    ///     ValueError: a rank without a worker, or one that is not possible.
    #[pyo3(signature = (worker = None, dp_rank = None))]
    fn clear(&self, py: Python<'_>, worker: Option<&str>, dp_rank: Option<i64>) -> PyResult<()> {
        let rank = dp_rank.map(rank_of).transpose()?;
        if worker.is_none() && rank.is_some() {
            return Err(PyValueError::new_err(
                "dp_rank is given without worker: expected the worker of the rank, too",
            ));
        }
        py.detach(|| {
            self.retire(worker, rank);
            while self.index.sweep() {}
        });
        Ok(())
    }

    /// Returns how many leading blocks of a prompt each worker holds, in any tier.
    ///
    /// Args:
    ///     tokens: token ids of the prompt.
    ///
    /// Returns:
    ///     A dict from ``(worker, dp_rank)`` to a number of blocks, at least 1; multiply it by
    ///     ``block_size`` for tokens. Workers without the first block are left out.
    fn find_matches<'py>(
        &self,
        py: Python<'py>,
        tokens: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let tokens = token_ids("tokens", tokens)?;
        // Also for few tokens: a `restore` may have to end first.
        let found = py.detach(|| {
            let chain = self.chain(&tokens);
            let workers = self.workers.read();
            let overlaps = self
                .index
                .lookup(&self.namespace, &chain, Moment::START)
                .into_iter();
            overlaps
                .filter_map(|overlap| {
                    let name = workers.name(overlap.target.worker)?;
                    Some((name, overlap.target.rank.0, overlap.blocks.total()))
                })
                .collect::<Vec<_>>()
        });
        let matches = PyDict::new(py);
        for (name, rank, blocks) in found {
            matches.set_item((&*name, rank), blocks)?;
        }
        Ok(matches)
    }

    /// Writes the content to a file, which replaces an earlier one as a whole.
    ///
    /// Args:
    ///     path: the file; only its owner can read it.
    ///
    /// Other calls go on meanwhile. A worker that is stored for the first time during the call may
    /// be missing in the file.
    ///
    /// Raises:
    ///     OSError: the file cannot be written.
    fn snapshot(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| {
            let head = snapshot_file::Head {
                block_size: self.block_size(),
                workers: self.workers.read().saved(),
            };
            snapshot_file::save(&path, &head, &self.index)
        })?;
        Ok(())
    }

    /// Loads the content that ``snapshot`` wrote into this index, and returns the number of
    /// different blocks in it.
    ///
    /// Args:
    ///     path: the file.
    ///
    /// The file is loaded as a whole or not at all.
    ///
    /// Raises:
    ///     WarmrouteError: ``conflict`` if something was stored since the last ``clear()`` of everything, or another block size than
    ///         the file; ``invalid_request`` if the file is damaged or of another kind.
    ///     OSError: the file cannot be read.
    fn restore(&self, py: Python<'_>, path: PathBuf) -> PyResult<u64> {
        py.detach(|| {
            let mut workers = self.workers.write();
            if !workers.is_empty() {
                return Err(snapshot_file::RestoreError::Conflict(
                    "the index has content: restore into a new KvIndex".to_owned(),
                ));
            }
            let (head, summary) = snapshot_file::load(&path, self.block_size(), &self.index)?;
            let loaded = self.index.digest();
            *workers = WorkerTable::of_saved(head.workers, loaded.iter().map(|tier| tier.target));
            // Without a name in the file, blocks could never be found.
            for tier in loaded {
                if workers.name(tier.target.worker).is_none() {
                    self.index.remove_worker(tier.target.worker);
                }
            }
            Ok(summary.blocks)
        })
        .map_err(PyErr::from)
    }

    /// Returns the content as a JSON array with an object for each block, worker and tier, in the
    /// form of ``GET /admin/kv-index/dump``.
    ///
    /// Other calls go on meanwhile; blocks that change during the call may be in the text or not.
    fn dump_events(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| events::dump(&self.index, &self.workers))
            .map_err(|error| crate::errors::error("internal", error.to_string()))
    }

    /// Stores the content of ``dump_events`` text in this index, and returns the number of blocks
    /// stored.
    ///
    /// Args:
    ///     text: a JSON array, or JSON lines, of rows as ``dump_events`` writes them.
    ///     model: the only model whose rows are stored; needed if the text has several.
    ///
    /// Rows with a LoRA adapter or a salt are left out, since ``find_matches`` takes tokens only.
    ///
    /// Raises:
    ///     ValueError: the text is not such an array, has rows of another block size, or of several
    ///         models without ``model``.
    #[pyo3(signature = (text, model = None))]
    fn load_events(&self, py: Python<'_>, text: &str, model: Option<&str>) -> PyResult<u32> {
        py.detach(|| -> Result<u32, String> {
            let rows = events::rows(text, model, self.block_size())?;
            let mut stored = 0_u32;
            for row in rows {
                let one = self.with_target(&row.worker, row.rank, |target| {
                    self.add(target, row.parent, &[row.hash], row.tier)
                })?;
                stored = stored.saturating_add(one);
            }
            Ok(stored)
        })
        .map_err(PyValueError::new_err)
    }

    fn __repr__(&self) -> String {
        format!("KvIndex(block_size={})", self.block_size())
    }
}

impl BlockIndex {
    fn chain(&self, tokens: &[u32]) -> Vec<SequenceHash> {
        HashScheme::default().chain(None, tokens, self.namespace.block_size)
    }

    /// Calls `act` with the target of a worker and rank, which get one if they have none. The worker
    /// stays known meanwhile.
    fn with_target<R>(
        &self,
        worker: &str,
        rank: DpRank,
        act: impl FnOnce(Target) -> R,
    ) -> Result<R, String> {
        {
            let workers = self.workers.read();
            if let Some(target) = workers.find(worker, rank) {
                return Ok(act(target));
            }
        }
        let mut workers = self.workers.write();
        let target = workers.add(worker, rank)?;
        self.index
            .register(target, Arc::clone(&self.namespace.model));
        Ok(act(target))
    }

    fn add(
        &self,
        target: Target,
        parent: Option<SequenceHash>,
        chain: &[SequenceHash],
        tier: Tier,
    ) -> u32 {
        self.index
            .store_hashes(target, &self.namespace, parent, chain, tier)
            .applied
    }

    /// Ends the credit of what is cleared; the index's `sweep` frees its memory.
    fn retire(&self, worker: Option<&str>, rank: Option<DpRank>) {
        let mut workers = self.workers.write();
        match (worker, rank) {
            (Some(worker), Some(rank)) => {
                if let Some(target) = workers.find(worker, rank) {
                    self.index.retire(target);
                }
            }
            (worker, _) => {
                for id in workers.remove(worker) {
                    self.index.retire_worker(id);
                }
            }
        }
    }
}

/// Checks a number of tokens per block.
pub(crate) fn block_size_of(block_size: i64) -> PyResult<BlockSize> {
    u64::try_from(block_size)
        .ok()
        .and_then(|tokens| BlockSize::new(tokens).ok())
        .ok_or_else(|| {
            PyValueError::new_err(format!(
                "block_size is {block_size}: expected 1 to {} tokens",
                BlockSize::MAX
            ))
        })
}

/// Checks the number of a data-parallel rank.
pub(crate) fn rank_of(dp_rank: i64) -> PyResult<DpRank> {
    checked_rank(dp_rank).map_err(PyValueError::new_err)
}

fn checked_rank(dp_rank: i64) -> Result<DpRank, String> {
    u16::try_from(dp_rank)
        .map(|rank| DpRank(rank.into()))
        .map_err(|_| format!("dp_rank is {dp_rank}: expected 0 to 65535"))
}

fn tier_of(name: &str) -> PyResult<Tier> {
    Tier::ALL
        .into_iter()
        .find(|tier| tier.as_str() == name)
        .ok_or_else(|| {
            let shown: String = name.chars().take(64).collect();
            PyValueError::new_err(format!(
                "tier is {shown:?}: expected device, host, disk or remote"
            ))
        })
}
