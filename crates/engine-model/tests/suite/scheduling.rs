//! The order and the duration of requests.

use std::time::Duration;

use engine_model::{
    Engine, EngineSettings, EngineTiming, Finish, GenerationRequest, NextAction, Profile,
    RequestId, Scheduling, SubmitError,
};
use kv_blocks::Moment;

use crate::support::{EngineBench, request, settings, tokens};

#[test]
fn a_request_gets_one_token_per_step_and_ends_with_its_finish_reason() {
    let mut bench = EngineBench::new(settings(64));
    bench.submit(request(1, &tokens(1, 5), 3));
    bench.run();
    let finishes: Vec<_> = bench.emitted.iter().map(|token| token.finish).collect();
    assert_eq!(finishes, [None, None, Some(Finish::Length)]);
    assert_eq!(bench.engine.stats().finished, 1);
    assert_eq!(bench.engine.stats().blocks.used, 0);
}

#[test]
fn a_scripted_reply_starts_with_its_script_and_then_continues_freely() {
    let mut bench = EngineBench::new(settings(64));
    let script = [7, 8, 9];
    bench.submit(request(1, &tokens(1, 5), 5));
    bench.submit(GenerationRequest {
        script: Some(script.as_slice().into()),
        ..request(2, &tokens(1, 5), 5)
    });
    bench.run();
    let (plain, scripted) = (bench.reply(1), bench.reply(2));
    assert_eq!((&scripted[..3], &scripted[3..]), (&script[..], &plain[3..]));
}

#[test]
fn time_to_first_token_is_overhead_plus_step_plus_prefill() {
    let timing = EngineTiming::new(Profile::named("toy").unwrap()).overhead_ms(2.0);
    let mut engine = Engine::new(EngineSettings {
        timing,
        max_num_batched_tokens: 8_192,
        ..settings(1_000)
    });
    engine
        .submit(Moment::START, request(1, &tokens(1, 1_000), 1))
        .unwrap();
    let ready = Moment::at(Duration::from_millis(2));
    assert_eq!(engine.begin(Moment::START), NextAction::WaitUntil(ready));
    // 4 ms a step and 0.1 ms a token.
    assert_eq!(
        engine.begin(ready),
        NextAction::Step(Duration::from_millis(104))
    );
}

#[test]
fn a_cached_prefix_costs_no_prefill_time() {
    let mut bench = EngineBench::new(settings(64));
    bench.submit(request(1, &tokens(1, 101), 1));
    bench.run();
    bench.submit(request(2, &tokens(1, 101), 1));
    assert_eq!(
        bench.engine.begin(bench.now),
        NextAction::Step(Duration::from_micros(4_100)),
        "one token is computed"
    );
}

#[test]
fn long_prompts_are_prefilled_in_chunks_beside_decoding_sequences() {
    let mut bench = EngineBench::new(EngineSettings {
        max_num_batched_tokens: 10,
        ..settings(64)
    });
    bench.submit(request(1, &tokens(1, 4), 10));
    bench.step();
    bench.submit(request(2, &tokens(2, 25), 1));
    let mut steps = 0;
    while bench.emitted.iter().all(|token| token.id != RequestId(2)) {
        bench.step();
        steps += 1;
    }
    assert_eq!(
        steps, 3,
        "nine prompt tokens a step, one token for the other"
    );
    assert_eq!(bench.reply(1).len(), 4);
}

#[test]
fn at_most_max_num_seqs_run_and_the_rest_wait_in_order() {
    let mut bench = EngineBench::new(EngineSettings {
        max_num_seqs: 2,
        ..settings(64)
    });
    for kind in 1..=4 {
        bench.submit(request(u64::from(kind), &tokens(kind, 4), 2));
    }
    bench.step();
    assert_eq!(
        (bench.engine.stats().running, bench.engine.stats().waiting),
        (2, 2)
    );
    bench.run();
    let firsts: Vec<_> = bench
        .emitted
        .iter()
        .step_by(2)
        .map(|token| token.id.0)
        .collect();
    assert_eq!(firsts, [1, 1, 3, 3]);
}

