//! Reduction of a failure to few steps.

use super::{
    setup::{OracleMismatch, Setup},
    step::OracleStep,
    trial::Trial,
};

/// Removes steps, first many at once, then fewer, while the trial still fails in the same way.
fn reduce(
    setup: &Setup,
    steps: Vec<OracleStep>,
    difference: OracleMismatch,
) -> (Vec<OracleStep>, OracleMismatch) {
    let (mut steps, mut difference) = (steps, difference);
    let mut size = steps.len() / 2;
    while size > 0 {
        let (mut at, before) = (0, steps.len());
        while at < steps.len() {
            let mut fewer = steps.clone();
            fewer.drain(at..steps.len().min(at + size));
            match Trial::run(setup, &fewer) {
                Err(other) if other.kind() == difference.kind() => {
                    (steps, difference) = (fewer, other)
                }
                _ => at += size,
            }
        }
        // Single steps are tried again while that helps.
        if size > 1 || steps.len() == before {
            size /= 2;
        }
    }
    (steps, difference)
}

/// Returns the difference with the reduced steps that show it.
pub(crate) fn report(setup: &Setup, steps: Vec<OracleStep>, difference: OracleMismatch) -> String {
    let (all, first) = (steps.len(), difference.to_string());
    let (fewer, last) = reduce(setup, steps, difference);
    format!(
        "{first}\n{setup:?}\n{} of {all} steps suffice:\n{}then: {last}",
        fewer.len(),
        list(&fewer)
    )
}

/// Returns one line per step.
pub(crate) fn list(steps: &[OracleStep]) -> String {
    steps.iter().map(|step| format!("  {step:?}\n")).collect()
}
