//! One bound socket that many publishers connect to: assigns each message to a stream and a target.
//!
//! Publishers number their batches independently, and the ranks of one engine may share a topic, so
//! every topic and rank has its own [`StreamDriver`](crate::stream_driver::StreamDriver). There is
//! no history here: the replay endpoints of the publishers are unknown.

mod follower;
mod refused_peers;
mod socket;
mod source;
mod topic;

pub use socket::{SharedSocket, SocketMember};
pub use source::{PublisherInfo, PublisherLookup, SharedSpec};
pub use topic::PodTopic;
