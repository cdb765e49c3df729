//! Requests enter the queue, change their candidates and leave.

use std::{sync::Arc, time::Duration};

use kv_blocks::Moment;

use super::{
    ExpectedTarget, QueueEnd, QueueEntry, QueueLimit, QueueSettings, QueuedJob, QueuedRequest,
    TargetAvailability, WaitQueue, capacity::CountedRequests, least_virtual,
};
use crate::Ticket;

/// Longest delay before requests with changed candidates are offered to new targets. The change of
/// the fleet affects other requests too, and all of them have to be in the queue before the first
/// one is released: the last one that leaves the old targets ends the delay.
const MOVE_TIME: Duration = Duration::from_millis(250);

impl WaitQueue {
    /// Adds a job, if there is capacity.
    pub(crate) fn push(
        &mut self,
        now: Moment,
        settings: &QueueSettings,
        availability: TargetAvailability<'_>,
        entrant: QueueEntry,
    ) -> Result<Ticket, QueueLimit> {
        let QueueEntry {
            job,
            mut terms,
            work,
            minds_backlog,
            caller_bytes,
            winner,
            room,
            room_until,
        } = entrant;
        let bytes = caller_bytes.saturating_add(job.own_bytes());
        let lists: u64 = job
            .sets()
            .filter(|set| !self.sets.knows(set))
            .map(|set| set.bytes())
            .sum();
        let tenant = job.job().tenant();
        self.has_place(settings, &tenant, (bytes, lists), CountedRequests::All)?;
        if room.is_some() {
            self.has_place(settings, &tenant, (bytes, 0), CountedRequests::ForRoom)?;
        }
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let share = self.shares.queue(&tenant, work);
        terms.program_start_ms = share.program_start_ms();
        let queue = self.queues.queue_of(
            now,
            availability,
            &job.pool.set.targets,
            winner.is_none().then_some(now),
        );
        self.enter(
            ticket,
            QueuedRequest {
                rank: terms.rank(now, settings.ageing),
                terms,
                share,
                bytes,
                queue,
                job: Arc::new(job),
                minds_backlog,
                waits_for_room: room.is_some(),
                room,
                room_until,
                expected: winner.map(|target| ExpectedTarget::new(target, work.prefill_ms)),
            },
            None,
        );
        if let Some(winner) = winner {
            self.queues.change(queue, |queue| {
                match availability.is_available(now, winner, queue) {
                    // A request inserted before the cursor is tried next as well.
                    true if queue.offers(winner) => {}
                    true => queue.open(now, winner),
                    false => queue.open_at(winner, availability.available_at(now, winner, queue)),
                }
            });
        }
        Ok(ticket)
    }

    /// Adds a request to its queue. `moved_ms`: the virtual time of its tenant in the queue from which
    /// it is moved.
    fn enter(&mut self, ticket: Ticket, mut request: QueuedRequest, moved_ms: Option<f64>) {
        let lists: u64 = request.job.sets().map(|set| self.sets.retain(set)).sum();
        self.bytes = self
            .bytes
            .saturating_add(request.bytes)
            .saturating_add(lists);
        self.shares.add_bytes(request.share.tenant, request.bytes);
        if request.waits_for_room {
            self.count_room((request.share.tenant, request.bytes), true);
        }
        if !request.job.pool.set.targets.is_empty() {
            let queue = (request.queue, request.rank.band);
            let least = |band| self.queues.least_contending_ms(band);
            request.share = self.shares.enter(request.share, (queue, moved_ms), &least);
        }
        self.waiting_work
            .replace(request.share.tenant, None, request.expected);
        let virtual_ms = self.shares.virtual_ms(request.share);
        let added_ms = self.shares.added_ms(request.share);
        self.queues.change(request.queue, |queue| {
            queue.insert(ticket, &request, virtual_ms, added_ms);
        });
        self.requests.insert(ticket, request);
    }

    /// Replaces the candidates of a queued request, which keeps its position. New targets are offered
    /// when no request waits for the old ones any more, after [`MOVE_TIME`] at the latest.
    /// `false`: it is not queued.
    pub(crate) fn replace(
        &mut self,
        now: Moment,
        availability: TargetAvailability<'_>,
        ticket: Ticket,
        (job, until, minds_backlog): (QueuedJob, Moment, bool),
    ) -> bool {
        let Some(mut request) = self.take(ticket) else {
            return false;
        };
        let before = Arc::clone(&request.job.pool.set.targets);
        // A change of the fleet is no return from a time without requests.
        let moved_ms = (!before.is_empty()).then(|| self.shares.virtual_ms(request.share));
        request.bytes = request
            .bytes
            .saturating_sub(request.job.own_bytes())
            .saturating_add(job.own_bytes());
        let targets = Arc::clone(&job.pool.set.targets);
        let all_moved = self.queues.get(request.queue).is_none();
        let offered = if all_moved { now } else { now + MOVE_TIME };
        let queue = self
            .queues
            .queue_of(now, availability, &targets, Some(offered));
        (request.job, request.minds_backlog, request.queue) = (Arc::new(job), minds_backlog, queue);
        // Its target may be gone: it counts again with its next estimate.
        request.expected = None;
        request.terms.until = if request.waits_for_room {
            request.room_until
        } else {
            until
        };
        self.enter(ticket, request, moved_ms);
        let added = targets
            .iter()
            .filter(|target| before.binary_search(target).is_err());
        self.queues.change(queue, |queue| {
            for target in added {
                if availability.is_available(now, *target, queue)
                    && (all_moved || !queue.offers(*target))
                {
                    queue.open(offered, *target);
                }
            }
        });
        true
    }

    /// Removes a request for this reason.
    pub(crate) fn remove(&mut self, ticket: Ticket, end: QueueEnd) -> Option<QueuedRequest> {
        if end == QueueEnd::Bound {
            let id = self.requests.get(&ticket)?.queue;
            self.queues.record_bound(id);
        }
        let request = self.take(ticket)?;
        self.shares
            .unqueue(request.share, end, &least_virtual(&self.queues));
        Some(request)
    }

    /// Takes a request out of its queue.
    fn take(&mut self, ticket: Ticket) -> Option<QueuedRequest> {
        let request = self.requests.remove(&ticket)?;
        let lists: u64 = request.job.sets().map(|set| self.sets.release(set)).sum();
        self.bytes = self
            .bytes
            .saturating_sub(request.bytes)
            .saturating_sub(lists);
        self.shares
            .subtract_bytes(request.share.tenant, request.bytes);
        if request.waits_for_room {
            self.count_room((request.share.tenant, request.bytes), false);
        }
        self.waiting_work
            .replace(request.share.tenant, request.expected, None);
        self.queues
            .change(request.queue, |queue| queue.remove(ticket, &request));
        if !request.job.pool.set.targets.is_empty() {
            let queue = (request.queue, request.rank.band);
            self.shares.leave(request.share, queue);
        }
        self.queues.drop_if_empty(request.queue);
        Some(request)
    }
}
