//! One reader queries while one writer applies changes.

use std::{
    hint::{black_box, spin_loop},
    sync::{
        Barrier,
        atomic::{AtomicU8, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{clock, index::Index, samples::Samples};

use super::PreparedWorkload;

/// Repeatable changes are repeated until the reader had this long.
const LEAST_READING: Duration = Duration::from_millis(200);
/// Maximum number of kept latencies; a reader needs seconds for more.
const MOST_SAMPLES: usize = 1 << 21;

const WAITING: u8 = 0;
const WRITING: u8 = 1;
const OVER: u8 = 2;

/// Returns the latencies of queries during the measured changes to a warm index.
pub(crate) fn with_writer<I: Index>(prepared: &PreparedWorkload<'_, I>) -> Samples {
    let changes = prepared.workload.measured_changes();
    let (index, mut writer) = prepared.warm();
    let (state, start) = (AtomicU8::new(WAITING), Barrier::new(2));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            start.wait();
            read(&*index, prepared, &state)
        });
        start.wait();
        let mut written = Duration::ZERO;
        loop {
            let mut events = prepared.events(&changes);
            state.store(WRITING, Ordering::Release);
            let begin = Instant::now();
            index.apply(&mut writer, &mut events);
            index.settle(&mut writer);
            written += begin.elapsed();
            state.store(WAITING, Ordering::Release);
            if !prepared.workload.cyclic || written >= LEAST_READING {
                break;
            }
        }
        state.store(OVER, Ordering::Release);
        reader.join().expect("a reader does not panic")
    })
}

fn read<I: Index>(index: &I, prepared: &PreparedWorkload<'_, I>, state: &AtomicU8) -> Samples {
    let mut samples = Samples::with_capacity(MOST_SAMPLES);
    let mut answer = I::Answer::default();
    let order = prepared.shuffled(0);
    for prompt in order.iter().cycle().take(MOST_SAMPLES) {
        while state.load(Ordering::Acquire) == WAITING {
            spin_loop();
        }
        if state.load(Ordering::Acquire) == OVER {
            break;
        }
        let start = clock::ticks();
        index.query(&prepared.prompts, *prompt, &mut answer);
        samples.push(clock::ticks() - start);
    }
    black_box(&answer);
    samples
}
