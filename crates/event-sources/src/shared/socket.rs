//! A shared socket with a changing set of workers: workers join it, and a message finds its worker
//! by its topic.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use kv_blocks::WorkerId;
use kv_events::StreamState;
use kv_index::KvIndex;
use net::Clock;
use parking_lot::{Mutex, RwLock};
use zmtp::PeerFilter;

use super::{PodTopic, PublisherInfo, PublisherLookup, SharedSpec};
use crate::{
    SourceHandle, ZmqSource,
    handle::{SharedStreams, SourceControl, SourceInfo, StatusSender},
    status::{StreamFault, StreamStatus},
};

/// A worker whose messages come over the socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketMember {
    /// The worker.
    pub publisher: PublisherInfo,
    /// Prefix of its topics; the member with the longest matching prefix gets the message.
    pub topic: String,
    /// Whether no other member has the same topic prefix: topics then need not name this member.
    pub alone: bool,
    /// Names of this member in topics of the form `kv@POD@MODEL`. Used where topic prefixes do not
    /// distinguish members.
    pub pods: Vec<String>,
}

/// A bound socket for workers that join it. It closes with its last handle, members included.
#[derive(Debug)]
pub struct SharedSocket {
    source: SourceHandle,
    parts: SharedStreams,
    members: Arc<RwLock<SocketMembers>>,
}

impl SharedSocket {
    /// Binds the socket in a task of the current runtime.
    pub fn bind(mut spec: SharedSpec, index: Arc<KvIndex>, clock: Clock) -> Self {
        let members = Arc::new(RwLock::new(SocketMembers::default()));
        let known = Arc::clone(&members);
        spec.peers = PeerFilter::new(move |address| known.read().expect_peer(address));
        let known = Arc::clone(&members);
        let route = PublisherLookup::new(move |topic| known.read().of(topic).cloned());
        let source = ZmqSource::spawn_shared(spec, route, index, clock);
        let parts = source.shared_streams();
        Self {
            source,
            parts,
            members,
        }
    }

    /// Follows a worker's streams over the socket until the handle is stopped or dropped; its
    /// blocks are dropped then.
    pub fn join(self: &Arc<Self>, member: SocketMember, clock: Clock) -> SourceHandle {
        let id = member.publisher.id;
        let about = SourceInfo {
            kind: "zmq",
            worker: Arc::clone(&member.publisher.worker),
            rank: 0,
            endpoint: self.source.report().endpoint,
            replay_endpoint: None,
        };
        self.members.write().0.insert(id, member);
        let guard = MembershipGuard {
            socket: Arc::clone(self),
            id,
        };
        let own = SharedStreams::new(Mutex::default());
        let shared_streams = Arc::clone(&own);
        SourceHandle::start(about, clock, |status_sender, control| {
            guard.publish_until_stopped(status_sender, control, shared_streams)
        })
        .with_shared_streams(own)
    }
}

/// Removes a member from the socket on drop.
#[derive(Debug)]
struct MembershipGuard {
    socket: Arc<SharedSocket>,
    id: WorkerId,
}

impl MembershipGuard {
    /// Publishes the member's streams until stopped, or until the socket's task ends.
    async fn publish_until_stopped(
        self,
        status_sender: StatusSender,
        mut control: SourceControl,
        shared_streams: SharedStreams,
    ) {
        let mut changes = self.socket.source.changes();
        loop {
            self.show(&status_sender, &shared_streams);
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                // A shared socket has no replay endpoint.
                () = control.resync.notified() => {}
                _ = &mut control.stop => return,
            }
        }
    }

    fn show(&self, status_sender: &StatusSender, shared_streams: &SharedStreams) {
        let of_mine = |(target, part): (&_, &_)| {
            Some((*target, Clone::clone(part))).filter(|_| self.is_mine(target))
        };
        let mine: BTreeMap<_, _> = self
            .socket
            .parts
            .lock()
            .iter()
            .filter_map(of_mine)
            .collect();
        let state = mine
            .values()
            .map(|(_, part)| part.state)
            .reduce(StreamState::worse)
            .unwrap_or(StreamState::Connecting);
        let last_error = if mine.is_empty() {
            self.socket.source.report().last_error
        } else {
            None
        };
        let is_changed = {
            let mut shared_streams = shared_streams.lock();
            let is_changed = *shared_streams != mine;
            *shared_streams = mine;
            is_changed
        };
        if is_changed {
            status_sender.touch();
        }
        status_sender.publish(StreamStatus {
            state,
            last_error: last_error.map(StreamFault::of_connection),
            ..StreamStatus::default()
        });
    }

    fn is_mine(&self, target: &kv_blocks::Target) -> bool {
        target.worker == self.id
    }
}

