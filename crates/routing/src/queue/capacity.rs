//! The limits of the queue.

use super::{QueueLimit, QueueSettings, WaitQueue, shares::TenantSlot};
use crate::{JobTenant, Ticket};

/// The queued requests that a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CountedRequests {
    /// All.
    All,
    /// Those that wait for room. They have three quarters of each limit: they wait for minutes, and
    /// would leave no place to those that wait for seconds.
    ForRoom,
}

impl CountedRequests {
    /// Returns the part of a limit that these requests may take.
    pub(super) fn part_of(self, most: u64) -> u64 {
        match self {
            Self::All => most,
            Self::ForRoom => most - most / 4,
        }
    }
}

/// Queued requests of one tenant. Their bytes are without the lists of candidates, which tenants
/// share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct QueuedAmount {
    pub(super) requests: usize,
    pub(super) bytes: u64,
}

impl WaitQueue {
    /// Returns whether one more request of a tenant fits that retains this many bytes.
    pub(crate) fn has_capacity(
        &self,
        settings: &QueueSettings,
        tenant: &JobTenant<'_>,
        bytes: u64,
    ) -> Result<(), QueueLimit> {
        self.has_place(settings, tenant, (bytes, 0), CountedRequests::All)
    }

    /// Returns whether one more such request of a tenant fits that retains this many bytes, and whose
    /// lists of candidates add so many to the queue.
    pub(super) fn has_place(
        &self,
        settings: &QueueSettings,
        tenant: &JobTenant<'_>,
        (bytes, lists): (u64, u64),
        counted: CountedRequests,
    ) -> Result<(), QueueLimit> {
        self.shares.has_capacity(settings, tenant, bytes, counted)?;
        let (requests, used) = match counted {
            CountedRequests::All => (self.requests.len(), self.bytes),
            CountedRequests::ForRoom => (self.waiting_for_room(), self.room_bytes),
        };
        let fits = (requests as u64) < counted.part_of(settings.max_entries as u64)
            && used.saturating_add(bytes).saturating_add(lists)
                <= counted.part_of(settings.max_bytes);
        if fits {
            Ok(())
        } else {
            Err(QueueLimit::Router)
        }
    }

    /// Returns whether a queued request may wait for room: it has before, or one more may.
    pub(crate) fn may_wait_for_room(&self, ticket: Ticket, settings: &QueueSettings) -> bool {
        self.requests.get(&ticket).is_some_and(|request| {
            let tenant = request.job.job().tenant();
            let counted = CountedRequests::ForRoom;
            let fits = || self.has_place(settings, &tenant, (request.bytes, 0), counted);
            request.room.is_some() || fits().is_ok()
        })
    }

    /// Counts a request that begins to wait for room, or no longer does.
    pub(super) fn count_room(&mut self, (tenant, bytes): (TenantSlot, u64), waits: bool) {
        self.shares.count_room((tenant, bytes), waits);
        self.room_bytes = if waits {
            self.room_bytes.saturating_add(bytes)
        } else {
            self.room_bytes.saturating_sub(bytes)
        };
    }
}
