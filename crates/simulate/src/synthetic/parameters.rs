//! Parsing of `KIND?NAME=VALUE&...`: a kind and the parameters that differ from its defaults.

use super::{KINDS, MOST_REQUESTS, WorkloadKind, prompt::MOST_BLOCKS};

/// One parameter: a whole number.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// Its name, including the unit.
    pub name: &'static str,
    /// Its default value.
    pub default: u64,
    /// The smallest and the largest value.
    pub range: (u64, u64),
    /// Its description.
    pub doc: &'static str,
}

/// The seed; another one gives another workload of the same shape.
const SEED: Parameter = Parameter {
    name: "seed",
    default: 1,
    range: (0, u64::MAX),
    doc: "another seed is another workload of the same shape",
};

/// Why a name is not a workload's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SyntheticError {
    /// An unknown kind.
    #[error(
        "there is no synthetic workload {found:?}: expected one of {}",
        kinds()
    )]
    UnknownKind {
        /// The kind found.
        found: String,
    },
    /// A parameter without the form `NAME=VALUE`.
    #[error("{found:?} sets nothing: expected NAME=VALUE, with & between several")]
    NotAPair {
        /// The text found.
        found: String,
    },
    /// A parameter that the kind lacks.
    #[error("{kind} has no parameter {found:?}: expected one of {}", names(kind))]
    UnknownParameter {
        /// The kind.
        kind: &'static str,
        /// The name found.
        found: String,
    },
    /// A value outside of the parameter's range.
    #[error("{name} is {found:?}: expected a whole number from {least} to {most}")]
    BadValue {
        /// The parameter.
        name: &'static str,
        /// The value found.
        found: String,
        /// The smallest value.
        least: u64,
        /// The largest value.
        most: u64,
    },
    /// It exceeds the limits on requests or blocks, which protect the memory.
    #[error(
        "it has more than {MOST_REQUESTS} requests or {MOST_BLOCKS} blocks: expected fewer, so ask for fewer or shorter requests"
    )]
    TooLong,
}

/// The values of all parameters of a kind.
#[derive(Clone, Debug)]
pub(super) struct Values(Vec<(&'static str, u64)>);

impl Values {
    /// Returns the value of a parameter that the kind has.
    pub(super) fn get(&self, name: &str) -> u64 {
        self.0
            .iter()
            .find(|(known, _)| *known == name)
            .map_or(0, |(_, value)| *value)
    }

    /// Returns the value of a parameter whose largest value is a u32.
    pub(super) fn tokens(&self, name: &str) -> u32 {
        u32::try_from(self.get(name)).unwrap_or(u32::MAX)
    }
}

/// Parses a kind and its parameters.
pub(super) fn parsed(text: &str) -> Result<(WorkloadKind, Values), SyntheticError> {
    let (name, settings) = text.split_once('?').unwrap_or((text, ""));
    let kind = KINDS.iter().find(|kind| kind.name == name);
    let kind = kind.ok_or_else(|| SyntheticError::UnknownKind {
        found: shortened(name),
    })?;
    let mut values: Vec<_> = parameters(kind)
        .map(|parameter| (parameter.name, parameter.default))
        .collect();
    for setting in settings.split('&').filter(|setting| !setting.is_empty()) {
        let (name, value) = setting
            .split_once('=')
            .ok_or_else(|| SyntheticError::NotAPair {
                found: shortened(setting),
            })?;
        let unknown = || SyntheticError::UnknownParameter {
            kind: kind.name,
            found: shortened(name),
        };
        let (index, parameter) = parameters(kind)
            .enumerate()
            .find(|(_, parameter)| parameter.name == name)
            .ok_or_else(unknown)?;
        let (least, most) = parameter.range;
        values[index].1 = value
            .parse()
            .ok()
            .filter(|value| (least..=most).contains(value))
            .ok_or_else(|| SyntheticError::BadValue {
                name: parameter.name,
                found: shortened(value),
                least,
                most,
            })?;
    }
    Ok((*kind, Values(values)))
}

fn parameters(kind: &WorkloadKind) -> impl Iterator<Item = &Parameter> {
    kind.parameters.iter().chain(std::iter::once(&SEED))
}

fn kinds() -> String {
    KINDS.map(|kind| kind.name).join(", ")
}

fn names(kind: &str) -> String {
    let kind = KINDS.iter().find(|known| known.name == kind);
    let names: Vec<_> = kind
        .into_iter()
        .flat_map(parameters)
        .map(|parameter| parameter.name)
        .collect();
    names.join(", ")
}

/// Shortens a text so that it is still recognisable.
fn shortened(text: &str) -> String {
    text.chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        parsed(text).unwrap_err().to_string()
    }

    #[test]
    fn an_unset_parameter_has_its_default() {
        let (kind, values) = parsed("chat?sessions=3&seed=9").unwrap();
        assert_eq!(
            (kind.name, values.get("sessions"), values.get("seed")),
            ("chat", 3, 9)
        );
        assert_eq!(values.get("turns"), kind.parameters[1].default);
    }

    #[test]
    fn every_default_is_valid_and_every_name_is_accepted() {
        for kind in KINDS {
            for parameter in kind.parameters {
                let (name, value) = (parameter.name, parameter.default);
                assert_eq!(
                    parsed(&format!("{}?{name}={value}", kind.name))
                        .unwrap()
                        .1
                        .get(name),
                    value
                );
            }
        }
    }

    #[test]
    fn an_invalid_parameter_is_rejected_with_the_expected_form() {
        assert_eq!(
            refused("chatter"),
            "there is no synthetic workload \"chatter\": expected one of chat, agents, tenants, fanout"
        );
        assert!(
            refused("chat?sesions=3")
                .starts_with("chat has no parameter \"sesions\": expected one of sessions, ")
        );
        assert!(refused("chat?sesions=3").ends_with(", seed"));
        assert_eq!(
            refused("chat?sessions=0"),
            "sessions is \"0\": expected a whole number from 1 to 1000000"
        );
        assert_eq!(
            refused("chat?sessions"),
            "\"sessions\" sets nothing: expected NAME=VALUE, with & between several"
        );
        assert!(
            refused(&format!("chat?sessions={}", "9".repeat(1 << 16))).len() < 200,
            "the displayed text is short"
        );
    }
}
