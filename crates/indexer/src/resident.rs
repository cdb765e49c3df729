//! Instances that nobody registered: the workers of the router that the routes are mounted on.

use std::{fmt, sync::Arc};

use kv_blocks::Target;

/// One data-parallel rank of a router's worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResidentInstance {
    /// Whose cache it is.
    pub target: Target,
    /// The worker's name.
    pub instance: Arc<str>,
    /// What kind of engine it is.
    pub engine: &'static str,
    /// The model its blocks belong to; `None` while it is not known.
    pub model: Option<Arc<str>>,
    /// Tokens in one of its blocks.
    pub block_size: u32,
    /// State of its event stream; `None` without one.
    pub state: Option<&'static str>,
}

/// Says which instances there are beside the registered ones. They belong to tenant `default`.
#[derive(Clone)]
pub struct ResidentInstances(Arc<dyn Fn() -> Vec<ResidentInstance> + Send + Sync>);

impl ResidentInstances {
    /// Those that `list` returns, in whatever order. Asked with every call, so it must be quick.
    pub fn new(list: impl Fn() -> Vec<ResidentInstance> + Send + Sync + 'static) -> Self {
        Self(Arc::new(list))
    }

    /// None at all.
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
