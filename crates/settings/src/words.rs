//! Words of the configuration, and the enums that they are read into.

/// Whether this version supports a key or a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability {
    /// Supported.
    Now,
    /// Known, but only its default is accepted: a file that relies on such a key (who may connect,
    /// where requests go) must not run as if it were not there.
    Later,
}

/// A word that a key takes.
#[derive(Clone, Copy, Debug)]
pub struct WordChoice {
    /// The word.
    pub word: &'static str,
    /// Other spellings; upper case, `-` and `_` never matter.
    pub also: &'static [&'static str],
    /// Whether this version supports it.
    pub built: Availability,
}

impl WordChoice {
    /// Returns whether a text is this word, in any spelling.
    pub fn matches(&self, text: &str) -> bool {
        std::iter::once(&self.word)
            .chain(self.also)
            .any(|word| fold(word).eq(fold(text)))
    }
}

/// Normalizes a word: `RoundRobin`, `round-robin` and `round_robin` are equal.
fn fold(text: &str) -> impl Iterator<Item = char> {
    text.chars()
        .filter(|character| !matches!(character, '-' | '_'))
        .map(|character| character.to_ascii_lowercase())
}

/// Returns a supported word.
pub const fn word(word: &'static str) -> WordChoice {
    WordChoice {
        word,
        also: &[],
        built: Availability::Now,
    }
}

/// Returns a supported word with other spellings.
pub const fn word_or(word: &'static str, also: &'static [&'static str]) -> WordChoice {
    WordChoice {
        word,
        also,
        built: Availability::Now,
    }
}

/// Returns a word of a later version.
pub const fn word_later(word: &'static str) -> WordChoice {
    WordChoice {
        word,
        also: &[],
        built: Availability::Later,
    }
}

/// Declares an enum of configuration words, in the order of the documentation.
///
/// `_ = "auto"` before the variants is a word that stands for no variant (the field is an
/// `Option`); words behind `later` are known, but not supported by this version.
///
/// ```
/// settings::words! {
///     /// Wire format.
///     #[derive(Clone, Copy, Debug, PartialEq, Eq)]
///     pub enum WireFormat {
///         _ = "auto",
///         /// One JSON object per line.
///         Json = "json" | "ndjson",
///         /// For people.
///         Pretty = "pretty",
///     }
///     later "binary";
/// }
///
/// assert_eq!(WireFormat::Json.as_str(), "json");
/// assert_eq!(WireFormat::WORDS.len(), 4);
/// ```
#[macro_export]
macro_rules! words {
    (
        $(#[$meta:meta])*
        $visibility:vis enum $Words:ident {
            $(_ = $unset:literal,)?
            $(
                $(#[$variant_meta:meta])*
                $Variant:ident = $word:literal $(| $also:literal)*
            ),+ $(,)?
        }
        $(later $($later:literal),+ ;)?
    ) => {
        $(#[$meta])*
        $visibility enum $Words {
            $($(#[$variant_meta])* $Variant,)+
        }

        impl $Words {
            /// Words of the configuration.
            pub const WORDS: &'static [$crate::WordChoice] = &[
                $($crate::word($unset),)?
                $($crate::word_or($word, &[$($also),*]),)+
                $($($crate::word_later($later),)+)?
            ];

            /// Returns the word of the configuration.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$Variant => $word,)+
                }
            }
        }

        impl $crate::Setting for $Words {
            const KIND: $crate::ValueKind = $crate::ValueKind::Word(Self::WORDS);

            fn read(value: &$crate::CheckedValue) -> ::core::option::Option<Self> {
                match value.word()? {
                    $($word => ::core::option::Option::Some(Self::$Variant),)+
                    _ => ::core::option::Option::None,
                }
            }
        }
    };
}
