//! The configuration of one supervisor.

use std::{sync::Arc, time::Duration};

use config::{EngineKind, MessagesMode};
use kv_blocks::{BlockSize, WorkerId};

use crate::{
    probe::{HealthCheckPlan, ProbeClient},
    streams::StreamSettings,
    worker_machine::PeriodicChecks,
};

/// A supervisor's configuration.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SupervisorConfig {
    pub(crate) id: WorkerId,
    pub(crate) name: Arc<str>,
    pub(crate) client: ProbeClient,
    pub(crate) health_check: HealthCheckPlan,
    pub(crate) periodic_checks: PeriodicChecks,
    /// The configured kind.
    pub(crate) engine: Option<EngineKind>,
    /// The configured mode for Anthropic messages; `None` = detected.
    pub(crate) messages: Option<MessagesMode>,
    /// The only models that it serves.
    pub(crate) only_models: Vec<Arc<str>>,
    /// The configured block size.
    pub(crate) block_size: Option<BlockSize>,
    /// The configured number of ranks.
    pub(crate) dp_ranks: Option<u32>,
    pub(crate) streams: StreamSettings,
    pub(crate) connect_timeout: Duration,
}
