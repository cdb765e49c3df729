//! Features that this program was built with.

/// Cargo features in alphabetical order, or `none`.
pub(super) const BUILT: &str = match (
    cfg!(feature = "nats"),
    cfg!(feature = "redis-cache"),
    cfg!(feature = "s3-cache"),
) {
    (true, true, true) => "nats,redis-cache,s3-cache",
    (true, true, false) => "nats,redis-cache",
    (true, false, true) => "nats,s3-cache",
    (true, false, false) => "nats",
    (false, true, true) => "redis-cache,s3-cache",
    (false, true, false) => "redis-cache",
    (false, false, true) => "s3-cache",
    (false, false, false) => "none",
};
