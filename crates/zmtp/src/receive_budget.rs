//! One bound on the incomplete messages of all peers of bound sockets.
//!
//! A peer that connects to a bound socket is unknown until a whole message has arrived, and each of
//! many peers may send a message of the maximum length. When their bytes exceed the budget, the
//! peer with most of them is disconnected: a publisher whose messages have the usual length is
//! never that one.
//!
//! **Invariant**: the counted bytes are those of all live accounts, less [`FREE`] bytes each.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Budget of incomplete messages of all peers of all bound sockets of the process, in bytes. One
/// message may be longer where a socket accepts that.
const MOST: usize = 256 << 20;
/// Bytes of each peer that do not count: about the size of one read.
const FREE: usize = 64 << 10;

/// A byte budget and the peers that share it.
#[derive(Debug)]
pub struct ReceiveBudget {
    most: usize,
    state: Mutex<BudgetState>,
}

#[derive(Debug, Default)]
struct BudgetState {
    next: u64,
    total: usize,
    /// Peers with counted bytes; at most one entry per connection.
    accounts: HashMap<u64, BudgetEntry>,
}

#[derive(Debug)]
struct BudgetEntry {
    bytes: usize,
    revoked: Arc<Notify>,
}

impl ReceiveBudget {
    /// Creates a budget of `most` bytes.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            state: Mutex::default(),
        })
    }

    /// Returns the budget of the process, 256 MiB.
    pub fn of_process() -> Arc<Self> {
        static ALL: LazyLock<Arc<ReceiveBudget>> = LazyLock::new(|| ReceiveBudget::new(MOST));
        Arc::clone(&ALL)
    }

    /// Opens an account for a connection whose messages have at most `max_message` bytes.
    pub(crate) fn account(self: &Arc<Self>, max_message: usize) -> ReceiveAccount {
        let id = {
            let mut state = self.state.lock();
            state.next += 1;
            state.next
        };
        ReceiveAccount {
            budget: Arc::clone(self),
            id,
            most: self.most.max(max_message),
            bytes: 0,
            revoked: Arc::default(),
        }
    }
}

/// A budget is equal to itself only.
impl PartialEq for ReceiveBudget {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for ReceiveBudget {}

impl BudgetState {
    fn remove(&mut self, id: u64) -> Option<BudgetEntry> {
        let entry = self.accounts.remove(&id)?;
        self.total -= entry.bytes;
        Some(entry)
    }

    /// Returns the largest account, if it is another one than `id`.
    fn largest_but(&self, id: u64) -> Option<u64> {
        let (largest, _) = self.accounts.iter().max_by_key(|(_, entry)| entry.bytes)?;
        Some(*largest).filter(|largest| *largest != id)
    }
}

/// One connection's share of the budget. Dropping it frees the share.
#[derive(Debug)]
pub(crate) struct ReceiveAccount {
    budget: Arc<ReceiveBudget>,
    id: u64,
    most: usize,
    /// Counted bytes.
    bytes: usize,
    revoked: Arc<Notify>,
}

impl ReceiveAccount {
    /// Sets the connection's bytes. `false`: it must close. Connections with more bytes close
    /// before it.
    pub(crate) fn set(&mut self, bytes: usize) -> bool {
        let bytes = bytes.saturating_sub(FREE);
        if bytes == self.bytes {
            return true;
        }
        let mut state = self.budget.state.lock();
        if state.remove(self.id).is_none() && self.bytes > 0 {
            // Revoked meanwhile.
            return false;
        }
        self.bytes = bytes;
        if bytes == 0 {
            return true;
        }
        state.total += bytes;
        state.accounts.insert(
            self.id,
            BudgetEntry {
                bytes,
                revoked: Arc::clone(&self.revoked),
            },
        );
        while state.total > self.most {
            let Some(largest) = state.largest_but(self.id) else {
                // Otherwise the account's own bytes would evict further connections.
                state.remove(self.id);
                return false;
            };
            if let Some(entry) = state.remove(largest) {
                entry.revoked.notify_one();
            }
        }
        true
    }

    /// Resolves when the connection must close.
    pub(crate) async fn revoked(&self) {
        self.revoked.notified().await;
    }
}

impl Drop for ReceiveAccount {
    fn drop(&mut self) {
        self.budget.state.lock().remove(self.id);
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    const MIB: usize = 1 << 20;

    fn total(budget: &ReceiveBudget) -> usize {
        budget.state.lock().total
    }

    #[test]
    #[contract("S79")]
    fn the_peer_with_the_most_bytes_is_disconnected() {
        let budget = ReceiveBudget::new(10 * MIB);
        let mut accounts: Vec<_> = (0..3).map(|_| budget.account(4 * MIB)).collect();
        assert!(accounts[0].set(4 * MIB) && accounts[1].set(3 * MIB) && accounts[2].set(2 * MIB));
        assert!(accounts[2].set(4 * MIB - 1), "another peer has more");
        assert!(
            !accounts[0].set(4 * MIB + 1),
            "the peer is already being disconnected"
        );
        assert!(total(&budget) <= 10 * MIB);
        assert!(!accounts[2].set(8 * MIB), "now this peer has the most");
        drop(accounts);
        assert_eq!((total(&budget), budget.state.lock().accounts.len()), (0, 0));
    }

    #[test]
    fn small_reads_do_not_count_and_one_long_message_always_fits_the_budget() {
        let budget = ReceiveBudget::new(MIB);
        let mut small: Vec<_> = (0..100).map(|_| budget.account(MIB)).collect();
        assert!(small.iter_mut().all(|account| account.set(FREE)));
        assert_eq!(total(&budget), 0);
        let mut long = budget.account(5 * MIB);
        assert!(long.set(5 * MIB));
        assert!(long.set(0) && total(&budget) == 0);
    }

    #[tokio::test]
    async fn a_peer_over_the_budget_is_notified() {
        let budget = ReceiveBudget::new(MIB);
        let (mut large, mut small) = (budget.account(1), budget.account(1));
        assert!(large.set(MIB) && small.set(MIB / 2));
        large.revoked().await;
    }
}
