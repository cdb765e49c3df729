//! One bound socket that many publishers connect to: which stream a message belongs to, and whose cache that is.
//!
//! Publishers number their batches each for itself, and the ranks of one engine may share a topic, so every topic and rank
//! has a [`Track`](crate::track::Track) of its own. History cannot be asked for here: nobody knows where.

mod follower;
mod socket;
mod source;
mod topic;

pub use socket::{SharedSocket, SocketMember};
pub use source::{PublisherInfo, PublisherLookup, SharedSpec};
pub use topic::PodTopic;
