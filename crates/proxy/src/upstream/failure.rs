//! How far an exchange with a worker came that failed.

use net::LocalFault;

/// How far an attempt came that got no reply head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendFailure {
    /// C0: the worker provably executed nothing.
    NotSent(NotSent),
    /// C1: bytes were sent, no head came back.
    NoHead,
    /// C1: the answer is not HTTP.
    Protocol,
}

/// The reason why nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotSent {
    /// The port refused the connection.
    Refused,
    /// The connection failed for another reason.
    Unreachable,
    /// The fault is local to this process.
    Local(LocalFault),
}

/// A reply that broke off, or that is not valid HTTP.
#[derive(Debug)]
pub struct BodyError(pub(super) String);

impl std::fmt::Display for BodyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BodyError {}

/// The reason why a reply could not be read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// It broke off.
    Broken,
    /// It is longer than allowed.
    TooLong,
}
