//! Tests of the data directory: what is refused, and that a refusal changes nothing.

use super::*;
use crate::config::ServeArgs;

struct Place {
    root: PathBuf,
}

impl Place {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("narad-dir-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir_all(&root).unwrap();
        Self { root }
    }

    fn config(&self, id: &str, join: bool) -> Config {
        Config::resolve(ServeArgs {
            node_id: Some(id.into()),
            data_dir: Some(self.root.join("data")),
            listen: Some("127.0.0.1:1".into()),
            cpus: Some("none".into()),
            join: join.then(|| vec!["127.0.0.1:9".into()]),
            ..ServeArgs::default()
        })
        .unwrap()
    }

    fn files(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.root.join("data")) else {
            return Vec::new();
        };
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

#[test]
fn a_directory_keeps_its_identity_and_admits_one_holder() {
    let place = Place::new("identity");
    let first = open(&place.config("a", true)).unwrap();
    assert!(first.fresh());
    let disk = first.disk();
    let again = open(&place.config("a", true)).unwrap_err();
    let DataDirError::InUse { pid, .. } = &again else {
        panic!("{again}");
    };
    assert_eq!(*pid, Some(std::process::id()));
    drop(first);
    // A restart needs neither --peers nor --join.
    let second = open(&place.config("a", false)).unwrap();
    assert!(!second.fresh());
    assert_eq!(second.disk(), disk);
}

#[test]
fn what_is_refused_is_left_as_it_was() {
    let place = Place::new("refused");
    let error = open(&place.config("a", false)).unwrap_err();
    assert!(matches!(error, DataDirError::NoCluster { .. }), "{error}");
    assert!(!place.root.join("data").exists());

    std::fs::create_dir(place.root.join("data")).unwrap();
    std::fs::write(place.root.join("data/letter"), "x").unwrap();
    let error = open(&place.config("a", true)).unwrap_err();
    assert!(matches!(error, DataDirError::Foreign { .. }), "{error}");
    assert_eq!(place.files(), ["letter"]);
    std::fs::remove_file(place.root.join("data/letter")).unwrap();

    drop(open(&place.config("a", true)).unwrap());
    let before = place.files();
    let error = open(&place.config("b", true)).unwrap_err();
    assert!(matches!(error, DataDirError::OtherNode { .. }), "{error}");

    let file = place.root.join("data/node.json");
    let good = std::fs::read(&file).unwrap();
    std::fs::write(&file, "{\"format\": 2, \"of\": \"the future\"}").unwrap();
    let error = open(&place.config("a", true)).unwrap_err();
    assert!(
        matches!(error, DataDirError::NewerFormat { found: 2, .. }),
        "{error}"
    );
    std::fs::write(&file, "{\"form").unwrap();
    let error = open(&place.config("a", true)).unwrap_err();
    assert!(matches!(error, DataDirError::Damaged { .. }), "{error}");
    std::fs::write(&file, good).unwrap();
    assert_eq!(place.files(), before);
}

#[test]
fn a_first_start_that_was_cut_off_can_be_repeated() {
    let place = Place::new("cut-off");
    std::fs::create_dir(place.root.join("data")).unwrap();
    std::fs::write(place.root.join("data/LOCK"), "99").unwrap();
    std::fs::write(place.root.join("data/node.json.new"), "{").unwrap();
    assert!(open(&place.config("a", true)).unwrap().fresh());
}

#[test]
fn a_port_that_is_taken_is_named() {
    let place = Place::new("ports");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = place.config("a", true);
    config.listen = taken.local_addr().unwrap();
    let error = bind_ports(&config).unwrap_err();
    assert!(error.to_string().starts_with("--listen"), "{error}");
    assert!(!place.root.join("data").exists());
}

#[test]
fn a_listener_that_would_share_its_port_is_seen() {
    use nix::sys::socket::{
        AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, getsockname, listen,
        setsockopt, socket, sockopt,
    };
    use std::os::fd::AsRawFd;
    let shared = socket(
        AddressFamily::Inet,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    )
    .unwrap();
    setsockopt(&shared, sockopt::ReusePort, &true).unwrap();
    bind(shared.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)).unwrap();
    let addr: SockaddrIn = getsockname(shared.as_raw_fd()).unwrap();
    let addr = SocketAddr::from((addr.ip(), addr.port()));
    assert!(ports::probe(addr).is_ok(), "bound, but nobody listens");
    listen(&shared, Backlog::new(8).unwrap()).unwrap();
    let error = ports::probe(addr).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
}

#[test]
fn the_cluster_is_noted_once_and_stays() {
    let place = Place::new("cluster");
    let first = open(&place.config("a", true)).unwrap();
    assert_eq!(first.cluster(), None);
    let disk = first.disk();
    for id in [5, 6] {
        remember_cluster(first.path(), ClusterId(id)).unwrap();
    }
    drop(first);
    let again = open(&place.config("a", false)).unwrap();
    assert_eq!(again.cluster(), Some(ClusterId(5)));
    assert_eq!(again.disk(), disk);
}
