//! Pins processes and threads to a core and sets their priority.

use rustix::{
    process::{Pid, Resource, getrlimit, setpriority_process, setrlimit},
    thread::{CpuSet, sched_setaffinity},
};

/// One of the two cores that the run uses.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Core {
    /// For the router and the honest client.
    Router,
    /// For everything else.
    Others,
}

impl Core {
    fn set(self) -> CpuSet {
        let mut set = CpuSet::new();
        let last = std::thread::available_parallelism().map_or(1, usize::from) - 1;
        set.set(match self {
            Self::Router => 0,
            Self::Others => last.min(1),
        });
        set
    }
}

/// The nice value of everything that would run on other machines than the honest client's engine.
/// Without it, the engine would wait for the attackers' own work, and the run would measure that
/// instead of the router.
const NICE: i32 = 19;

/// Pins all threads of a running process. Threads that it starts later inherit the core.
pub(crate) fn pin_process(pid: u32, core: Core) {
    for task in tasks(pid) {
        // A thread that has ended meanwhile needs no core.
        let _ = sched_setaffinity(Some(task), &core.set());
    }
}

/// Lowers the priority of all threads of a running process. Threads that it starts later inherit
/// it.
pub(crate) fn lower_priority(pid: u32) {
    for task in tasks(pid) {
        let _ = setpriority_process(Some(task), NICE);
    }
}

fn tasks(pid: u32) -> impl Iterator<Item = Pid> {
    let tasks =
        std::fs::read_dir(format!("/proc/{pid}/task")).expect("a running process has tasks");
    tasks.flatten().filter_map(|task| {
        task.file_name()
            .to_str()?
            .parse()
            .ok()
            .and_then(Pid::from_raw)
    })
}

/// Pins the calling thread.
pub(crate) fn pin_thread(core: Core) {
    sched_setaffinity(None, &core.set()).expect("a thread can choose its core");
}

/// Makes the calling thread, and all threads that it starts, background load: on the other core,
/// with low priority.
pub(crate) fn become_background_load() {
    pin_thread(Core::Others);
    setpriority_process(None, NICE).expect("a thread can lower its priority");
}

/// Raises the soft limit: the attackers need a descriptor for each of more than two thousand
/// connections.
pub(crate) fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("the soft limit can be raised to the hard one");
}
