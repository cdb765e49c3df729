//! YAML text, environment and flags become checked [`Settings`], or a list of every [`Problem`]
//! found.
//!
//! Stages: text to a tree with origins (`yaml`), tidy top level (`top`), variables and flags
//! (`overlay`), the walk against the schema table (`check`), relations between keys (`build`).
//!
//! `convert` turns another router's configuration into a text of ours.
//!
//! Nothing here reads a file, the environment or a clock: text and variables come in as values.
//!
//! **Invariant**: settings that exist are valid; a run of [`load`] reports all problems, not the
//! first one; a secret is in no problem and in no output.

mod build;
mod check;
mod checked_value;
mod convert;
mod expand;
mod foreign;
mod listen;
mod load;
mod more_workers;
mod nearest;
mod origins;
mod overlay;
mod problem;
mod redis_url;
mod reload;
mod scalar;
mod schema;
mod secret;
mod settings;
mod starter;
mod top;
mod tree;
mod value;
mod value_error;
mod yaml;

pub use convert::{
    SourceRouter, convert_command, convert_continuum, convert_flags, convert_vllm_router,
};
pub use listen::{ListenSetting, ListenSettingError};
pub use load::{CheckUrl, ConfigSource, MoreWorker, Override, load};
pub use more_workers::worker_entries;
pub use nearest::nearest;
pub use problem::Problem;
pub use redis_url::{RedisUrl, RedisUrlError};
pub use reload::ConfigChanges;
pub use scalar::duration;
pub use schema::{reference_page, schema};
pub use secret::Secret;
pub use settings::*;
pub use starter::starter;
pub use yaml::MAX_TEXT_BYTES;
