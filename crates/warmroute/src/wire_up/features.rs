//! Features that this program was built with.

use std::sync::LazyLock;

/// Cargo features in alphabetical order, or `none`.
pub(super) static BUILT: LazyLock<String> = LazyLock::new(|| {
    let all = [
        (cfg!(feature = "nats"), "nats"),
        (cfg!(feature = "otel"), "otel"),
        (cfg!(feature = "redis-cache"), "redis-cache"),
        (cfg!(feature = "s3-cache"), "s3-cache"),
    ];
    let built = all.iter().filter(|(is_built, _)| *is_built);
    let names: Vec<&str> = built.map(|(_, name)| *name).collect();
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(",")
    }
});
