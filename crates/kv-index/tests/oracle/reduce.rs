//! The few steps that a failure needs.

use super::{
    setup::{OracleMismatch, Setup},
    step::OracleStep,
    trial::Trial,
};

/// Leaves out steps, many at once and then fewer, as long as the trial fails in the same way.
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
        // Single steps are tried again for as long as that helps.
        if size > 1 || steps.len() == before {
            size /= 2;
        }
    }
    (steps, difference)
}

/// What was wrong, with the few steps that are needed to see it.
pub(crate) fn report(setup: &Setup, steps: Vec<OracleStep>, difference: OracleMismatch) -> String {
    let (all, first) = (steps.len(), difference.to_string());
    let (fewer, last) = reduce(setup, steps, difference);
    format!(
        "{first}\n{setup:?}\n{} of {all} steps suffice:\n{}then: {last}",
        fewer.len(),
        list(&fewer)
    )
}

/// A line for each step.
pub(crate) fn list(steps: &[OracleStep]) -> String {
    steps.iter().map(|step| format!("  {step:?}\n")).collect()
}
