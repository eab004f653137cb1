//! Where a node lives: its addresses, its cluster, its CPUs.
//!
//! What this file keeps true: an address that others are told can be reached by its form; ports do
//! not collide; nothing binds beyond loopback unless the operator said so.

use super::check::Problems;
use super::{Cpus, ServeArgs, Start};
use crate::limits;
use narad_core::ids::NodeId;
use std::collections::BTreeSet;
use std::net::{SocketAddr, ToSocketAddrs};

pub(super) fn start(
    args: &ServeArgs,
    node_id: &Option<NodeId>,
    problems: &mut Problems,
) -> Option<Start> {
    match (&args.peers, &args.join) {
        (Some(_), Some(_)) => {
            problems.add(
                "--peers",
                "cannot stand beside --join: founders take --peers, later members --join",
            );
            None
        }
        (None, None) => Some(Start::Restart),
        (None, Some(join)) => {
            problems.check(
                (1..=limits::ADDRESSES_MAX).contains(&join.len()),
                "--join",
                || format!("takes 1 to {} addresses", limits::ADDRESSES_MAX),
            );
            for addr in join {
                check_addr("--join", addr, problems);
            }
            Some(Start::Join(join.clone()))
        }
        (Some(peers), None) => founders(peers, node_id, problems).map(Start::Found),
    }
}

fn founders(
    peers: &[String],
    node_id: &Option<NodeId>,
    problems: &mut Problems,
) -> Option<Vec<(NodeId, String)>> {
    let mut founders = Vec::new();
    let mut ids = BTreeSet::new();
    let mut addrs = BTreeSet::new();
    for peer in peers {
        let Some((id, addr)) = peer.split_once('=') else {
            problems.add(
                "--peers",
                format!("{peer:?} is not of the form ID=HOST:PORT"),
            );
            continue;
        };
        check_addr("--peers", addr, problems);
        match NodeId::parse(id) {
            Ok(id) => {
                problems.check(ids.insert(id.clone()), "--peers", || {
                    format!("{id} is named twice")
                });
                problems.check(addrs.insert(addr), "--peers", || {
                    format!("{addr} is named twice")
                });
                founders.push((id, addr.to_owned()));
            }
            Err(error) => problems.add("--peers", format!("{id:?} {error}")),
        }
    }
    problems.check(
        (1..=limits::ADDRESSES_MAX).contains(&peers.len()),
        "--peers",
        || format!("takes 1 to {} founders", limits::ADDRESSES_MAX),
    );
    if let Some(id) = node_id
        && !ids.contains(id)
    {
        problems.add(
            "--peers",
            format!("does not name {id}, this node: list every founder, this one included"),
        );
    }
    Some(founders)
}

fn check_addr(flag: &'static str, addr: &str, problems: &mut Problems) {
    let good = addr
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|p| p > 0));
    problems.check(good, flag, || {
        format!("{addr:?} is not of the form HOST:PORT with a port of 1 to 65535")
    });
}

pub(super) struct Binds {
    pub(super) listen: SocketAddr,
    pub(super) bulk: SocketAddr,
    pub(super) http: Option<SocketAddr>,
}

fn bind_addr(flag: &'static str, text: &str, problems: &mut Problems) -> Option<SocketAddr> {
    match text.to_socket_addrs().map(|mut addrs| addrs.next()) {
        Ok(Some(addr)) if addr.port() != 0 => Some(addr),
        Ok(Some(_)) => {
            problems.add(
                flag,
                "needs a port of 1 to 65535: others are told this address",
            );
            None
        }
        Ok(None) | Err(_) => {
            problems.add(
                flag,
                format!("{text:?} is not a HOST:PORT that this machine can resolve"),
            );
            None
        }
    }
}

