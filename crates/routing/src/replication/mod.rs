//! Load sync: several routers in front of the same workers see each other's load.
//!
//! Each router is a *replica* and the others are its *peers*. A router queues every change of its
//! own load ([`LoadChange`]) in its feed; a transport takes the changes and brings them, in their
//! order, to the peers, which count the load as their own ([`Router::apply_peer_changes`]). What a
//! router learns from replies (speeds, success, lengths, sessions) goes the same way, so that every
//! replica learns from every request. This module knows neither the transport nor bytes; the
//! transport translates [`Target`](kv_blocks::Target) and [`WorkerId`](kv_blocks::WorkerId), whose
//! numbers differ between processes.
//!
//! **Repair.** [`Router::take_load_changes`] returns with the changes a [`LoadDigest`] of the
//! router's open reservations *after* them. A peer that has applied the changes compares it with
//! [`Router::peer_load_digest`]; a difference shows that a message was lost. The peer then asks for
//! pages: [`Router::take_load_page`] takes the queued changes and, under the same lock, lists the
//! open reservations with ids from a range. A page that is applied right after these changes
//! ([`Router::apply_peer_page`]) is exact: what it lists is open, everything else in its range is
//! closed. So pages go through the same ordered channel as changes, and may go to one peer or to
//! all. A new replica starts without load and asks every peer for all pages; a dead peer is dropped
//! ([`Router::drop_peer`]), and a restarted one is another [`PeerId`].
//!
//! A repeated message changes nothing. A message that overtook another one is as good as lost: the
//! next digest shows it. Ids of one router ascend, so an `Opened` that comes after its `Closed` and
//! after later ones is not counted again; the one that is (`Closed` came before it, and nothing
//! later) lives until the next digest.
//!
//! **Bounds.** A change adds O(1) under the router's lock, and no hash chain is copied: it is
//! shared. Changes, pages and dropped peers are applied in steps of 32 for each hold of the lock.
//!
//! **Decisions at the same time.** A decision is unknown to the peers for the exchange delay, so of
//! N replicas N - 1 may choose a target that one of them just took. In the simulator
//! (`docs/benchmarks/replicas.md`) this alone changed mean time to first token by less than 2 %,
//! with delays of 2 ms. Two effects were larger. An engine computes prompts that meet there
//! together; each router took its first token for that of a lone prefill and learned a slow engine.
//! So a peer's request withdraws the sample of an own one that was sent shortly before. And each
//! replica has a wait queue of its own, orders only its own requests, and sees the same target
//! become free: a target may therefore have the longest backlog once for each replica before it is
//! closed, which is the backlog that all of them together would leave there. Random times of
//! release for each replica, in place of that, made no difference beyond the spread of runs: the
//! loss is the order over all requests, not the requests of one instant.
//!
//! ```
//! use std::sync::Arc;
//!
//! use kv_blocks::Moment;
//! use kv_index::{IndexSettings, KvIndex};
//! use routing::{LoadChange, PeerId, ReservationId, Router, RoutingSettings};
//!
//! let router = || {
//!     let index = Arc::new(KvIndex::new(IndexSettings::default()));
//!     Router::new(RoutingSettings::default(), index)
//! };
//! let (ours, theirs) = (router(), router());
//! // The transport is woken when there is something to take.
//! ours.share_load(65_536, Arc::new(|| ()));
//!
//! let (now, us) = (Moment::START, PeerId(1));
//! let mut changes = Vec::new();
//! let state = ours.take_load_changes(&mut changes);
//! // Here: send `changes` and `state.digest`. There:
//! theirs.apply_peer_changes(now, us, changes);
//! if theirs.peer_load_digest(us) != state.digest {
//!     // Ask for all pages, one after the other. Here:
//!     let (mut changes, mut after) = (Vec::new(), Some(ReservationId::default()));
//!     while let Some(start) = after {
//!         let (page, state) = ours.take_load_page(now, start, 256, &mut changes);
//!         after = page.through;
//!         // There, in this order:
//!         theirs.apply_peer_changes(now, us, std::mem::take(&mut changes));
//!         theirs.apply_peer_page(now, us, page);
//!     }
//! }
//! theirs.drop_peer(now, us);
//! ```

mod apply;
pub(crate) mod change;
pub(crate) mod feed;
mod share;

#[cfg(doc)]
use crate::Router;
pub use change::{FeedState, LoadChange, LoadDigest, LoadPage, OpenLoad, PeerId};
