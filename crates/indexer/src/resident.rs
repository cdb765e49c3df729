//! Instances that are not registered: the workers of the router that mounts the routes.

use std::{fmt, sync::Arc};

use kv_blocks::Target;

/// One data-parallel rank of a router's worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResidentInstance {
    /// Target whose cache it is.
    pub target: Target,
    /// The worker's name.
    pub instance: Arc<str>,
    /// Kind of engine.
    pub engine: &'static str,
    /// Model that its blocks belong to; `None` while it is unknown.
    pub model: Option<Arc<str>>,
    /// Tokens per block.
    pub block_size: u32,
    /// State of its event stream; `None` without one.
    pub state: Option<&'static str>,
}

/// Lists the instances besides the registered ones. They belong to tenant `default`.
#[derive(Clone)]
pub struct ResidentInstances(Arc<dyn Fn() -> Vec<ResidentInstance> + Send + Sync>);

impl ResidentInstances {
    /// Uses the instances that `list` returns, in any order. It is called once per API call, so it
    /// must be quick.
    pub fn new(list: impl Fn() -> Vec<ResidentInstance> + Send + Sync + 'static) -> Self {
        Self(Arc::new(list))
    }

    /// Uses no instances.
    pub fn none() -> Self {
        Self::new(Vec::new)
    }

    pub(crate) fn list(&self) -> Vec<ResidentInstance> {
        (self.0)()
    }
}

impl fmt::Debug for ResidentInstances {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Residents")
    }
}
