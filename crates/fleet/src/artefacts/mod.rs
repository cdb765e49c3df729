//! Tokenizer and chat template of a model: the lookup and its result.
//!
//! Lookup order: the configuration, the local model-hub cache, the files that our own simulated
//! engine serves on this machine, the engine's own `/tokenize`; else none, and the text identifies
//! a prompt. Nothing is ever downloaded from elsewhere, and no directory is read because an engine
//! names it.
//!
//! **Invariant**: equal files give one [`prompt::PromptModel`], however many workers and names share them.
//! Artefacts that workers bring are used for a model only while all its workers bring equal ones.

mod check;
mod engine;
mod files;
mod hub;
mod loader;
mod model;
mod store;

pub use check::{BadModelFile, check_dir, check_models};
pub use files::ArtefactError;
pub use hub::HubCache;
pub use model::{ModelArtefacts, TokenizerSource};
pub(crate) use store::ArtefactStore;
