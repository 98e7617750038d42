//! Taking from the host, with the kernel's own truth about it.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use gpucause_fake_cuda::scratch::{self, DirectFile};
use gpucause_fake_cuda::{block, clock};
use serde_json::{Value, json};

use super::{Setup, join, result};
use crate::cli::{Common, Host};
use crate::process::thread_id;
use crate::session;

pub(crate) fn run(common: &Common, options: &Host) -> Result<()> {
    let setup = Setup::new(common, "cudaLaunchKernel")?;
    block::set_dir(options.dir.clone());
    let mut file = (options.read > 0).then(DirectFile::new).transpose()?;
    let listener = options.accept.map(TcpListener::bind).transpose()?;
    let mut caller = setup.caller();
    // Once before it counts, so that the code of it has been fetched.
    fetched()?;
    session::ready(common, &[thread_id()], &json!({}))?;
    if !options.no_call {
        caller.step();
    }
    let fetched_before = fetched()?;
    let start = clock::monotonic_ns();
    let mut read_bytes = 0;
    while let Some(file) = file.as_mut().filter(|_| read_bytes < options.read) {
        read_bytes += file.read_next()?;
    }
    let read_ns = clock::monotonic_ns() - start;
    let start = clock::monotonic_ns();
    if options.write > 0 {
        scratch::write_through_the_cache(options.write)?;
    }
    let write_ns = clock::monotonic_ns() - start;
    if options.touch > 0 {
        scratch::touch_new_memory(options.touch)?;
    }
    clock::spin(options.spin);
    let mut retransmits = 0;
    if let Some(address) = options.connect {
        retransmits += connect(address, options.retransmits)?;
    }
    if let Some(listener) = &listener {
        retransmits += accept(listener, options.retransmits)?;
    }
    let truth = json!({
        "read_bytes": read_bytes,
        "fetched_bytes": fetched()? - fetched_before,
        "read_ns": read_ns,
        "write_ns": write_ns,
        "touched_bytes": options.touch,
        "retransmits": retransmits,
    });
    let report = join(join(result("host", &setup.libraries), truth), faults());
    session::finish(common, &report)
}

/// Bytes that this process had fetched from disks so far, its own code included.
fn fetched() -> Result<u64> {
    let io = std::fs::read_to_string("/proc/self/io")?;
    let bytes = io.lines().find_map(|line| line.strip_prefix("read_bytes: ")?.parse().ok());
    bytes.context("/proc/self/io does not tell what was read")
}

/// Page faults of this process so far.
fn faults() -> Value {
    // SAFETY: the structure is plain integers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is valid for writes.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    json!({ "minor_faults": usage.ru_minflt, "major_faults": usage.ru_majflt })
}

/// Begins to connect and gives up after so many segments were sent again; returns how many were.
fn connect(address: SocketAddr, enough: u32) -> Result<u32> {
    let SocketAddr::V4(address) = address else { bail!("{address}: write an IPv4 address") };
    // SAFETY: takes integers.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error().into());
    }
    // SAFETY: the descriptor is open and nobody else owns it.
    let socket = TcpStream::from(unsafe { OwnedFd::from_raw_fd(socket) });
    let to = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
        sin_zero: [0; 8],
    };
    let length = size_of_val(&to) as libc::socklen_t;
    // SAFETY: the address is valid and of this length.
    let code = unsafe { libc::connect(socket.as_raw_fd(), (&raw const to).cast(), length) };
    let error = io::Error::last_os_error();
    if code == 0 || error.raw_os_error() != Some(libc::EINPROGRESS) {
        bail!("{address}: somebody answered, or {error}");
    }
    give_up(&socket, enough)
}

/// Accepts a connection, waits for a byte, and writes back until so many segments were sent again.
fn accept(listener: &TcpListener, enough: u32) -> Result<u32> {
    let (mut socket, _) = listener.accept()?;
    socket.read_exact(&mut [0]).context("the other side closed")?;
    socket.write_all(b"answer")?;
    give_up(&socket, enough)
}

fn give_up(socket: &TcpStream, enough: u32) -> Result<u32> {
    while retransmits(socket)? < enough {
        std::thread::sleep(Duration::from_millis(5));
    }
    let at_once = libc::linger { l_onoff: 1, l_linger: 0 };
    let length = size_of_val(&at_once) as libc::socklen_t;
    let (descriptor, option) = (socket.as_raw_fd(), (&raw const at_once).cast());
    // SAFETY: the option's value is valid and of this length.
    unsafe { libc::setsockopt(descriptor, libc::SOL_SOCKET, libc::SO_LINGER, option, length) };
    retransmits(socket)
}

/// Segments of a socket that were sent again, as the kernel counts them.
fn retransmits(socket: &TcpStream) -> Result<u32> {
    // SAFETY: the structure is plain integers.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&info) as libc::socklen_t;
    let into = (&raw mut info).cast();
    // SAFETY: `info` is valid for writes of its length.
    let code = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            into,
            &raw mut length,
        )
    };
    if code != 0 {
        return Err(io::Error::last_os_error().into());
    }
    Ok(info.tcpi_total_retrans)
}
