//! Gives filters to sockets, and takes them away.

use std::io;

use socket2::SockRef;

use crate::Program;

/// Has the kernel run the program for all packets that arrive at a listening socket, in place of
/// the one before. Connections that are accepted later have the filter as well until they are
/// [detached](detach).
///
/// While it replaces a filter, the kernel has both, and for two of thousands of addresses it may have
/// no room (`net.core.optmem_max`). Then the old one is taken away first.
///
/// # Errors
/// `PermissionDenied` where the kernel asks for the capability `CAP_NET_ADMIN`, as Linux does for
/// sockets of TCP since August 2026; the system's otherwise.
#[cfg(target_os = "linux")]
pub fn attach(socket: SockRef<'_>, program: &Program) -> io::Result<()> {
    let instructions = program.instructions().iter();
    let filter: Vec<_> = instructions
        .map(|it| socket2::SockFilter::new(it.code, it.if_true, it.if_false, it.operand))
        .collect();
    match socket.attach_filter(&filter) {
        Err(error) if error.kind() == io::ErrorKind::OutOfMemory => {
            let _ = socket.detach_filter();
            socket.attach_filter(&filter)
        }
        outcome => outcome,
    }
}

/// Takes the filter away, if there is one.
///
/// # Errors
/// The system's.
#[cfg(target_os = "linux")]
pub fn detach(socket: SockRef<'_>) -> io::Result<()> {
    /// "No such file or directory": there is no filter.
    const ENOENT: i32 = 2;
    match socket.detach_filter() {
        Err(error) if error.raw_os_error() == Some(ENOENT) => Ok(()),
        outcome => outcome,
    }
}

/// Other systems have no such filters.
///
/// # Errors
/// Always.
#[cfg(not(target_os = "linux"))]
pub fn attach(_: SockRef<'_>, _: &Program) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// There is none to take away.
///
/// # Errors
/// None.
#[cfg(not(target_os = "linux"))]
pub fn detach(_: SockRef<'_>) -> io::Result<()> {
    Ok(())
}
