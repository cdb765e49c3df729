//! Declarations of configuration settings, and the values that they take.
//!
//! A crate declares its section with [`section!`]: for each key its name, type, default,
//! documentation, whether a change takes effect at once, and whether a simulation may vary it. The
//! struct that the crate reads, its `Default`, the schema, the reference page and the checks of a
//! file all follow from that one declaration.
//!
//! Not here: files, variables, flags and the checks between keys. Crate `config` has them.
//!
//! **Invariant**: pure; a value of a section's type passed the check of its kind.

mod address_range;
mod check_url;
mod checked_value;
mod defaults;
mod expected;
mod key;
mod kind;
pub mod kinds;
mod listen;
mod nearest;
mod notation;
mod parse;
mod read;
mod redis_url;
mod secret;
mod section;
mod tree;
mod value_error;
mod vocabulary;
mod web_origin;
mod words;

pub use address_range::{AddressRange, AddressRangeError};
pub use check_url::CheckUrl;
pub use checked_value::{CheckedValue, Value};
pub use defaults::default_of;
pub use expected::names;
pub use key::{KeySchema, Reload};
pub use kind::{Range, Unit, ValueKind};
pub use listen::{ListenSetting, ListenSettingError};
pub use nearest::nearest;
pub use notation::{MAX_DURATION, duration};
pub use parse::scalar;
pub use redis_url::{RedisAddress, RedisUrl, RedisUrlError};
pub use secret::Secret;
pub use section::{Section, Setting, default_value, defaults};
pub use tree::{LocatedValue, MapEntry, ValueNode, ValueOrigin, shown_text};
pub use value_error::ValueError;
pub use web_origin::{WebOrigin, WebOriginError};
pub use words::{Availability, WordChoice, word, word_later, word_or};