pub(super) fn binds(args: &ServeArgs, problems: &mut Problems) -> Option<Binds> {
    let listen = match &args.listen {
        None => {
            problems.add(
                "--listen",
                "is missing: say where clients and peers connect",
            );
            None
        }
        Some(text) => bind_addr("--listen", text, problems),
    };
    let bulk = match &args.bulk {
        Some(text) => bind_addr("--bulk", text, problems),
        None => listen.and_then(|listen| match listen.port().checked_add(1) {
            Some(port) => Some(SocketAddr::new(listen.ip(), port)),
            None => {
                problems.add(
                    "--bulk",
                    "is missing, and there is no port after --listen's",
                );
                None
            }
        }),
    };
    let http = args
        .http
        .as_ref()
        .and_then(|text| bind_addr("--http", text, problems));
    let (listen, bulk) = (listen?, bulk?);
    problems.check(listen != bulk, "--bulk", || {
        format!("{bulk} is the same as --listen")
    });
    if let Some(http) = http {
        problems.check(http != listen && http != bulk, "--http", || {
            format!("{http} is taken by --listen or --bulk")
        });
    }
    for (flag, addr) in [
        ("--listen", Some(listen)),
        ("--bulk", Some(bulk)),
        ("--http", http),
    ] {
        if let Some(addr) = addr
            && !addr.ip().is_loopback()
            && args.insecure != Some(true)
        {
            problems.add(
                flag,
                format!(
                    "{addr} can be reached from other machines and there is no access control: \
                     restrict it by the network and say --insecure, or bind a loopback address"
                ),
            );
        }
    }
    Some(Binds { listen, bulk, http })
}

pub(super) fn advertised(
    args: &ServeArgs,
    binds: &Binds,
    start: &Option<Start>,
    node_id: Option<&NodeId>,
    problems: &mut Problems,
) -> Option<(String, String, String)> {
    let own = match start {
        Some(Start::Found(founders)) => founders
            .iter()
            .find(|(id, _)| Some(id) == node_id)
            .map(|(_, addr)| addr.clone()),
        _ => None,
    };
    let host = match (&args.advertise, &own) {
        (Some(host), _) => bracket(host),
        (None, Some(addr)) => addr.rsplit_once(':')?.0.to_owned(),
        (None, None) if binds.listen.ip().is_unspecified() => {
            problems.add(
                "--advertise",
                format!(
                    "is missing: --listen {} binds every interface, so say by which host others \
                     reach this node",
                    binds.listen
                ),
            );
            return None;
        }
        (None, None) => bracket(&binds.listen.ip().to_string()),
    };
    let addr = format!("{host}:{}", binds.listen.port());
    if let Some(own) = own
        && args.advertise.is_none()
        && own.rsplit_once(':').map(|(_, port)| port) != Some(&binds.listen.port().to_string())
    {
        problems.add(
            "--peers",
            format!(
                "names this node at {own}, but it listens at {}: make them agree",
                binds.listen
            ),
        );
    }
    let at = |bind: SocketAddr| {
        let host = if bind.ip() == binds.listen.ip() || bind.ip().is_unspecified() {
            host.clone()
        } else {
            bracket(&bind.ip().to_string())
        };
        format!("{host}:{}", bind.port())
    };
    Some((addr, at(binds.bulk), binds.http.map(at).unwrap_or_default()))
}

fn bracket(host: &str) -> String {
    if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]")
    } else {
        host.to_owned()
    }
}

pub(super) fn executors(args: &ServeArgs, problems: &mut Problems) -> (u32, Cpus) {
    let cpus = match args.cpus.as_deref() {
        None => Cpus::Auto,
        Some("none") => Cpus::None,
        Some(list) => match parse_cpus(list) {
            Ok(list) => Cpus::List(list),
            Err(message) => {
                problems.add("--cpus", message);
                Cpus::None
            }
        },
    };
    let usable = match &cpus {
        Cpus::List(list) => list.len(),
        Cpus::Auto | Cpus::None => std::thread::available_parallelism().map_or(1, Into::into),
    };
    let default = u32::try_from(usable).unwrap_or(1).saturating_sub(1).max(1);
    let shards = args.shards.unwrap_or(default);
    problems.check(
        (1..=limits::SHARDS_MAX).contains(&shards),
        "--shards",
        || format!("must be 1 to {}", limits::SHARDS_MAX),
    );
    (shards, cpus)
}

fn parse_cpus(text: &str) -> Result<Vec<usize>, String> {
    let allowed = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0))
        .map_err(|error| format!("cannot ask which CPUs this process may use: {error}"))?;
    let mut list = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (Ok(first), Ok(last)) = (first.trim().parse::<usize>(), last.trim().parse::<usize>())
        else {
            return Err(format!("{part:?} is neither a CPU nor a range like 0-3"));
        };
        if first > last || last >= nix::sched::CpuSet::count() {
            return Err(format!("{part:?} is not a range of CPUs"));
        }
        for cpu in first..=last {
            if list.contains(&cpu) {
                return Err(format!("CPU {cpu} is named twice"));
            }
            if !allowed.is_set(cpu).unwrap_or(false) {
                return Err(format!(
                    "CPU {cpu} does not exist or is not allowed to this process"
                ));
            }
            list.push(cpu);
        }
    }
    Ok(list)
}
