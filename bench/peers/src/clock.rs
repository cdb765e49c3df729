//! The time source of the phases, and the cores they run on.
//!
//! Latencies are differences of ticks. Rates are per second of CPU time: other work on the same
//! cores then distorts them less.

use std::{
    io,
    sync::OnceLock,
    time::{Duration, Instant},
};

use rustix::{
    thread::{CpuSet, sched_setaffinity},
    time::{ClockId, Timespec, clock_gettime},
};

/// Ticks since a fixed point.
///
/// On x86-64 this is the time stamp counter: a read takes about 10 ns, a read of a system clock two
/// or three times that. The fences exclude earlier loads from the measurement, and wait for the
/// measured ones.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    use core::arch::x86_64::{_mm_lfence, _rdtsc};
    // SAFETY: every x86-64 processor has the counter and the fence; neither changes state.
    unsafe {
        _mm_lfence();
        let now = _rdtsc();
        _mm_lfence();
        now
    }
}

/// Ticks since a fixed point: nanoseconds since the first call.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn ticks() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Nanoseconds per tick, measured once.
pub(crate) fn ns_per_tick() -> f64 {
    static MEASURED: OnceLock<f64> = OnceLock::new();
    *MEASURED.get_or_init(|| {
        let (start, first) = (Instant::now(), ticks());
        std::thread::sleep(Duration::from_millis(50));
        start.elapsed().as_nanos() as f64 / (ticks() - first) as f64
    })
}

/// Returns the CPU time of this thread, in seconds.
pub(crate) fn thread_cpu_s() -> f64 {
    seconds(clock_gettime(ClockId::ThreadCPUTime))
}

/// Returns the CPU time of all threads of this process, in seconds.
pub(crate) fn process_cpu_s() -> f64 {
    seconds(clock_gettime(ClockId::ProcessCPUTime))
}

fn seconds(time: Timespec) -> f64 {
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Pins this thread, and the threads that it starts from now on, to `cores`.
///
/// # Errors
/// A core that this process may not use.
pub(crate) fn pin(cores: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for core in cores {
        set.set(*core);
    }
    Ok(sched_setaffinity(None, &set)?)
}
