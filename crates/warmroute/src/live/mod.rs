//! The configuration of a running router, and how it changes.
//!
//! There is one way: all sources are read into whole [`Settings`], which are checked like those of
//! a start; differences are then applied. A changed file, a signal, an operator's call and a
//! discovered worker are all changes of a source. Settings with a problem change nothing.
//!
//! **Invariant**: the settings in force are those of the latest change that was applied, whole.

mod control;
mod discovered;
mod entry_reach;
mod file_watch;
mod history;
mod members;
#[cfg(feature = "nats")]
mod shared_members;
mod sources;
mod state_file;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use admin::{Control as _, WorkerRejection};
use api::ReloadOutcome;
use config::{ConfigChanges, Problem, Settings};
use fleet::{Fleet, FleetConfig};
use gateway::CurrentGateway;
use net::Clock;
use parking_lot::Mutex;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use response_cache::ResponseCache;
use routing::Router;
use tokio::sync::watch;

#[cfg(feature = "nats")]
pub(crate) use self::shared_members::SharedMembers;
pub(crate) use self::{file_watch::follow_sources, sources::SourceTexts};
use self::{history::ConfigHistory, members::MemberTable};
use crate::{from_settings, logging, settings};

/// Components that a change of the configuration updates.
#[derive(Debug)]
pub(crate) struct LiveParts {
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) router: Arc<Router>,
    pub(crate) gateway: Arc<CurrentGateway>,
    pub(crate) cache: Arc<ResponseCache>,
    pub(crate) clock: Clock,
    /// Workers that replicas share.
    #[cfg(feature = "nats")]
    pub(crate) shared: SharedMembers,
}

/// The configuration in force and its sources.
pub(crate) struct LiveConfig {
    parts: LiveParts,
    /// Settings of the start: keys that need a restart keep these values.
    started: Arc<Settings>,
    /// Current settings; locked only for a line.
    current: Mutex<Arc<Settings>>,
    /// Locked during a change, which includes file access: see [`Self::run_blocking`].
    state: Mutex<LiveState>,
    reloads: Family<ChangeOutcome, Counter>,
    /// Number of discovery sources that have answered once.
    answered_sources: watch::Sender<usize>,
    /// Whether the configuration on disk was refused or is missing.
    refused: AtomicBool,
}

struct LiveState {
    sources: SourceTexts,
    history: ConfigHistory,
}

/// Usable settings, and their differences.
struct SettingsChange {
    new: Settings,
    /// Keys that differ from the settings in force and change now.
    changed: Vec<String>,
    /// Keys that differ from those of the start and need a restart.
    restart_needed: Vec<String>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ChangeOutcome {
    result: &'static str,
}

/// Delay before a refused configuration is retried.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);

const APPLIED: ChangeOutcome = ChangeOutcome { result: "applied" };
const REJECTED: ChangeOutcome = ChangeOutcome { result: "rejected" };

impl fmt::Debug for LiveConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").finish_non_exhaustive()
    }
}

impl LiveConfig {
    /// Returns the live configuration of a router started with `settings`, which came from
    /// `sources`.
    pub(crate) fn new(
        parts: LiveParts,
        settings: Arc<Settings>,
        sources: SourceTexts,
        registry: &mut Registry,
    ) -> Arc<Self> {
        let reloads = Family::<ChangeOutcome, Counter>::default();
        // Both series exist from the start: a rate over one that appears with its first event
        // misses that event.
        drop(reloads.get_or_create(&APPLIED));
        drop(reloads.get_or_create(&REJECTED));
        registry.register(
            "warmroute_config_reloads",
            "Changes of the configuration by result",
            reloads.clone(),
        );
        let mut history = ConfigHistory::default();
        #[cfg(feature = "nats")]
        let sources = parts.shared.restore(sources);
        history.applied(
            parts.clock.wall(),
            "start",
            Vec::new(),
            sources.without_keys(),
        );
        Arc::new(Self {
            parts,
            current: Mutex::new(Arc::clone(&settings)),
            started: settings,
            state: Mutex::new(LiveState { sources, history }),
            reloads,
            answered_sources: watch::Sender::new(0),
            refused: AtomicBool::new(false),
        })
    }

