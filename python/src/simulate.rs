//! `simulate()`: compares routing policies on a workload, as `warmroute simulate --json` does.

mod closed_loop;
mod experiments;
mod options;
mod workload;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
    mpsc::{self, RecvTimeoutError},
};

use pyo3::{exceptions::PyValueError, prelude::*, types::PyDict};

use self::experiments::{Experiments, SimulationError};
use crate::{
    errors,
    signals::{self, SIGNAL_CHECK},
};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(run_simulation, module)?)
}

/// Compares routing policies on a workload: the real router in front of modelled engines, in virtual
/// time. The same arguments give the same result.
///
/// Args:
///     trace: path of a file of JSON lines with ``timestamp`` (ms), ``input_length``,
///         ``output_length`` and ``hash_ids``, plain or zstd; or a workload that is made up, such as
///         ``"synthetic:chat?sessions=200&seed=7"`` (also agents, tenants, fanout).
///     policies: name of a policy, or a list of names.
///     workers: number of engines, 1 to 1024, or a list of numbers.
///     load: share of their time in which the engines would do useful work, above 0 to 100, or a
///         list; 0.55 by default. Not together with ``speedup``.
///     speedup: plays the trace so many times faster than recorded.
///     profile: model and hardware of the engines: ``8b-h200`` (default), ``70b-h100x4``,
///         ``70b-h100x2``, ``32b-h100x2`` or ``toy``.
///     kv_tokens: tokens that the cache of an engine holds, in place of the profile's.
///     event_delay_ms: time from a change of a cache to the router's knowledge of it; 20.
///     event_loss: share of the events' messages that get lost, 0 to 1; 0.
///     routers: number of routers, 1 to 64, or a list of numbers; 1.
///     load_sync: whether the routers tell each other their load; ``False``.
///     exchange_delay_ms: time from the sending of a message about load to its arrival; 3.
///     exchange_loss: share of these messages that get lost, 0 to 1; 0.
///     set: dict of configuration keys and values, such as ``{"queue.enabled": False}``.
///     slow: dict of engines that take so many times as long, such as ``{"w1": 3.0}``.
///     forget: dict of engines of whose cache the router loses its view, and when, in seconds of
///         virtual time, such as ``{"w1": 30.0}``.
///     seed: another number settles ties and loses messages differently; 1.
///     trace_block_tokens: tokens that one of the trace's ``hash_ids`` stands for; 512.
///     model: the model of the requests for which the trace names none: its settings are those of
///         ``routing.models``.
///     sessions: number of sessions of the trace, 1 to 100000, that run at the same time, or a list: a
///         session's next request comes a while after its last reply, and when a session ends the
///         next one begins. Not together with ``load``, ``speedup`` or one of the next two.
///     capacity_ratio: the same with as many sessions as need so many times the tokens that all caches
///         hold, above 0 to 100, or a list.
///     find_sessions: the same with the most sessions at which 95 % of the first tokens come within a
///         time, which are searched for: ``{"ttft_ms": 2000}``.
///     warm_up_s, measured_s: seconds of a closed loop that only warm the caches, and that are
///         measured after them; 900 and 3600.
///     tail_s: makes pauses of a minute and more a minute and a drawn time with this mean.
///
/// Returns:
///     The dict of ``warmroute.simulation/1``: ``trace``, ``profile``, ``seed`` and ``cells``, one for
///     each combination of engines, load, routers and policy, with times in milliseconds and ratios
///     from 0 to 1.
///
/// Raises:
///     TypeError: an unknown keyword; the message lists the known ones.
///     ValueError: an argument is out of range, or the workload cannot be used.
///     OSError: the file cannot be read.
///     KeyboardInterrupt: at once; experiments that run finish in the background without effect.
///
/// Example:
///     >>> report = simulate("synthetic:chat?sessions=20", ["round_robin", "warm"], 2, profile="toy")
///     >>> [cell["policy"] for cell in report["cells"]]
///     ['round_robin', 'warm']
#[pyfunction]
#[pyo3(name = "simulate", signature = (trace, policies, workers, **options))]
fn run_simulation<'py>(
    py: Python<'py>,
    trace: &Bound<'py, PyAny>,
    policies: &Bound<'py, PyAny>,
    workers: &Bound<'py, PyAny>,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let experiments = Experiments::of(trace, policies, workers, options)?;
    let stop = Arc::new(AtomicBool::new(false));
    let (done, result) = mpsc::sync_channel(1);
    let stopped = Arc::clone(&stop);
    runtime::spawn_thread("warmroute-simulate", move || {
        // Without a receiver, the call has ended by a signal.
        let _ = done.send(experiments.run(&stopped));
    })?;
    let report = signals::wait(py, move || match result.recv_timeout(SIGNAL_CHECK) {
        Ok(report) => Some(Some(report)),
        Err(RecvTimeoutError::Disconnected) => Some(None),
        Err(RecvTimeoutError::Timeout) => None,
    });
    match report {
        Ok(Some(report)) => py.import("json")?.call_method1("loads", (report?,)),
        Ok(None) => Err(errors::error(
            "internal",
            "the simulation broke off; its error is on stderr",
        )),
        Err(signal) => {
            stop.store(true, Ordering::Relaxed);
            Err(signal)
        }
    }
}

impl From<SimulationError> for PyErr {
    fn from(error: SimulationError) -> Self {
        match error {
            SimulationError::Unreadable(error) => error.into(),
            SimulationError::Unusable(message) => PyValueError::new_err(message),
        }
    }
}
