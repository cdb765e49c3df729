//! The experiments of one call.

use std::{io, num::NonZeroUsize, sync::atomic::AtomicBool, thread, time::Duration};

use engine_model::Profile;
use kv_blocks::BlockSize;
use pyo3::{exceptions::PyValueError, prelude::*, types::PyDict};
use routing::Policy;
use simulate::{
    Cell, ExperimentPlan, FaultPlan, LostView, PlannedPace, ReplicaPlan, SimulationReport,
    SlowEngine, Trace, TracePace, TraceSummary,
    ranges::{
        LATEST_S, LONGEST_DELAY_MS, MOST_LOAD, MOST_ROUTERS, MOST_SLOWER, MOST_SPEEDUP,
        MOST_WORKERS,
    },
    run_all,
};
use warmroute::{check_models, configured_router};

use super::{
    closed_loop,
    options::{Options, number, text, values, whole},
    workload::Workload,
};

/// Most experiments of a call.
const MOST_CELLS: usize = 16_384;

/// Why there is no result.
#[derive(Debug)]
pub(super) enum SimulationError {
    Unreadable(io::Error),
    Unusable(String),
}

/// The checked arguments of a call.
#[derive(Debug)]
pub(super) struct Experiments {
    workload: Workload,
    block_size: BlockSize,
    /// The model of the requests for which the trace names none.
    model: Option<String>,
    plan: ExperimentPlan,
}

impl Experiments {
    /// Reads and checks the arguments.
    pub(super) fn of(
        trace: &Bound<'_, PyAny>,
        policies: &Bound<'_, PyAny>,
        workers: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let options = Options::new(options)?;
        let workers = counts("workers", workers, MOST_WORKERS)?;
        let fewest = workers.iter().min().copied().unwrap_or(0);
        let routers = match options.get("routers")? {
            Some(routers) => counts("routers", &routers, MOST_ROUTERS)?,
            None => vec![1],
        };
        let block_tokens = options.whole("trace_block_tokens", 1..=BlockSize::MAX.into())?;
        let plan = ExperimentPlan {
            workers,
            pace: pace(&options)?,
            routers,
            policies: policy_list(policies)?,
            common: common(&options, fewest)?,
        };
        check_number(&plan)?;
        Ok(Self {
            workload: Workload::of(trace)?,
            block_size: BlockSize::new(block_tokens.unwrap_or(512)).map_err(value_error)?,
            model: options.text("model")?,
            plan,
        })
    }

    /// Runs the experiments on all cores, none further once `stop` is true, and returns the report
    /// as JSON.
    pub(super) fn run(self, stop: &AtomicBool) -> Result<String, SimulationError> {
        let closed_loop = self.plan.pace.is_closed_loop();
        let text = self.workload.text(self.block_size, closed_loop)?;
        let mut trace = Trace::read(&text, self.block_size).map_err(|error| {
            SimulationError::Unusable(format!("trace {}: {error}", self.workload.name()))
        })?;
        drop(text);
        if let Some(model) = &self.model {
            trace.name_models(model);
        }
        let routing = &self.plan.common.routing;
        check_models(routing, &trace, "set", "model").map_err(SimulationError::Unusable)?;
        let profile = self.plan.common.profile;
        trace.drop_what_exceeds(&profile);
        if trace.requests.is_empty() {
            return Err(SimulationError::Unusable(format!(
                "none of the {} requests fits an engine whose cache holds {} tokens: give it more with kv_tokens",
                trace.dropped, profile.kv_tokens
            )));
        }
        if closed_loop && !trace.names_sessions() {
            return Err(SimulationError::Unusable(format!(
                "trace {}: no request in it belongs to a session: expected session_id or session in each line",
                self.workload.name()
            )));
        }
        let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let cells = self.plan.cells(&trace);
        let report = SimulationReport {
            schema: SimulationReport::SCHEMA,
            trace: TraceSummary::of(self.workload.name(), &trace),
            profile: profile.name,
            fit: None,
            seed: self.plan.common.seed,
            cells: run_all(&trace, &cells, threads, stop, &mut |_| ()),
        };
        serde_json::to_string(&report).map_err(|error| SimulationError::Unusable(error.to_string()))
    }
}

/// Checks how many experiments the lists make together.
fn check_number(plan: &ExperimentPlan) -> PyResult<()> {
    let lengths = [
        plan.workers.len(),
        plan.pace.count(),
        plan.routers.len(),
        plan.policies.len(),
    ];
    let cells = lengths.into_iter().fold(1, usize::saturating_mul);
    if cells > MOST_CELLS {
        return Err(PyValueError::new_err(format!(
            "workers, load, routers and policies make {cells} experiments: expected at most {MOST_CELLS}"
        )));
    }
    Ok(())
}

fn policy_list(policies: &Bound<'_, PyAny>) -> PyResult<Vec<Policy>> {
    values("policies", policies)?
        .iter()
        .map(|policy| {
            let name = text("policies", policy)?;
            name.parse::<Policy>()
                .map_err(|error| PyValueError::new_err(format!("policies: {error}")))
        })
        .collect()
}

pub(super) fn counts(name: &str, value: &Bound<'_, PyAny>, most: u32) -> PyResult<Vec<u32>> {
    values(name, value)?
        .iter()
        .map(|value| {
            let number = whole(name, value, &(1..=most.into()))?;
            u32::try_from(number).map_err(value_error)
        })
        .collect()
}

