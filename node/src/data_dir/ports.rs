//! Whether a port is free for listeners that share it.
//!
//! What this file keeps true: what a process that has just ended leaves behind does not make a port
//! look taken, a listener of a living one does.

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, setsockopt, socket, sockopt,
};
use std::io::{Error, ErrorKind, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// How long a listener that does not answer is waited for.
const ANSWER: Duration = Duration::from_secs(1);

/// How long a port may stay taken after its process has ended: the kernel takes an io_uring apart,
/// and closes the listener in it, some time after the process is gone.
const LEFT_BEHIND: Duration = Duration::from_secs(3);
/// Pause between two looks at a port that is taken.
const PAUSE: Duration = Duration::from_millis(50);

/// As [`look`], but gives what a process has left behind some time to go away.
pub(super) fn probe(addr: SocketAddr) -> Result<()> {
    let until = Instant::now() + LEFT_BEHIND;
    loop {
        match look(addr) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < until => {
                std::thread::sleep(PAUSE);
            }
            outcome => return outcome,
        }
    }
}

/// Refuses `addr` when it is not this machine's, when somebody holds it alone, or when somebody
/// listens there, even one who would share it (SO_REUSEPORT).
fn look(addr: SocketAddr) -> Result<()> {
    let family = match addr {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let probe = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    // As the shards' listeners: without it, what is left of an ended process's connections would
    // refuse the port for a minute.
    setsockopt(&probe, sockopt::ReusePort, &true)?;
    bind(probe.as_raw_fd(), &SockaddrStorage::from(addr))?;
    let mut reached = addr;
    if addr.ip().is_unspecified() {
        reached.set_ip(match addr.ip() {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        });
    }
    match TcpStream::connect_timeout(&reached, ANSWER) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(()),
        // Somebody answers, or would if it were not stuck.
        Ok(_) | Err(_) => Err(Error::from(ErrorKind::AddrInUse)),
    }
}
