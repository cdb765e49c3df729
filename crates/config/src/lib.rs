//! YAML text, environment and flags become checked [`Settings`], or a list of every [`Problem`]
//! found.
//!
//! Stages: text to a tree with origins (`yaml`), tidy top level (`top`), variables and flags
//! (`overlay`), the walk against the schema table (`check`), relations between keys (`build`).
//!
//! Nothing here reads a file, the environment or a clock: text and variables come in as values.
//!
//! **Invariant**: settings that exist are valid; a run of [`load`] reports all problems, not the
//! first one; a secret is in no problem and in no output.

mod build;
mod check;
mod expand;
mod foreign;
mod json_object;
mod json_schema;
mod key_path;
mod keys_file;
mod load;
mod more_workers;
mod origins;
mod overlay;
mod paths;
mod problem;
mod reference_page;
mod reload;
mod schema;
mod secret_keys;
mod sections;
mod starter;
mod text_forms;
mod top;
mod yaml;

pub use api::Problem;
pub use build::check_listed_tenants;
pub use json_schema::schema;
pub use key_path::map_path;
pub use keys_file::keys_file;
pub use load::{ConfigSource, MoreWorker, Override, all_problems, load};
pub use more_workers::worker_entries;
pub use paths::{is_simulated, simulated_keys};
pub use problem::{ProblemDraft, report};
pub use reference_page::reference_page;
pub use reload::ConfigChanges;
pub use schema::{ROOT, TOP_ALIASES};
pub use sections::*;
pub use settings::{
    AddressRange, AddressRangeError, CheckUrl, ListenSetting, ListenSettingError, RedisAddress,
    RedisUrl, RedisUrlError, Secret, WebOrigin, WebOriginError, duration, nearest,
};
pub use starter::starter;
pub use yaml::{MAX_TEXT_BYTES, parse as parse_yaml};