fn pace(options: &Options<'_, '_>) -> PyResult<PlannedPace> {
    let speedup = options.number(
        "speedup",
        |times| times > 0.0 && times <= MOST_SPEEDUP,
        "a number above 0, at most 1000000",
    )?;
    let load = options.get("load")?;
    if let Some(planned) = closed_loop::planned(options)? {
        return if load.is_some() || speedup.is_some() {
            Err(PyValueError::new_err(
                "a closed loop has no load and no speedup: expected one of them",
            ))
        } else {
            Ok(planned)
        };
    }
    match (load, speedup) {
        (Some(_), Some(_)) => Err(PyValueError::new_err(
            "load and speedup are both given: expected one of them",
        )),
        (None, Some(times)) => Ok(PlannedPace::Speedup(times)),
        (None, None) => Ok(PlannedPace::Loads(vec![PlannedPace::USUAL_LOAD])),
        (Some(loads), None) => values("load", &loads)?
            .iter()
            .map(|load| {
                number(
                    "load",
                    load,
                    |load| load > 0.0 && load <= MOST_LOAD,
                    "a number above 0, at most 100; 0.55 is a busy fleet",
                )
            })
            .collect::<PyResult<_>>()
            .map(PlannedPace::Loads),
    }
}

/// Returns the conditions of all experiments. The plan replaces the number of engines, the speed and
/// the number of routers.
fn common(options: &Options<'_, '_>, fewest_workers: u32) -> PyResult<Cell> {
    let changes = changes(options)?;
    let changes: Vec<_> = (changes.iter())
        .map(|(key, value)| (&**key, &**value))
        .collect();
    let settings = configured_router(&changes, "set").map_err(PyValueError::new_err)?;
    let share = |name| {
        let share = options.number(
            name,
            |share| (0.0..=1.0).contains(&share),
            "a number from 0 to 1",
        );
        PyResult::Ok(share?.unwrap_or(0.0))
    };
    let delay = |name, usual| {
        let ms = options.whole(name, 0..=LONGEST_DELAY_MS)?;
        PyResult::Ok(Duration::from_millis(ms.unwrap_or(usual)))
    };
    Ok(Cell {
        cache: settings.cache,
        event_delay: delay("event_delay_ms", 20)?,
        event_loss: share("event_loss")?,
        wait: settings.wait,
        engine_priority: settings.engine_priority,
        replicas: ReplicaPlan {
            load_sync: options.flag("load_sync")?,
            exchange_delay: delay("exchange_delay_ms", 3)?,
            exchange_loss: share("exchange_loss")?,
            ..ReplicaPlan::default()
        },
        faults: faults(options, fewest_workers)?,
        seed: options.whole("seed", 0..=u64::MAX)?.unwrap_or(1),
        ..Cell::new(
            settings.routing,
            1,
            TracePace::faster(1.0),
            profile(options)?,
        )
    })
}

fn profile(options: &Options<'_, '_>) -> PyResult<Profile> {
    let name = options.text("profile")?;
    let name = name.as_deref().unwrap_or("8b-h200");
    let profile = name
        .parse::<Profile>()
        .map_err(|error| PyValueError::new_err(format!("profile is {name:?}: {error}")))?;
    let kv_tokens = options.whole("kv_tokens", 1..=u32::MAX.into())?;
    let kv_tokens = kv_tokens.map(u32::try_from).transpose();
    Ok(Profile {
        kv_tokens: kv_tokens.map_err(value_error)?.unwrap_or(profile.kv_tokens),
        ..profile
    })
}

/// Returns the changes of the configuration as text.
fn changes(options: &Options<'_, '_>) -> PyResult<Vec<(String, String)>> {
    let entries = options.entries("set")?.into_iter();
    entries
        .map(|(key, value)| {
            // Python writes `True`, the configuration `true`.
            let text = match value.extract::<bool>() {
                Ok(flag) => flag.to_string(),
                Err(_) => value.str()?.to_string_lossy().into_owned(),
            };
            Ok((key, text))
        })
        .collect()
}

fn faults(options: &Options<'_, '_>, fewest_workers: u32) -> PyResult<FaultPlan> {
    let slow = options.entries("slow")?.into_iter().map(|(worker, times)| {
        let times = number(
            "slow",
            &times,
            |times| (1.0 / MOST_SLOWER..=MOST_SLOWER).contains(&times),
            "an engine and a number from 0.001 to 1000",
        )?;
        let worker = engine("slow", &worker, fewest_workers)?;
        PyResult::Ok(SlowEngine { worker, times })
    });
    let forgotten = options.entries("forget")?.into_iter().map(|(worker, at)| {
        let seconds = number(
            "forget",
            &at,
            |seconds| (0.0..=LATEST_S).contains(&seconds),
            "an engine and seconds, at most a year",
        )?;
        let worker = engine("forget", &worker, fewest_workers)?;
        let at = Duration::from_secs_f64(seconds);
        PyResult::Ok(LostView { worker, at })
    });
    Ok(FaultPlan {
        slow: slow.collect::<PyResult<_>>()?,
        forgotten: forgotten.collect::<PyResult<_>>()?,
    })
}

/// Returns the number, from 0, of the engine `w1` or `1`.
fn engine(name: &str, worker: &str, fewest_workers: u32) -> PyResult<u32> {
    worker
        .strip_prefix('w')
        .unwrap_or(worker)
        .parse::<u32>()
        .ok()
        .and_then(|number| number.checked_sub(1))
        .filter(|number| *number < fewest_workers)
        .ok_or_else(|| {
            let shown: String = worker.chars().take(64).collect();
            PyValueError::new_err(format!(
                "{name}: there is no engine {shown:?}: expected one of w1 to w{fewest_workers}"
            ))
        })
}

fn value_error(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}
