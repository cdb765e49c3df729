//! The one way to a NATS server: addresses, credentials, connections, and what JetStream offers on
//! them.
//!
//! | module | what it has |
//! |---|---|
//! | `server`, `credentials` | the address and the credentials, as configured |
//! | `dial` | [`NatsDialer`]: one connection to a checked address, and its end |
//! | `shared` | [`SharedConnection`]: one connection for several users, made again after each end |
//! | `backoff` | the waits between connections |
//! | `jetstream` | [`JetStream`]: streams, durable consumers and acknowledged publications |
//! | `key_value` | [`Bucket`]: keys with revisions, and their watch |
//! | `token` | any text as a part of a subject, or as a key |
//! | `objects` | [`ObjectStore`]: large values in chunks, each checked by its digest |
//!
//! `async-nats` carries the messages. Its JetStream module is not used: it needs crates that
//! nothing else here needs, and its requests would outlive the connection. What JetStream does are
//! requests with a JSON body on `$JS.API.`; buckets and objects are streams with the layout that
//! the tools of NATS read, too.
//!
//! Not here: the meaning of any message.
//!
//! **Invariant**: a connection goes to an address that `net` has checked; every request has a time
//! limit; every queue has a bound.

pub mod backoff;
mod credentials;
mod dial;
mod jetstream;
mod key_value;
mod objects;
mod server;
mod shared;
mod token;

pub use async_nats::{Client, HeaderMap, Message, StatusCode, Subject, Subscriber};
pub use credentials::{NatsCredentials, NatsCredentialsError};
pub use dial::{ConnectionEvent, DialError, NatsConnection, NatsDialer};
pub use jetstream::{
    AccountInfo, AccountLimits, ConsumerConfig, ConsumerInfo, DeliveredMessage, JetStream,
    JetStreamError, PublishAck, Storage, StoredMessage, StreamConfig, StreamInfo, StreamReader,
};
pub use key_value::{Bucket, BucketConfig, Entry, KeyChange, KeyWatch};
pub use objects::{ObjectInfo, ObjectStore};
pub use server::{NatsServer, NatsServerError};
pub use shared::{ConnectionState, SharedConnection};
pub use token::subject_token;
