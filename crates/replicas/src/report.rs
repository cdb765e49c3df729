//! `GET /admin/replicas`.

use api::{ReplicaReport, ReplicaReports};
use config::ReplicaMode;
use kv_blocks::Moment;

use crate::{
    identity::ShownId,
    peers::{Peer, PeerState},
    replicas::ReplicaCore,
};

pub(crate) fn report(core: &ReplicaCore) -> ReplicaReports {
    let now = core.clock.now();
    let mut replicas = Vec::new();
    if core.settings.mode != ReplicaMode::Alone {
        replicas.push(own(core));
        let peers = core.peers.lock();
        replicas.extend(peers.all().map(|peer| report_of(core, peer, now)));
    }
    ReplicaReports {
        own: ShownId(core.identity.id).to_string(),
        mode: mode(core.settings.mode).into(),
        namespace: core.settings.namespace.clone(),
        component: core.settings.component.clone(),
        load_sync: core.settings.load_sync,
        replicas,
        snapshot: core.sink.shared_events().snapshot.unwrap_or_default(),
    }
}

fn shown(digest: u64) -> String {
    ShownId(digest).to_string()
}

fn mode(mode: ReplicaMode) -> &'static str {
    match mode {
        ReplicaMode::Alone => "none",
        ReplicaMode::Nats => "nats",
        ReplicaMode::Peers => "peers",
    }
}

fn own(core: &ReplicaCore) -> ReplicaReport {
    let digest = core.router.own_load_digest();
    let events = core.sink.shared_events();
    ReplicaReport {
        id: ShownId(core.identity.id).to_string(),
        address: core.identity.address.clone(),
        version: core.identity.program.to_owned(),
        since_s: core.up_time().as_secs_f64(),
        last_seen_s: 0.0,
        state: "live".into(),
        reason: None,
        load_digest: ShownId(digest.sum).to_string(),
        open_requests: digest.open,
        queued_requests: core.router.queued_requests() as u64,
        counted_requests: digest.open,
        repairs: 0,
        index_digest: core.index_digest().map(shown),
        lag_messages: events.lag_messages,
        owns_streams: events.owns_streams,
    }
}

fn report_of(core: &ReplicaCore, peer: &Peer, now: Moment) -> ReplicaReport {
    let (state, said) = (peer.state(), &peer.presence);
    let counted = core.router.peer_load_digest(peer.number);
    ReplicaReport {
        id: ShownId(peer.id).to_string(),
        address: said.address.clone(),
        version: said.program.clone(),
        since_s: now.since(peer.since).as_secs_f64(),
        last_seen_s: now.since(peer.last_seen).as_secs_f64(),
        state: state.as_str().into(),
        reason: match state {
            PeerState::Refused(reason) => Some(reason.as_str().into()),
            _ => None,
        },
        load_digest: ShownId(said.load_digest).to_string(),
        open_requests: said.open,
        queued_requests: said.queued,
        counted_requests: counted.open,
        repairs: peer.repairs,
        index_digest: said.index_digest.map(shown),
        lag_messages: said.lag_messages,
        owns_streams: said.owns_streams.clone(),
    }
}