impl Drop for MembershipGuard {
    fn drop(&mut self) {
        self.socket.members.write().0.remove(&self.id);
    }
}

#[derive(Debug, Default)]
struct SocketMembers(BTreeMap<WorkerId, SocketMember>);

impl SocketMembers {
    /// Returns whether any member may publish from this address.
    fn expect_peer(&self, address: IpAddr) -> bool {
        let mut members = self.0.values();
        members.any(|member| member.publisher.peers.admits(Some(address)))
    }

    /// Returns the publisher of a topic: among the members with the longest matching prefix, the
    /// one that the topic names, or the one that has the prefix alone.
    fn of(&self, topic: &[u8]) -> Option<&PublisherInfo> {
        let fits = |member: &&SocketMember| topic.starts_with(member.topic.as_bytes());
        let longest = self
            .0
            .values()
            .filter(fits)
            .map(|member| member.topic.len())
            .max()?;
        let mut close = self
            .0
            .values()
            .filter(fits)
            .filter(|member| member.topic.len() == longest);
        let pod = PodTopic::parse(topic).map(|topic| topic.pod);
        let is_named = |member: &&SocketMember| {
            pod.is_some_and(|pod| member.pods.iter().any(|own| own == pod))
        };
        let found = close
            .clone()
            .find(is_named)
            .or_else(|| close.find(|member| member.alone));
        found.map(|member| &member.publisher)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EventDefaults;

    fn members(of: &[(&str, &[&str])]) -> SocketMembers {
        let member = |(id, (topic, pods)): (u32, &(&str, &[&str]))| {
            let alone = of.iter().filter(|(other, _)| other == topic).count() == 1;
            let id = WorkerId(id);
            let publisher = PublisherInfo {
                id,
                worker: "w".into(),
                model: "m".into(),
                defaults: EventDefaults::default(),
                peers: PeerFilter::default(),
            };
            let pods = pods.iter().map(|pod| (*pod).to_owned()).collect();
            (
                id,
                SocketMember {
                    publisher,
                    topic: (*topic).to_owned(),
                    alone,
                    pods,
                },
            )
        };
        SocketMembers((0..).zip(of).map(member).collect())
    }

    fn worker_of(members: &SocketMembers, topic: &str) -> Option<u32> {
        members.of(topic.as_bytes()).map(|publisher| publisher.id.0)
    }

    #[test]
    fn the_longest_matching_topic_prefix_selects_the_member() {
        let members = members(&[("kv", &[]), ("kv-big", &[]), ("x", &[])]);
        for (topic, id) in [
            ("kv@a@m", Some(0)),
            ("kv-big-2", Some(1)),
            ("x", Some(2)),
            ("k", None),
            ("", None),
        ] {
            assert_eq!(worker_of(&members, topic), id, "{topic}");
        }
    }

    #[test]
    fn with_equal_topic_prefixes_the_topic_names_the_worker() {
        let members = members(&[
            ("", &["w1", "10.0.0.1:8000"]),
            ("", &["w2", "10.0.0.2:8000"]),
        ]);
        for (topic, id) in [
            ("kv@w1@m", Some(0)),
            ("kv@10.0.0.2:8000@m@v2", Some(1)),
            ("kv@w3@m", None),
            ("kv@w1", None),
            ("", None),
        ] {
            assert_eq!(worker_of(&members, topic), id, "{topic}");
        }
    }

    #[test]
    fn the_topic_of_a_sockets_only_worker_need_not_name_it() {
        let members = members(&[("", &["w1"])]);
        assert_eq!(
            (worker_of(&members, ""), worker_of(&members, "kv@pod-7@m")),
            (Some(0), Some(0))
        );
        // Another member is configured and has not joined yet.
        let mut members = members;
        members
            .0
            .values_mut()
            .for_each(|member| member.alone = false);
        assert_eq!(
            (
                worker_of(&members, "kv@w2@m"),
                worker_of(&members, "kv@w1@m")
            ),
            (None, Some(0))
        );
    }
}
