//! Time, addresses and byte streams: the operating-system services of the edges.
//!
//! TCP and unix sockets are opened here (and, for ZeroMQ's protocol, in `zmtp` through this crate),
//! worker URLs are parsed here and nowhere else, and [`Clock`] is the only reader of the system's
//! time. [`fetch`] is a small client for probes and artefacts. [`Destinations`] restricts the
//! addresses to connect to where an outside party named them, [`StallTimeout`] ends a connection
//! whose other side takes nothing, and [`server`] holds the parts that listeners share.
//!
//! Encryption is set up here and nowhere else: [`TrustRoots`] for outgoing connections,
//! [`TlsIdentity`] for accepted ones.
//!
//! Not here: the request path's connection pool (`gateway`), retries, any knowledge of engines.
//!
//! **Invariant**: the parser that accepts a [`WorkerUrl`] is the one whose result is connected to,
//! so no second reading of the same text can lead elsewhere.

mod address;
mod clock;
mod connect;
mod destinations;
pub mod dns;
pub mod fetch;
pub mod handover;
mod listen;
mod listener_owner;
mod listeners;
mod local_fault;
mod memory;
mod own_address;
mod public_url;
mod resolver;
mod run_time;
pub mod server;
mod stall_timeout;
mod stream;
mod tls;
mod worker_url;

pub use address::{Address, ListenAddr, ListenAddrError};
pub use clock::{Clock, rfc3339};
pub use connect::{connect, dial};
pub use destinations::{Destinations, ForbiddenAddress};
pub use listen::{ListenError, Listener, SharedListener, listen};
pub use listener_owner::{ListenerOwner, listener_owner};
pub use listeners::Listeners;
pub use local_fault::LocalFault;
pub use memory::MemoryStream;
pub use own_address::is_own_address;
pub use public_url::{PublicUrlError, check_public_url};
pub use resolver::{GRACE as NAME_GRACE, REFRESH as NAME_REFRESH, cached_addresses};
pub use run_time::RunTime;
pub use stall_timeout::StallTimeout;
pub use stream::Stream;
pub use tls::{
    ClientNameError, ClientNames, HttpProtocols, IdentityError, IdentityFiles, TlsAccept,
    TlsIdentity, TrustError, TrustRoots,
};
pub use worker_url::{WorkerUrl, WorkerUrlError};
