//! A conversation: what follows a reply after which both connections leave HTTP. It carries the
//! rest of the request, as the body of another reply does.

use dialect::ErrorCode;
use fleet::FailureKind;
use proxy::{AbortSignal, Tunnel, TunnelEnd};

use super::record::RequestGuard;

/// A conversation that is about to begin. It owns everything that the request still holds: both
/// connections, the load, the receipt.
#[derive(Debug)]
pub(crate) struct Conversation {
    tunnel: Tunnel,
    /// Resolves at the end of the drain time.
    abort: AbortSignal,
    guard: Box<RequestGuard>,
}

impl Conversation {
    pub(super) fn new(tunnel: Tunnel, abort: AbortSignal, guard: Box<RequestGuard>) -> Self {
        Self {
            tunnel,
            abort,
            guard,
        }
    }

    /// Carries the conversation to its end and records that.
    pub(super) async fn run(self) {
        let Self {
            tunnel,
            abort,
            mut guard,
        } = self;
        match tunnel.run(abort).await {
            TunnelEnd::Closed => guard.complete(),
            // What a guard records without an end.
            TunnelEnd::ClientGone => {}
            TunnelEnd::Broken => {
                let worker = Some(FailureKind::MidStream);
                guard.record_cut(ErrorCode::StreamInterrupted, worker);
            }
            // Nobody is at fault where both sides are silent.
            TunnelEnd::Idle => guard.record_cut(ErrorCode::StreamIdleTimeout, None),
            TunnelEnd::TooLong => guard.record_cut(ErrorCode::StreamTooLong, None),
            TunnelEnd::Aborted => guard.record_cut(ErrorCode::StreamInterrupted, None),
        }
    }
}
