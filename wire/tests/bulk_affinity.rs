//! Threads of the bulk channel leave the core of the executor that starts them. Alone in its
//! process: it looks for the threads by name.

use glommio::{LocalExecutorBuilder, Placement};
use narad_wire::bulk::{BulkOptions, BulkServer, SessionTable};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

// As `build.rs` asks the linker to.
narad_wire::runtime_hooks!();

#[test]
fn serving_threads_are_not_pinned_to_the_starters_core() {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("bulk-affinity-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let allowed = nix::sched::sched_getaffinity(nix::unistd::Pid::this()).unwrap();
    let cpus = |set: &nix::sched::CpuSet| {
        (0..nix::sched::CpuSet::count())
            .filter(|cpu| set.is_set(*cpu).unwrap())
            .count()
    };
    let in_pinned = dir.clone();
    let of_bulk_thread = LocalExecutorBuilder::new(Placement::Fixed(0))
        .spawn(move || async move {
            let own = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)).unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let sessions = Arc::new(SessionTable::new());
            let options = BulkOptions::new(&in_pinned);
            let server = BulkServer::start(listener, sessions, options).unwrap();
            let mut found = None;
            while found.is_none() {
                found = std::fs::read_dir("/proc/self/task")
                    .unwrap()
                    .filter_map(|task| {
                        let task = task.ok()?.path();
                        let name = std::fs::read_to_string(task.join("comm")).ok()?;
                        let status = std::fs::read_to_string(task.join("status")).ok()?;
                        let list = status
                            .lines()
                            .find(|l| l.starts_with("Cpus_allowed_list:"))?;
                        (name.trim() == "bulk-accept" && !list.ends_with("\t0"))
                            .then(|| list.to_owned())
                    })
                    .next();
                if cpus(&allowed) == 1 {
                    break;
                }
                glommio::timer::sleep(Duration::from_millis(5)).await;
            }
            server.stop();
            (cpus(&own), found)
        })
        .unwrap()
        .join()
        .unwrap();
    assert_eq!(of_bulk_thread.0, 1, "the starter was pinned");
    if cpus(&allowed) > 1 {
        assert!(of_bulk_thread.1.is_some());
    }
    std::fs::remove_dir_all(dir).unwrap();
}
