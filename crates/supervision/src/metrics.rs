//! The panic counter.

use std::sync::LazyLock;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TaskLabel {
    task: &'static str,
}

/// Process-wide, because tasks are started in many crates, long before there is a registry. The
/// label is a name written in the source, so the family is bounded.
static PANICS: LazyLock<Family<TaskLabel, Counter>> = LazyLock::new(Family::default);

/// Registers `warmroute_task_panics_total{task}`.
pub fn register(registry: &mut Registry) {
    registry.register(
        "warmroute_task_panics",
        "Panics of long-lived tasks, which were started again",
        PANICS.clone(),
    );
}

/// Exports the counter of this task from now on: a rate over a series that appears with its first
/// event misses that event.
pub(crate) fn announce(task: &'static str) {
    drop(PANICS.get_or_create(&TaskLabel { task }));
}

pub(crate) fn count(task: &'static str) {
    PANICS.get_or_create(&TaskLabel { task }).inc();
}

#[cfg(test)]
pub(crate) fn counted(task: &'static str) -> u64 {
    PANICS.get_or_create(&TaskLabel { task }).get()
}