#[test]
fn the_youngest_request_is_preempted_when_blocks_run_out_and_its_reply_is_unchanged() {
    let alone = |id: u64, kind| {
        let mut bench = EngineBench::new(settings(64));
        bench.submit(request(id, &tokens(kind, 8), 14));
        bench.run();
        bench.reply(id)
    };
    // Each ends with 22 tokens, six blocks; eight are not enough for both.
    let mut bench = EngineBench::new(settings(8));
    bench.submit(request(1, &tokens(1, 8), 14));
    bench.submit(request(2, &tokens(2, 8), 14));
    bench.run();
    let stats = bench.engine.stats();
    assert!(stats.preemptions >= 1);
    assert!(
        stats.computed_tokens > 16,
        "dropped blocks are computed again"
    );
    assert_eq!(bench.reply(1), alone(1, 1));
    assert_eq!(bench.reply(2), alone(2, 2));
    let last = |id| {
        bench
            .emitted
            .iter()
            .rposition(|token| token.id == RequestId(id))
    };
    assert!(last(1) < last(2), "the older one was never held up");
}

#[test]
fn a_request_waits_until_its_whole_prompt_fits() {
    let mut bench = EngineBench::new(settings(4));
    bench.submit(request(1, &tokens(1, 8), 4));
    bench.submit(request(2, &tokens(2, 12), 1));
    bench.step();
    assert_eq!(
        (bench.engine.stats().running, bench.engine.stats().waiting),
        (1, 1)
    );
    bench.run();
    assert_eq!(bench.reply(2).len(), 1);
}

#[test]
fn an_abort_during_a_step_frees_its_blocks_and_yields_no_token() {
    let mut bench = EngineBench::new(settings(64));
    bench.submit(request(1, &tokens(1, 8), 100));
    bench.submit(request(2, &tokens(2, 8), 2));
    assert!(matches!(bench.engine.begin(bench.now), NextAction::Step(_)));
    assert!(bench.engine.abort(RequestId(1)));
    let outcome = bench.engine.finish();
    assert_eq!(
        outcome
            .emitted
            .iter()
            .map(|token| token.id.0)
            .collect::<Vec<_>>(),
        [2]
    );
    assert!(!bench.engine.abort(RequestId(1)), "it is gone");
    bench.run();
    assert_eq!(bench.engine.stats().blocks.used, 0);
    assert_eq!(
        (bench.engine.stats().finished, bench.engine.stats().aborted),
        (1, 1)
    );
}

#[test]
fn a_request_that_can_never_run_is_rejected() {
    let mut engine = Engine::new(settings(4));
    let mut submit =
        |prompt: &[u32], output| engine.submit(Moment::START, request(1, prompt, output));
    assert_eq!(submit(&[], 1), Err(SubmitError::Empty));
    assert_eq!(submit(&[1], 0), Err(SubmitError::Empty));
    assert_eq!(
        submit(&tokens(1, 10), 7),
        Err(SubmitError::TooLong {
            tokens: 17,
            capacity: 16
        })
    );
    assert_eq!(submit(&tokens(1, 10), 6), Ok(()));
}

#[test]
fn a_restart_loses_requests_and_cache_without_events() {
    let mut bench = EngineBench::new(settings(64));
    bench.submit(request(1, &tokens(1, 8), 100));
    bench.step();
    bench.submit(request(2, &tokens(2, 8), 1));
    assert_eq!(bench.engine.restart(), [RequestId(1), RequestId(2)]);
    assert!(bench.engine.cached_blocks().is_empty());
    bench.submit(request(3, &tokens(1, 8), 1));
    let batches = bench.run();
    assert_eq!(bench.cached_tokens(3), 0);
    assert_eq!(batches.len(), 1);
}

#[test]
fn priority_scheduling_runs_the_lowest_number_first_and_preempts_the_highest() {
    let by_priority = |device_blocks, max_num_seqs| EngineSettings {
        scheduling: Scheduling::Priority,
        max_num_seqs,
        ..settings(device_blocks)
    };
    let mut bench = EngineBench::new(by_priority(64, 1));
    for (id, priority) in [(1, 5), (2, 0), (3, -7), (4, 0)] {
        let request = request(id, &tokens(u32::try_from(id).unwrap(), 5), 1);
        bench.submit(GenerationRequest {
            priority,
            ..request
        });
    }
    bench.run();
    assert_eq!(
        bench
            .emitted
            .iter()
            .map(|token| token.id.0)
            .collect::<Vec<_>>(),
        [3, 2, 4, 1]
    );

    // Two requests grow until only one fits: the first has the higher priority number.
    let mut bench = EngineBench::new(by_priority(8, 2));
    for (id, priority) in [(1, 5), (2, 0)] {
        let request = request(id, &tokens(u32::try_from(id).unwrap(), 8), 16);
        bench.submit(GenerationRequest {
            priority,
            ..request
        });
    }
    bench.run();
    assert!(bench.engine.stats().preemptions >= 1);
    let last = |id| {
        bench
            .emitted
            .iter()
            .rposition(|token| token.id.0 == id)
            .unwrap()
    };
    assert!(last(2) < last(1));
}
