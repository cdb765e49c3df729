//! One bound on what all peers of bound sockets may have here in incomplete messages.
//!
//! Whoever connects to a bound socket is unknown until a whole message has come, and each of many peers may send one of
//! the longest that is accepted. When their bytes are too many together, the peer that has most of them is disconnected:
//! a publisher whose messages have the usual length is never that one.
//!
//! **Invariant**: what is counted is what the accounts that live have, less [`FREE`] bytes each.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Bytes of incomplete messages of all peers of all bound sockets of the process. One message may be longer where a
/// socket accepts that.
const MOST: usize = 256 << 20;
/// Each peer has this much that does not count: about what one read takes.
const FREE: usize = 64 << 10;

/// The bytes of all peers that share it.
#[derive(Debug)]
pub struct ReceiveBudget {
    most: usize,
    state: Mutex<BudgetState>,
}

#[derive(Debug, Default)]
struct BudgetState {
    next: u64,
    total: usize,
    /// Peers with bytes that count; one entry for each connection at most.
    accounts: HashMap<u64, BudgetEntry>,
}

#[derive(Debug)]
struct BudgetEntry {
    bytes: usize,
    revoked: Arc<Notify>,
}

impl ReceiveBudget {
    /// A budget of so many bytes.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            state: Mutex::default(),
        })
    }

    /// That of the process, 256 MiB.
    pub fn of_process() -> Arc<Self> {
        static ALL: LazyLock<Arc<ReceiveBudget>> = LazyLock::new(|| ReceiveBudget::new(MOST));
        Arc::clone(&ALL)
    }

    /// An account for a connection whose messages have `max_message` bytes at most.
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

    /// The account that has most, if it is another one than `id`.
    fn largest_but(&self, id: u64) -> Option<u64> {
        let (largest, _) = self.accounts.iter().max_by_key(|(_, entry)| entry.bytes)?;
        Some(*largest).filter(|largest| *largest != id)
    }
}

/// What one connection has of the budget. Dropping it gives that back.
#[derive(Debug)]
pub(crate) struct ReceiveAccount {
    budget: Arc<ReceiveBudget>,
    id: u64,
    most: usize,
    /// That count.
    bytes: usize,
    revoked: Arc<Notify>,
}

impl ReceiveAccount {
    /// The connection has so many bytes now. `false`: it has to go. Others that have more go before it.
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
                // With what it has itself it would go on taking from others.
                state.remove(self.id);
                return false;
            };
            if let Some(entry) = state.remove(largest) {
                entry.revoked.notify_one();
            }
        }
        true
    }

    /// Resolves when the connection has to go.
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
    fn the_peer_that_has_most_is_the_one_that_goes() {
        let budget = ReceiveBudget::new(10 * MIB);
        let mut accounts: Vec<_> = (0..3).map(|_| budget.account(4 * MIB)).collect();
        assert!(accounts[0].set(4 * MIB) && accounts[1].set(3 * MIB) && accounts[2].set(2 * MIB));
        assert!(accounts[2].set(4 * MIB - 1), "another one has more");
        assert!(!accounts[0].set(4 * MIB + 1), "it was told to go");
        assert!(total(&budget) <= 10 * MIB);
        assert!(!accounts[2].set(8 * MIB), "now it is the one");
        drop(accounts);
        assert_eq!((total(&budget), budget.state.lock().accounts.len()), (0, 0));
    }

    #[test]
    fn small_reads_do_not_count_and_one_long_message_always_fits() {
        let budget = ReceiveBudget::new(MIB);
        let mut small: Vec<_> = (0..100).map(|_| budget.account(MIB)).collect();
        assert!(small.iter_mut().all(|account| account.set(FREE)));
        assert_eq!(total(&budget), 0);
        let mut long = budget.account(5 * MIB);
        assert!(long.set(5 * MIB));
        assert!(long.set(0) && total(&budget) == 0);
    }

    #[tokio::test]
    async fn a_peer_that_has_to_go_is_told() {
        let budget = ReceiveBudget::new(MIB);
        let (mut large, mut small) = (budget.account(1), budget.account(1));
        assert!(large.set(MIB) && small.set(MIB / 2));
        large.revoked().await;
    }
}
