//! `warm`, with admission off and on, beside the rules of other routers on the recorded workload.

use simulate::{ComparisonPlan, compare};

use super::workloads;

#[test]
fn warm_is_within_its_bounds_beside_the_rules_of_other_routers() {
    let mut recorded = workloads::all();
    recorded.retain(|workload| workload.name == "mixed");
    let workload = recorded.remove(0);
    let plan = ComparisonPlan::new(workload.profile);
    let traces = [plan
        .prepare(workload.name.to_owned(), workload.trace)
        .unwrap()];
    let report = compare(&traces, &plan, 2, &mut |_, _| ());
    assert!(report.losses.is_empty(), "{}", report.markdown());
}
