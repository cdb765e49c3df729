//! Starts a stream over both ways.

use std::sync::Arc;

use event_log::EventLog;
use net::Clock;
use zmtp::Endpoint;

use super::follower::SharedLogFollower;
use crate::{BlockSink, SourceHandle, SourceSpec, handle::SourceInfo};

/// Follows one publisher's ZMQ sockets or the log of the fleet, and publishes to the log if it is
/// the owner of the stream.
#[derive(Debug)]
pub struct SharedLogSource;

impl SharedLogSource {
    /// Starts following the stream in a task of the current runtime. The publisher must have a
    /// replay endpoint.
    pub fn spawn(
        spec: SourceSpec,
        log: &EventLog,
        sink: Arc<dyn BlockSink>,
        clock: Clock,
    ) -> SourceHandle {
        let about = SourceInfo {
            kind: "zmq",
            worker: Arc::clone(&spec.worker),
            rank: spec.target.rank.0,
            endpoint: spec.endpoint.to_string(),
            replay_endpoint: spec.replay_endpoint.as_ref().map(Endpoint::to_string),
        };
        let member = log.join(&spec.worker, spec.target.rank.0);
        SourceHandle::start(about, clock, |status_sender, control| {
            SharedLogFollower::new(spec, member, sink, clock).run(status_sender, control)
        })
    }
}
