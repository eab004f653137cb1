//! What a service manager is told, and the unit file that it is told by.

use crate::support::{Cluster, Node, wait_for};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::process::Command;

const UNIT: &str = include_str!("../../docs/narad.service");

/// The manager's side of `NOTIFY_SOCKET`.
struct Manager(UnixDatagram);

impl Manager {
    /// Listens, and has the node's next start know where.
    fn at_path(node: &mut Node, path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).expect("a socket");
        Self::of(node, socket, &path.display().to_string())
    }

    /// The same without a file.
    fn abstract_(node: &mut Node, name: &str) -> Self {
        let addr = SocketAddr::from_abstract_name(name).expect("a name");
        let socket = UnixDatagram::bind_addr(&addr).expect("a socket");
        Self::of(node, socket, &format!("@{name}"))
    }

    fn of(node: &mut Node, socket: UnixDatagram, name: &str) -> Self {
        socket.set_nonblocking(true).expect("a socket");
        node.next_env.push(("NOTIFY_SOCKET".into(), name.into()));
        Self(socket)
    }

    /// The next message, if one has come.
    fn told(&self) -> Option<String> {
        let mut message = [0; 4_096];
        let len = self.0.recv(&mut message).ok()?;
        Some(String::from_utf8_lossy(&message[..len]).into_owned())
    }

    fn wait_told(&self, what: &str) {
        let message = wait_for(what, || self.told());
        assert!(message.lines().any(|line| line == what), "{message}");
        assert!(message.contains("STATUS="), "{message}");
    }
}

#[test]
fn the_service_manager_hears_of_readiness_when_there_is_some_and_of_the_stop() {
    let mut cluster = Cluster::founders("notify", 3, &[]);
    let path = cluster.dir.join("notify");
    let first = Manager::at_path(&mut cluster.nodes[0], &path);
    let name = format!("narad-test-{}", std::process::id());
    let second = Manager::abstract_(&mut cluster.nodes[1], &name);
    cluster.nodes[0].start();
    // Alone it founds nothing; it answers, and says that it is not ready.
    let mut asked = 0;
    wait_for("it says often enough that it is not ready", || {
        let (status, _) = cluster.nodes[0].http("GET", "/readyz")?;
        assert_eq!((status, first.told()), (503, None));
        asked += 1;
        (asked == 20).then_some(())
    });
    cluster.nodes[1].start();
    cluster.nodes[2].start();
    for (at, manager) in [(0, &first), (1, &second)] {
        manager.wait_told("READY=1");
        assert_eq!(cluster.nodes[at].http("GET", "/readyz").unwrap().0, 200);
    }
    cluster.wait_ready();
    assert_eq!(first.told(), None, "once");

    assert!(cluster.nodes[0].stop().success());
    first.wait_told("STOPPING=1");
    assert_eq!(first.told(), None, "once");
    // A node that is killed says nothing.
    cluster.nodes[1].kill();
    assert_eq!(second.told(), None);
    // A manager that is gone holds nobody up.
    drop(second);
    let gone = ("NOTIFY_SOCKET".into(), format!("@{name}"));
    cluster.nodes[1].next_env.push(gone);
    cluster.nodes[1].start();
    cluster.nodes[1].wait_ready();
}

/// What systemd says about a unit; `None` where there is no systemd.
fn verified(unit: &str) -> Option<String> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("unit-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let path = dir.join("narad.service");
    // The program is not installed here.
    let unit = unit.replace("/usr/bin/narad", env!("CARGO_BIN_EXE_narad"));
    std::fs::write(&path, unit).expect("written");
    let output = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .arg(&path)
        .output();
    std::fs::remove_dir_all(&dir).expect("removed");
    Some(crate::text(&output.ok()?))
}

#[test]
fn systemd_has_nothing_to_say_about_the_unit() {
    let Some(told) = verified(UNIT) else {
        println!("skipped: there is no systemd-analyze");
        return;
    };
    assert_eq!(told, "");
    // It would say so if there were something.
    let wrong = UNIT.replace("RestartSec=", "RestartSecs=");
    let told = verified(&wrong).expect("it runs");
    assert!(told.contains("RestartSecs"), "{told}");
}

#[test]
fn the_unit_waits_longer_for_an_orderly_stop_than_the_node_takes() {
    let setting = |name: &str| {
        let line = UNIT.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{name} is missing"))
    };
    let seconds: u64 = setting("TimeoutStopSec=").parse().expect("seconds");
    let sample = include_str!("../../docs/narad.toml");
    let stop_ms = sample.lines().find_map(|line| {
        let (name, value) = line.trim_start_matches(['#', '=', ' ']).split_once('=')?;
        (name.trim() == "stop_timeout_ms").then(|| value.trim().parse::<u64>().ok())?
    });
    assert!(seconds * 1_000 > stop_ms.expect("the default is in the sample"));
    assert_eq!(setting("Type="), "notify");
    assert_eq!(setting("Restart="), "on-failure");
    assert_eq!(setting("LimitMEMLOCK="), "infinity");
    assert!(setting("LimitNOFILE=").parse::<u64>().expect("a number") >= 65_536);
}