    /// Runs a change or a query of the change state off the async threads: it reads and writes
    /// files, and may wait for another change. Once begun it continues even if its caller leaves.
    async fn run_blocking<T: Send + 'static>(
        self: &Arc<Self>,
        change: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> T {
        let live = Arc::clone(self);
        match runtime::spawn_blocking(move || change(&live)).await {
            Ok(done) => done,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The program ends.
                Err(_) => std::future::pending().await,
            },
        }
    }

    /// Reads the file again; `why` is the trigger.
    pub(crate) fn reload_because(&self, why: &'static str, dry_run: bool) -> ReloadOutcome {
        let state = &mut *self.state.lock();
        let mut sources = state.sources.clone();
        let settings = sources.reread().and_then(|()| sources.settings_with_keys());
        if dry_run {
            return self.preview(settings);
        }
        let reloaded = self.take(state, sources, settings, why);
        self.set_refused(!reloaded.applied);
        reloaded
    }

    /// Records whether the configuration on disk differs from the current one.
    fn set_refused(&self, refused: bool) {
        self.refused.store(refused, Ordering::Relaxed);
        self.parts.gateway.current().set_config_refused(refused);
    }

    /// Changes the workers of operators or discovery.
    fn change_members<T>(
        &self,
        why: &'static str,
        change: impl FnOnce(&mut MemberTable, &Settings) -> Result<T, WorkerRejection>,
    ) -> Result<T, WorkerRejection> {
        self.change_members_of(&mut self.state.lock(), why, change)
    }

    /// Does it under the lock that the caller has.
    fn change_members_of<T>(
        &self,
        state: &mut LiveState,
        why: &'static str,
        change: impl FnOnce(&mut MemberTable, &Settings) -> Result<T, WorkerRejection>,
    ) -> Result<T, WorkerRejection> {
        let mut sources = state.sources.clone();
        let changed = change(sources.members_mut(), &self.settings())?;
        if sources == state.sources {
            // A lease may have been renewed.
            state.sources = sources;
            return Ok(changed);
        }
        let settings = sources.settings();
        let reloaded = self.take(state, sources, settings, why);
        if !reloaded.problems.is_empty() {
            return Err(WorkerRejection::Problems(reloaded.problems));
        }
        self.save_members(state);
        Ok(changed)
    }

    /// Writes workers added and removed by operators to the state file, for the next start.
    fn save_members(&self, state: &LiveState) {
        let Some(path) = &self.started.discovery.state_file else {
            return;
        };
        if let Err(error) = state_file::write(path, state.sources.members()) {
            tracing::error!(%error, path = %path.display(), "the state file could not be written: a restart would not know the latest change");
        }
    }

    /// Returns what these settings would change.
    fn preview(&self, settings: Result<Settings, Vec<Problem>>) -> ReloadOutcome {
        match self.examine(settings) {
            Ok(change) => ReloadOutcome {
                applied: false,
                changed: change.changed,
                restart_needed: change.restart_needed,
                problems: Vec::new(),
            },
            Err(problems) => ReloadOutcome {
                problems,
                ..ReloadOutcome::default()
            },
        }
    }

    fn examine(
        &self,
        settings: Result<Settings, Vec<Problem>>,
    ) -> Result<SettingsChange, Vec<Problem>> {
        let new = settings.and_then(settings::usable)?;
        let current = self.settings();
        let taken = new.clone().taken_over(&self.started, &current);
        let restart_needed = ConfigChanges::left_for_restart(&self.started, &taken, &new);
        let changed = ConfigChanges::between(&current, &taken).live;
        Ok(SettingsChange {
            new: taken,
            changed,
            restart_needed,
        })
    }

    /// Applies settings, all of them or none, and records the change.
    fn take(
        &self,
        state: &mut LiveState,
        sources: SourceTexts,
        settings: Result<Settings, Vec<Problem>>,
        why: &'static str,
    ) -> ReloadOutcome {
        let at = self.parts.clock.wall();
        let usable = self.examine(settings).and_then(|change| {
            self.parts
                .fleet
                .apply(&FleetConfig::of(&change.new))
                .map_err(|error| vec![Problem::bad_value("workers", "", &error.to_string())])?;
            Ok(change)
        });
        let SettingsChange {
            new,
            changed,
            restart_needed,
        } = match usable {
            Ok(change) => change,
            Err(problems) => {
                for problem in &problems {
                    tracing::error!(%problem, source = why, "the configuration is not taken over, nothing changed");
                }
                self.reloads.get_or_create(&REJECTED).inc();
                state.history.rejected(at, why);
                return ReloadOutcome {
                    problems,
                    ..ReloadOutcome::default()
                };
            }
        };
        self.put_in_force(&new, why);
        if !changed.is_empty() || !restart_needed.is_empty() {
            tracing::info!(
                source = why,
                changed = changed.join(","),
                restart_needed = restart_needed.join(","),
                "configuration taken over"
            );
        }
        self.reloads.get_or_create(&APPLIED).inc();
        state
            .history
            .applied(at, why, changed.clone(), sources.without_keys());
        *self.current.lock() = Arc::new(new);
        state.sources = sources;
        ReloadOutcome {
            applied: true,
            changed,
            restart_needed,
            problems: Vec::new(),
        }
    }

    /// Hands the settings to the components besides the fleet.
    fn put_in_force(&self, new: &Settings, why: &'static str) {
        self.parts.router.reconfigure(from_settings::routing(new));
        self.parts.cache.reconfigure(&new.response_cache);
        let process = from_settings::process_limits(new);
        self.parts.gateway.reconfigure(new, process);
        logging::set_level(new.logging.level);
        let in_force = self.settings();
        for problem in new
            .skipped_workers()
            .iter()
            .filter(|problem| !in_force.skipped_workers().contains(problem))
        {
            tracing::warn!(%problem, source = why, "a worker is passed over, the others are taken in");
        }
    }

    /// Waits until every discovery source has answered once.
    pub(crate) async fn first_found(&self) {
        let discovery = &self.started.discovery;
        let sources = usize::from(discovery.file.is_some()) + discovery.dns.len();
        let mut answered_sources = self.answered_sources.subscribe();
        // The sender lives as long as `self`.
        let _ = answered_sources
            .wait_for(|answered_sources| *answered_sources >= sources)
            .await;
    }

    /// Waits until the workers that other replicas registered are known, if their bus is there.
    #[cfg(feature = "nats")]
    pub(crate) async fn first_shared(&self) {
        self.parts.shared.first_read().await;
    }

    /// Removes workers with expired leases. Leases use run time: while the process is suspended no
    /// client could renew them.
    pub(crate) fn end_leases(&self) {
        let now = self.parts.clock.run_time();
        let over = self.state.lock().sources.members().any_over(now);
        if over {
            let ended = self.change_members("lease", |members, _| {
                members.end_leases(now);
                Ok(())
            });
            if ended.is_err() {
                // Another source needs the worker: logged once, and retried later.
                self.state
                    .lock()
                    .sources
                    .members_mut()
                    .extend_leases(now, now + RETRY_INTERVAL);
            }
        }
    }

    /// Applies the workers of a discovery source.
    fn found(&self, source: &str, workers: Vec<config::MoreWorker>) -> Result<(), Vec<Problem>> {
        let applied = self.change_members("discovery", |members, _| {
            members.found(source, workers);
            Ok(())
        });
        match applied {
            Err(WorkerRejection::Problems(problems)) => Err(problems),
            _ => Ok(()),
        }
    }
}
