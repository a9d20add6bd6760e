//! How many packets a listening socket has dropped: asked of the kernel by `sock_diag(7)`, as `ss`
//! does, since nothing safe reads `SO_MEMINFO`.

use std::io::{self, ErrorKind};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};
use socket2::{SockRef, Type};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST_DUMP: u16 = 0x301;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const IPPROTO_TCP: u8 = 6;
const IPPROTO_UDP: u8 = 17;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// The bits of the states of listening sockets: `TCP_LISTEN`, and `TCP_CLOSE` for those of UDP.
const LISTEN: u32 = 1 << 10;
const UNCONNECTED: u32 = 1 << 7;
const INET_DIAG_SKMEMINFO: u16 = 7;

/// Where a cookie is in the address of a socket, and where in that list the drops are.
const COOKIE: usize = 40;
const SK_MEMINFO_DROPS: usize = 8;

/// The lengths of `nlmsghdr`, `inet_diag_msg` and `rtattr`, and where the second has its address.
const HEADER: usize = 16;
const MESSAGE: usize = 72;
const ATTRIBUTE: usize = 4;
const ID: usize = 4;

/// The number of packets that a listening socket has dropped so far, modulo 2³². One that its full
/// queue or buffer had no room for counts as well.
///
/// # Errors
/// The system's; `NotFound` if it does not know the socket.
pub fn dropped(socket: SockRef<'_>) -> io::Result<u32> {
    let address = socket.local_addr()?.as_socket();
    let address = address.ok_or(ErrorKind::InvalidInput)?;
    let family = if address.is_ipv4() { AF_INET } else { AF_INET6 };
    let cookie = socket.cookie()?;
    let (protocol, state) = match socket.r#type()? {
        Type::DGRAM => (IPPROTO_UDP, UNCONNECTED),
        _ => (IPPROTO_TCP, LISTEN),
    };
    let kernel = socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    send(
        &kernel,
        &request(family, protocol, state, address.port()),
        SendFlags::empty(),
    )?;
    let mut buffer = [0; 16 * 1024];
    loop {
        let (length, _) = recv(&kernel, &mut buffer[..], RecvFlags::empty())?;
        let mut rest = buffer.get(..length).unwrap_or_default();
        while let Some((kind, body)) = next_message(&mut rest) {
            match kind {
                NLMSG_DONE => return Err(ErrorKind::NotFound.into()),
                NLMSG_ERROR => return Err(ErrorKind::Unsupported.into()),
                _ => {
                    if let Some(drops) = drops_of(body, cookie) {
                        return Ok(drops);
                    }
                }
            }
        }
    }
}

/// Asks for all sockets of a family, a protocol, a state and a port.
fn request(family: u8, protocol: u8, state: u32, port: u16) -> Vec<u8> {
    let mut request = Vec::with_capacity(HEADER + 56);
    request.extend(72_u32.to_ne_bytes());
    request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request.extend(NLM_F_REQUEST_DUMP.to_ne_bytes());
    // The sequence and the sender.
    request.extend([0; 8]);
    request.extend([family, protocol, 1 << (INET_DIAG_SKMEMINFO - 1), 0]);
    request.extend(state.to_ne_bytes());
    request.extend(port.to_be_bytes());
    // Any peer, address, interface and cookie.
    request.extend([0; 46]);
    request
}

fn next_message<'b>(rest: &mut &'b [u8]) -> Option<(u16, &'b [u8])> {
    let length = usize::try_from(u32_at(rest, 0)?).ok()?;
    let kind = u16_at(rest, 4)?;
    let body = rest.get(HEADER..length)?;
    *rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((kind, body))
}

/// The drops of the socket with this cookie, if the message is about it.
fn drops_of(message: &[u8], cookie: u64) -> Option<u32> {
    let halves = (
        u32_at(message, ID + COOKIE)?,
        u32_at(message, ID + COOKIE + 4)?,
    );
    if (u64::from(halves.1) << 32 | u64::from(halves.0)) != cookie {
        return None;
    }
    let mut rest = message.get(MESSAGE..)?;
    loop {
        let length = usize::from(u16_at(rest, 0)?);
        let attribute = rest.get(ATTRIBUTE..length)?;
        if u16_at(rest, 2)? == INET_DIAG_SKMEMINFO {
            return u32_at(attribute, 4 * SK_MEMINFO_DROPS);
        }
        rest = rest.get(length.next_multiple_of(4)..)?;
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_ne_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*bytes))
}
