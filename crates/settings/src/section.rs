//! Sections: one declaration per key, in the crate that uses it.

use crate::{CheckedValue, KeySchema, ValueKind};

/// A type that the value of a key is read into.
pub trait Setting: Sized {
    /// Values that a key of this type takes, unless its declaration names another kind.
    const KIND: ValueKind;

    /// Reads a checked value; `None` if it is unset, or a word such as `auto` that stands for no
    /// value of the type.
    fn read(value: &CheckedValue) -> Option<Self>;

    /// Takes from `started`, the settings of the running program, the values that a running program
    /// cannot change. Only sections have such values.
    fn keep_restart_keys(&mut self, started: &Self) {
        let _ = started;
    }
}

/// A section of the configuration, declared by [`section!`](crate::section).
pub trait Section: Setting {
    /// Its keys, in the order of the documentation.
    const KEYS: &'static [KeySchema];
}

/// Returns a section with the defaults of its keys.
///
/// # Panics
///
/// If a key without a default is no `Option`: such a section is declared as `optional struct`.
pub fn defaults<T: Section>() -> T {
    T::read(&CheckedValue::defaults(T::KEYS)).expect("every key has a default of its type")
}

/// Returns the default of one key of a section.
///
/// # Panics
///
/// If the section has no such key, or if the key has no default of this type.
pub fn default_value<T: Setting>(keys: &'static [KeySchema], name: &str) -> T {
    T::read(CheckedValue::defaults(keys).key(name)).expect("the key has a default of its type")
}

/// Declares a section: the struct that its user reads, and everything that is known about its keys.
///
/// Each key is `name: Type = "default" in KIND, reload;` below its documentation, which is also the
/// text of the reference page:
///
/// - The name of the key is that of the field; `name "key": ..` sets another one.
/// - The type is any [`Setting`](crate::Setting). The default is written as in a file; `"~"` is
///   unset, and such a field is an `Option`. A nested section has no default.
/// - `in KIND` replaces the type's own kind, for example by a range.
/// - `live` takes effect at once, `restart` at the next start; `later` is known but not built
///   yet.
/// - `, simulated` behind it lets `simulate --set` vary the key.
///
/// An `optional struct` has keys that must be set: their default is `"~"` and their type no
/// `Option`. It has no `Default`, and a field `Option<..>` of it is `None` where one is not set.
///
/// Fields in a `with` block behind the keys are no keys: they begin with their `Default`, for the
/// checks between keys to fill in.
///
/// ```
/// use std::time::Duration;
///
/// settings::section! {
///     /// A queue.
///     #[derive(Clone, Debug, PartialEq)]
///     pub struct QueueSettings {
///         /// Longest wait.
///         wait: Duration = "30s", live, simulated;
///         /// Most entries.
///         max_entries: usize = "100" in settings::kinds::COUNT, restart;
///         /// File that keeps them.
///         file: Option<std::path::PathBuf> = "~", later;
///     }
/// }
///
/// let queue = QueueSettings::default();
/// assert_eq!((queue.wait, queue.max_entries), (Duration::from_secs(30), 100));
/// ```
#[macro_export]
macro_rules! section {
    (
        $(#[$meta:meta])*
        $visibility:vis struct $Section:ident { $($keys:tt)* }
        $(with { $($more:tt)* })?
    ) => {
        $crate::section! {
            $(#[$meta])*
            $visibility optional struct $Section { $($keys)* }
            $(with { $($more)* })?
        }

        impl ::core::default::Default for $Section {
            fn default() -> Self {
                $crate::defaults()
            }
        }
    };
    (
        $(#[$meta:meta])*
        $visibility:vis optional struct $Section:ident {
            $(
                $(#[doc = $doc:literal])+
                $field:ident $($key:literal)? :
                    $type:ty $(= $default:literal $(in $kind:expr)?)?,
                    $reload:ident $(, $simulated:ident)?;
            )*
        }
        $(with {
            $(
                $(#[$more_meta:meta])*
                $more_visibility:vis $more:ident: $more_type:ty;
            )*
        })?
    ) => {
        $(#[$meta])*
        $visibility struct $Section {
            $(
                $(#[doc = $doc])+
                pub $field: $type,
            )*
            $($(
                $(#[$more_meta])*
                $more_visibility $more: $more_type,
            )*)?
        }

        impl $crate::Section for $Section {
            const KEYS: &'static [$crate::KeySchema] = &[
                $($crate::KeySchema {
                    name: $crate::key_name!($field $($key)?),
                    kind: $crate::key_kind!([$type] $($($kind)?)?),
                    default: ::core::concat!($($default)?),
                    doc: ::core::concat!($($doc),+).trim_ascii_start(),
                    built: $crate::key_availability!($reload),
                    reload: $crate::key_reload!($reload),
                    simulated: $crate::key_is_simulated!($($simulated)?),
                },)*
            ];
        }

        impl $crate::Setting for $Section {
            const KIND: $crate::ValueKind =
                $crate::ValueKind::Section(<Self as $crate::Section>::KEYS);

            fn read(section: &$crate::CheckedValue) -> ::core::option::Option<Self> {
                let _ = section;
                ::core::option::Option::Some(Self {
                    $($field: <$type as $crate::Setting>::read(
                        section.key($crate::key_name!($field $($key)?)),
                    )?,)*
                    $($($more: ::core::default::Default::default(),)*)?
                })
            }

            fn keep_restart_keys(&mut self, started: &Self) {
                let _ = started;
                $($crate::keep_key!($reload, self.$field, started.$field);)*
            }
        }
    };
}

/// Name of a key in [`section!`](crate::section).
#[doc(hidden)]
#[macro_export]
macro_rules! key_name {
    ($field:ident) => {
        ::core::stringify!($field)
    };
    ($field:ident $key:literal) => {
        $key
    };
}

/// Kind of a key in [`section!`](crate::section).
#[doc(hidden)]
#[macro_export]
macro_rules! key_kind {
    ([$type:ty]) => {
        <$type as $crate::Setting>::KIND
    };
    ([$type:ty] $kind:expr) => {
        $kind
    };
}

/// Availability of a key in [`section!`](crate::section).
#[doc(hidden)]
#[macro_export]
macro_rules! key_availability {
    (live) => {
        $crate::Availability::Now
    };
    (restart) => {
        $crate::Availability::Now
    };
    (later) => {
        $crate::Availability::Later
    };
    ($other:ident) => {
        ::core::compile_error!("expected one of live, restart, later")
    };
}

/// When a changed key takes effect, in [`section!`](crate::section).
#[doc(hidden)]
#[macro_export]
macro_rules! key_reload {
    (restart) => {
        $crate::Reload::Restart
    };
    ($other:ident) => {
        $crate::Reload::Live
    };
}

/// Whether a simulation may vary a key, in [`section!`](crate::section).
#[doc(hidden)]
#[macro_export]
macro_rules! key_is_simulated {
    () => {
        false
    };
    (simulated) => {
        true
    };
    ($other:ident) => {
        ::core::compile_error!("expected `simulated` or nothing")
    };
}

/// Takes over the value of a key that takes effect at the next start, in
/// [`section!`](crate::section).
#[doc(hidden)]
#[macro_export]
macro_rules! keep_key {
    (restart, $new:expr, $started:expr) => {
        ::core::clone::Clone::clone_from(&mut $new, &$started)
    };
    ($other:ident, $new:expr, $started:expr) => {
        $crate::Setting::keep_restart_keys(&mut $new, &$started)
    };
}
