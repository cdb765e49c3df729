//! Compares every answer of the index with the oracle's, under random operations.

use std::sync::Arc;

use contract_id::contract;
use kv_blocks::Tier;
use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{Config, FileFailurePersistence},
};

use crate::oracle::{
    random::SplitMix64,
    readers::{Length, race},
    reduce::{list, report},
    setup::{Setup, TrialCounts},
    step::OracleStep,
    trial::Trial,
    world::{Extent, TargetNo},
};

/// Runs trials of `steps` steps each.
fn play(setups: impl Iterator<Item = Setup>, steps: usize) -> TrialCounts {
    let mut all = TrialCounts::default();
    for setup in setups {
        let steps = setup.steps(steps);
        match Trial::run(&setup, &steps) {
            Ok(counts) => all += counts,
            Err(difference) => panic!("{}", report(&setup, steps, difference)),
        }
    }
    all
}

#[test]
#[contract("V7", "V9", "V12", "MC4", "MC12", "MC13", "DY17", "DY18")]
fn every_answer_equals_that_of_plain_sets() {
    let seen = play((0..60).map(Setup::ample), 5000);
    assert!(
        seen.credited > seen.queries && seen.orphans > 10_000 && seen.removed > 100_000,
        "{seen:?}"
    );
}

#[test]
#[contract("V9")]
fn at_the_budget_no_target_is_credited_with_more_than_it_holds() {
    let seen = play((0..40).map(Setup::tight), 2000);
    assert!(
        (10..30).contains(&seen.shed),
        "of 40 trials some reach the budget and some do not: {seen:?}"
    );
}

#[test]
fn lookups_beside_a_writer_credit_what_was_held_meanwhile() {
    let mut credited = 0;
    for seed in 0..12 {
        let length = Length {
            changes: 4000,
            lookups: 4000,
        };
        let (_, seen) =
            race(seed, length, 2).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        credited += seen.credited;
    }
    assert!(credited > 10_000, "{credited}");
}

/// A difference in either direction is found by the lookup of the prompt and by the full
/// comparison.
#[test]
fn the_comparison_detects_a_surplus_and_a_missing_block() {
    let setup = Setup {
        extent: Extent {
            targets: 2,
            spaces: 1,
            prompts: 3,
            blocks: 8,
        },
        ..Setup::ample(7)
    };
    for tampered in 0..4 {
        let mut trial = Trial::new(&setup);
        let world = Arc::clone(&trial.world);
        let (target, space) = (TargetNo(0), world.space(0));
        let prompt = world.prompt(space, 0).to_vec();
        let tier = Tier::Device;
        trial
            .announce(target, space, &prompt, 0..prompt.len(), tier, true)
            .unwrap();
        trial.look_up(space, &prompt, 1).unwrap();
        match tampered {
            0 => trial
                .truth
                .remove(target, space, *prompt.last().unwrap(), tier),
            1 => trial.truth.remove(target, space, prompt[0], tier),
            2 => trial.truth.store(target, space, &prompt[..1], Tier::Host),
            _ => trial.truth.expect(TargetNo(1), space, &prompt, 5, 1),
        }
        assert!(trial.look_up(space, &prompt, 1).is_err(), "{tampered}");
        assert!(trial.finish().is_err(), "{tampered}");
    }
}

proptest! {
    #![proptest_config(Config {
        cases: 200,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("tests/oracle/regressions.txt"))),
        ..Config::default()
    })]

    #[test]
    #[contract("V7", "V9", "V12", "MC12")]
    fn short_random_runs_show_no_difference(seed in any::<u64>().no_shrink(), numbers in vec(any::<u64>().no_shrink(), 1..300)) {
        let steps: Vec<_> = numbers.into_iter().map(|number| OracleStep::generate(&mut SplitMix64::new(number))).collect();
        if let Err(difference) = Trial::run(&Setup::ample(seed), &steps) {
            return Err(TestCaseError::fail(format!("{difference}\n{}", list(&steps))));
        }
    }
}
