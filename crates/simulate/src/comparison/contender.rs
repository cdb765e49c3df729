//! What the table compares.

use routing::{AdmissionMode, Policy, RoutingSection, RoutingSettings};
use serde::{Serialize, Serializer};

/// A row of each cell: a policy, and whether admission by the live set is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contender {
    /// Its name in the table.
    pub name: &'static str,
    /// Its policy.
    pub policy: Policy,
    /// Its admission.
    pub admission: AdmissionMode,
}

/// The contenders, in the order of the table.
pub const CONTENDERS: [Contender; 9] = [
    baseline(Policy::Warm),
    Contender {
        name: "warm + live_set",
        policy: Policy::Warm,
        admission: AdmissionMode::LiveSet,
    },
    baseline(Policy::Lmetric),
    baseline(Policy::Dualmap),
    baseline(Policy::Sticky),
    baseline(Policy::DynamoCost),
    baseline(Policy::CacheAware),
    baseline(Policy::PowerOfTwo),
    baseline(Policy::RoundRobin),
];

const fn baseline(policy: Policy) -> Contender {
    Contender {
        name: policy.as_str(),
        policy,
        admission: AdmissionMode::Off,
    }
}

impl Contender {
    /// Returns whether the gate measures this contender by the others.
    pub fn is_gated(&self) -> bool {
        self.policy == Policy::Warm
    }

    /// Returns whether admission is on.
    pub fn admits(&self) -> bool {
        self.admission.is_on()
    }

    /// Returns the default configuration with this policy and admission.
    pub(super) fn routing(&self) -> RoutingSettings {
        let usual = RoutingSettings::default();
        RoutingSettings {
            policy: self.policy,
            section: RoutingSection {
                admission: self.admission,
                ..usual.section
            },
            ..usual
        }
    }
}

impl Serialize for Contender {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contenders_have_different_names_and_only_warm_is_gated() {
        for (index, contender) in CONTENDERS.iter().enumerate() {
            let earlier = &CONTENDERS[..index];
            assert!(earlier.iter().all(|other| other.name != contender.name));
            assert_eq!(contender.is_gated(), index < 2, "{}", contender.name);
        }
    }

    #[test]
    fn admission_is_on_for_one_contender_alone() {
        let admits =
            |contender: &Contender| contender.routing().section.admission == AdmissionMode::LiveSet;
        let names: Vec<_> = CONTENDERS
            .iter()
            .filter(|contender| admits(contender))
            .map(|contender| contender.name)
            .collect();
        assert_eq!(names, ["warm + live_set"]);
    }
}
