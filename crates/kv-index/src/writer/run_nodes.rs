//! The writer's data on every run, beside the structure that readers share.

use std::collections::BTreeMap;

use crate::{namespaces::NamespaceId, table::BlockRef};

/// Number of runs among which the oldest is shed.
const SAMPLE: usize = 64;
/// Estimated bytes of a branch in the map of children, its share of free capacity included.
const KID_BYTES: u64 = 24;

/// The writer's data on a run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RunNode {
    /// Runs that hang on this one.
    pub(super) children: u32,
    /// Lines of its hashes.
    pub(super) lines: u32,
    /// Time of the last event for it, counted in touched runs since the start.
    pub(super) touched: u64,
    /// Its blocks without a holder.
    pub(super) unheld: u32,
    pub(super) space: Option<NamespaceId>,
}

/// All runs by number, and the branches between them.
#[derive(Debug, Default)]
pub(super) struct RunNodes {
    pub(super) nodes: Vec<RunNode>,
    pub(super) free: Vec<u32>,
    /// Number of runs that hang on `(run, attach)`.
    pub(super) children: BTreeMap<(u32, u32), u32>,
    clock: u64,
    /// Position of the search for a run to shed.
    clock_hand: usize,
    /// Blocks without a holder, of all runs.
    unheld: u64,
}

impl RunNodes {
    /// Returns the maximum number of runs so far; numbers below may be free.
    pub(super) fn len(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// Returns the data on a run, which must have existed.
    pub(super) fn get(&self, run: u32) -> &RunNode {
        &self.nodes[run as usize]
    }

    /// Returns the namespace of a run; `None` while its number is free.
    pub(super) fn space(&self, run: u32) -> Option<NamespaceId> {
        self.nodes.get(run as usize)?.space
    }

    /// Takes a free number.
    pub(super) fn take_free(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Adds a number, the one behind all others.
    pub(super) fn add(&mut self) {
        self.nodes.push(RunNode::default());
    }

    /// Begins a run under a number that was taken or added.
    pub(super) fn begin(&mut self, run: u32, lines: u32, space: NamespaceId) {
        self.nodes[run as usize] = RunNode {
            lines,
            space: Some(space),
            ..RunNode::default()
        };
    }

    /// Ends a run: its number is free.
    pub(super) fn end(&mut self, run: u32) {
        self.set_unheld(run, 0);
        self.nodes[run as usize] = RunNode::default();
        self.free.push(run);
    }

    /// Sets the number of lines of a run's hashes.
    pub(super) fn set_lines(&mut self, run: u32, lines: u32) {
        self.nodes[run as usize].lines = lines;
    }

    /// Sets the number of a run's blocks without a holder.
    pub(super) fn set_unheld(&mut self, run: u32, unheld: u32) {
        let before = std::mem::replace(&mut self.nodes[run as usize].unheld, unheld);
        self.unheld = self.unheld - u64::from(before) + u64::from(unheld);
    }

    /// Returns the number of blocks without a holder.
    pub(super) fn unheld(&self) -> u64 {
        self.unheld
    }

    /// Records an event for a run.
    pub(super) fn touch(&mut self, run: u32) {
        self.clock += 1;
        self.nodes[run as usize].touched = self.clock;
    }

    /// Restores the time of the last event for a run.
    pub(super) fn set_touched(&mut self, run: u32, touched: u64) {
        self.nodes[run as usize].touched = touched;
        self.clock = self.clock.max(touched);
    }

    /// Adds a run that hangs on the block `last`. Returns how many hang there now.
    pub(super) fn add_child(&mut self, last: BlockRef) -> u32 {
        self.nodes[last.run as usize].children += 1;
        let alike = self.children.entry((last.run, last.at + 1)).or_insert(0);
        *alike += 1;
        *alike
    }

    /// Removes a run that hangs behind `attach` blocks of `parent`.
    pub(super) fn remove_child(&mut self, parent: u32, attach: u32) {
        self.nodes[parent as usize].children -= 1;
        let key = (parent, attach);
        if let Some(count) = self.children.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.children.remove(&key);
            }
        }
    }

    /// Returns the blocks of a run up to the last one that a run hangs on.
    pub(super) fn hung(&self, run: u32) -> u32 {
        if self.get(run).children == 0 {
            return 0;
        }
        self.children
            .range((run, 0)..=(run, u32::MAX))
            .next_back()
            .map_or(0, |((_, attach), _)| *attach)
    }

    /// Returns a run to shed: the oldest of a few dozen without children, other than `pinned`.
    pub(super) fn oldest_leaf(&mut self, pinned: Option<u32>) -> Option<u32> {
        let mut oldest: Option<(u64, u32)> = None;
        let mut seen = 0;
        for _ in 0..self.nodes.len() {
            self.clock_hand = (self.clock_hand + 1) % self.nodes.len();
            let (node, run) = (&self.nodes[self.clock_hand], self.clock_hand as u32);
            if node.space.is_none() || node.children > 0 || pinned == Some(run) {
                continue;
            }
            if oldest.is_none_or(|(touched, _)| node.touched < touched) {
                oldest = Some((node.touched, run));
            }
            seen += 1;
            if seen == SAMPLE {
                break;
            }
        }
        oldest.map(|(_, run)| run)
    }

    /// Returns the bytes of the runs in use and of the branches.
    pub(super) fn bytes(&self) -> u64 {
        let nodes = (self.nodes.len() - self.free.len()) * size_of::<RunNode>();
        nodes as u64 + self.branch_bytes()
    }

    /// Returns the bytes taken from the system.
    pub(super) fn committed(&self) -> u64 {
        let nodes = self.nodes.capacity() * size_of::<RunNode>() + self.free.capacity() * 4;
        nodes as u64 + self.branch_bytes()
    }

    fn branch_bytes(&self) -> u64 {
        self.children.len() as u64 * KID_BYTES
    }
}
