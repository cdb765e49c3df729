//! Each request is routed by the settings of its model.

use routing::{ModelRoutingEntry, Policy};
use simulate::{Cell, Trace, run_in_detail};

use super::{cell, line, read};

/// Two engines under `warm`, where the models of this name have another policy.
fn with_a_model_of_its_own(name: &str) -> Cell {
    let mut cell = cell(Policy::Warm, 2);
    let entry = ModelRoutingEntry {
        policy: Some(Policy::RoundRobin),
        ..ModelRoutingEntry::default()
    };
    cell.routing.section.models = vec![(name.to_owned(), entry)];
    cell
}

/// Four requests with one prompt, each long after the reply before it.
fn one_prompt(model: &str) -> Trace {
    let lines: Vec<String> = (0..4)
        .map(|number| {
            let line = line(number * 10_000, &[1, 2, 3, 4], 2);
            line.replacen('{', &format!("{{{model}"), 1)
        })
        .collect();
    read(&lines.join("\n"))
}

/// The engines that computed the prompt.
fn computed_on(trace: &Trace, cell: &Cell) -> usize {
    let (_, requests) = run_in_detail(trace, cell);
    let computed = (requests.iter()).filter(|request| request.computed_tokens > 512);
    let mut engines: Vec<_> = computed.filter_map(|request| request.worker).collect();
    engines.sort_unstable();
    engines.dedup();
    engines.len()
}

#[test]
fn the_policy_of_a_model_takes_the_place_of_the_experiments_for_its_requests_alone() {
    let cell = with_a_model_of_its_own("turns");
    // In turns both engines compute the prompt; by its cost it stays where it is cached.
    for (model, engines) in [
        ("", 1),
        (r#""model": "other", "#, 1),
        (r#""model": "turns", "#, 2),
        (r#""model": "adapter", "served_model": "turns", "#, 2),
    ] {
        assert_eq!(computed_on(&one_prompt(model), &cell), engines, "{model}");
    }
    let begins = with_a_model_of_its_own("tu*");
    let turns = one_prompt(r#""model": "turns", "#);
    assert_eq!(computed_on(&turns, &begins), 2);
}

#[test]
fn the_model_given_for_all_is_that_of_requests_without_one() {
    let cell = with_a_model_of_its_own("turns");
    let mut unnamed = one_prompt("");
    unnamed.name_models("turns");
    assert_eq!(computed_on(&unnamed, &cell), 2);
    let mut named = one_prompt(r#""model": "other", "#);
    named.name_models("turns");
    assert_eq!(computed_on(&named, &cell), 1);
}

#[test]
fn the_weight_of_caches_of_a_model_applies_to_its_requests_alone() {
    let mut cell = cell(Policy::DynamoCost, 2);
    let entry = ModelRoutingEntry {
        overlap_weight: Some(0.0),
        temperature: Some(0.0),
        ..ModelRoutingEntry::default()
    };
    cell.routing.section.models = vec![("blind".to_owned(), entry)];
    let spread = |model: &str| computed_on(&one_prompt(model), &cell);
    assert_eq!(spread(r#""model": "other", "#), 1);
    // Idle engines cost the same without their caches: ties are drawn.
    let requests = |seed| {
        let cell = Cell {
            seed,
            ..cell.clone()
        };
        computed_on(&one_prompt(r#""model": "blind", "#), &cell)
    };
    assert!((1..=8).map(requests).any(|engines| engines == 2));
}
