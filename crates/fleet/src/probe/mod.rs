//! Probes that identify a worker. Every answer is capped and read defensively; a missing one costs
//! only its own information.

pub(crate) mod client;
mod connect;
mod engine_figures;
pub(crate) mod event_endpoints;
pub(crate) mod health_check;
mod identity;
mod iteration_stats;
mod messages;
mod metrics_page;
pub(crate) mod metrics_text;
pub(crate) mod model_list;
pub(crate) mod prefix_cache;
mod salts;

pub(crate) use client::{ProbeClient, ProbeError};
pub(crate) use connect::connect;
pub(crate) use health_check::HealthCheckPlan;
pub(crate) use identity::{
    CheckPace, ConfiguredIdentity, EngineFacts, EngineIdentity, identify, list_models, scrape,
};
pub(crate) use metrics_text::{EngineMetrics, Scrape};
pub(crate) use salts::salt_support;
