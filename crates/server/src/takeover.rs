//! How one gateway takes the place of another without losing a connection.
//!
//! The successor asks for the listening sockets over a Unix socket, and receives the sockets
//! themselves (`SCM_RIGHTS`), with the connections in their queues. Both accept from the same
//! queues until the successor serves; then it tells its predecessor, which accepts no more and
//! drains. If the successor fails before that, nothing has changed. See
//! `docs/decisions/0030-takeover-and-drain.md`.

use std::io::{self, BufRead, BufReader, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};
use std::sync::Arc;
use std::thread::{self, sleep};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::retry_on_intr;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Uid, geteuid};
use tokio::sync::mpsc;

use super::listeners::{Inherited, ListeningSocket};

/// The target of log lines, which filters name.
const TARGET: &str = "weir::server::takeover";

/// How long the other process may take for each step, except to begin to serve.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a successor may take from its request until it serves.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// How often to retry to bind a name that another process still has.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// How many sockets one message carries; the kernel allows 253.
const SOCKETS_PER_MESSAGE: usize = 64;

/// How many bytes the list of a successor's addresses may have.
const MAX_REPLY: u64 = 64 * 1024;

/// A message has one of these bytes per socket.
const OWN: u8 = b'o';
const MANAGED: u8 = b'm';

/// Follows the last socket, and the last address.
const END: u8 = 0;

/// The address at which a gateway is asked for its sockets: a name in the abstract namespace, which
/// belongs to the same network namespace as the ports, and needs no file. Any user may bind such a
/// name, so each side checks the user of the other process.
fn name(first: SocketAddr) -> io::Result<UnixAddress> {
    let uid = geteuid().as_raw();
    UnixAddress::from_abstract_name(format!("weir/takeover/{uid}/{first}"))
}

fn is_of_same_user(stream: &UnixStream) -> io::Result<bool> {
    Ok(socket_peercred(stream)?.uid == geteuid())
}

/// Warns when the name belongs to a process of another user than `own`.
fn warn_of_other_user(holder: &UnixStream, own: Uid) {
    if let Ok(holder) = socket_peercred(holder)
        && holder.uid != own
    {
        tracing::warn!(
            target: TARGET,
            uid = holder.uid.as_raw(),
            pid = holder.pid.as_raw_nonzero().get(),
            "a process of another user has the name by which a gateway is taken over; \
             until it ends, no successor can take over",
        );
    }
}

/// A gateway that serves, seen from its successor.
#[derive(Debug)]
pub struct Predecessor(UnixStream);

impl Predecessor {
    /// Finds the gateway of the same user whose first address is `first`, and receives all of its
    /// sockets. Returns none if there is no such gateway.
    ///
    /// # Errors
    /// When it does not answer as it should.
    pub fn find(first: SocketAddr, inherited: &mut Inherited) -> io::Result<Option<Self>> {
        let stream = match UnixStream::connect_addr(&name(first)?) {
            Ok(stream) => stream,
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Ok(None),
            Err(error) => return Err(error),
        };
        if !is_of_same_user(&stream)? {
            warn_of_other_user(&stream, geteuid());
            return Ok(None);
        }
        stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
        stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
        receive(&stream, inherited)?;
        Ok(Some(Self(stream)))
    }

    /// Tells it that its successor serves on these addresses, and waits until the name is free for
    /// the next successor.
    ///
    /// # Errors
    /// When it cannot be told. It goes on serving then, or has ended.
    pub fn replace(mut self, taken: &[SocketAddr]) -> io::Result<()> {
        for address in taken {
            writeln!(self.0, "{address}")?;
        }
        self.0.write_all(&[END])?;
        // It drains, or has ended: if this process failed now, none would serve.
        if let Err(error) = self.0.read_exact(&mut [0]) {
            tracing::warn!(
                target: TARGET,
                %error,
                "the gateway that is replaced does not say that it drains"
            );
        }
        Ok(())
    }
}

/// A gateway that serves, and hands its sockets to a successor.
#[derive(Debug)]
pub struct Takeover(Arc<Mutex<Sockets>>);

/// Receives the addresses of a successor once it serves.
pub type Replaced = mpsc::UnboundedReceiver<Vec<SocketAddr>>;

#[derive(Debug, Default)]
struct Sockets {
    /// The sockets for clients. Empty once the process drains.
    clients: Vec<ListeningSocket>,
    admin: Vec<ListeningSocket>,
    /// A successor has them, but does not serve yet.
    handed_out: bool,
}

impl Sockets {
    /// Drops the handles, which would otherwise keep the sockets open after the successor has
    /// ended.
    fn release(&mut self) {
        self.admin.clear();
        self.handed_out = false;
    }
}

impl Takeover {
    /// Waits for a successor, on its own thread that ends with the process. `clients` and `admin`
    /// are further handles to the listening sockets.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn spawn(
        first: SocketAddr,
        clients: Vec<ListeningSocket>,
        admin: Vec<ListeningSocket>,
    ) -> io::Result<(Self, Replaced)> {
        let sockets = Arc::new(Mutex::new(Sockets {
            clients,
            admin,
            handed_out: false,
        }));
        let (sender, replaced) = mpsc::unbounded_channel();
        let name = name(first)?;
        // At once if possible, so that the gateway can be replaced as soon as it says that it has
        // started.
        let listener = UnixListener::bind_addr(&name);
        let shared = Arc::clone(&sockets);
        let serve = move || {
            let listener = listener.unwrap_or_else(|_| bind_when_free(&name));
            let taken = serve_successors(listener, &shared);
            // The receiver is gone when the process is about to end.
            let _ = sender.send(taken);
        };
        thread::Builder::new()
            .name("weir-takeover".to_owned())
            .spawn(serve)?;
        Ok((Self(sockets), replaced))
    }

    /// Drops the handles to the sockets for clients, as the process drains. Returns the addresses
    /// of those that a successor already has: they must stay open.
    pub fn give_up(&self) -> Vec<SocketAddr> {
        let mut sockets = self.0.lock();
        let clients = std::mem::take(&mut sockets.clients);
        let handed_out = clients.iter().filter(|_| sockets.handed_out);
        handed_out
            .filter_map(|socket| socket.listener.local_addr().ok())
            .collect()
    }
}

/// Binds the name once the process that has it ends.
fn bind_when_free(name: &UnixAddress) -> UnixListener {
    tracing::debug!(target: TARGET, "another process can still be taken over at this address");
    if let Ok(holder) = UnixStream::connect_addr(name) {
        warn_of_other_user(&holder, geteuid());
    }
    loop {
        sleep(RETRY_INTERVAL);
        if let Ok(listener) = UnixListener::bind_addr(name) {
            return listener;
        }
    }
}

/// Hands the sockets to each successor that asks, until one of them serves. Returns the addresses
/// of that one.
fn serve_successors(listener: UnixListener, sockets: &Mutex<Sockets>) -> Vec<SocketAddr> {
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            // A temporary failure, such as a lack of file descriptors.
            Err(error) => {
                tracing::debug!(target: TARGET, %error, "a successor is not heard");
                sleep(RETRY_INTERVAL);
                continue;
            }
        };
        match hand_over(&stream, sockets) {
            Ok(taken) => {
                sockets.lock().release();
                // The name must be free before the successor is told.
                drop(listener);
                let _ = (&stream).write_all(&[END]);
                return taken;
            }
            // Any process may ask; and a gateway that wants the name only connects to see who has
            // it.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                sockets.lock().handed_out = false;
            }
            Err(error) => {
                sockets.lock().handed_out = false;
                tracing::warn!(target: TARGET, %error, "a successor did not get ready; nothing has changed");
            }
        }
    }
}

fn hand_over(stream: &UnixStream, sockets: &Mutex<Sockets>) -> io::Result<Vec<SocketAddr>> {
    if !is_of_same_user(stream)? {
        return Err(ErrorKind::PermissionDenied.into());
    }
    stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
    stream.set_read_timeout(Some(READY_TIMEOUT))?;
    {
        let mut sockets = sockets.lock();
        sockets.handed_out = true;
        send(stream, sockets.clients.iter().chain(&sockets.admin))?;
    }
    let mut answer = Vec::new();
    let read = BufReader::new(stream.take(MAX_REPLY)).read_until(END, &mut answer)?;
    match answer.pop() {
        Some(END) => addresses(&String::from_utf8(answer).map_err(invalid)?),
        _ if read == 0 => Err(ErrorKind::UnexpectedEof.into()),
        _ => Err(ErrorKind::InvalidData.into()),
    }
}

/// Parses the addresses of a reply, one a line.
fn addresses(answer: &str) -> io::Result<Vec<SocketAddr>> {
    let parsed = answer.lines().map(|line| line.parse().map_err(invalid));
    parsed.collect()
}

fn invalid(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}

/// Sends the sockets, then the end mark.
fn send<'a>(
    stream: &UnixStream,
    sockets: impl Iterator<Item = &'a ListeningSocket>,
) -> io::Result<()> {
    let sockets: Vec<_> = sockets.collect();
    for some in sockets.chunks(SOCKETS_PER_MESSAGE) {
        let kind = |socket: &&ListeningSocket| if socket.is_managed { MANAGED } else { OWN };
        let kinds: Vec<u8> = some.iter().map(kind).collect();
        let descriptors: Vec<_> = some.iter().map(|socket| socket.listener.as_fd()).collect();
        let mut space =
            [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_PER_MESSAGE))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        let bytes = [IoSlice::new(&kinds)];
        retry_on_intr(|| sendmsg(stream, &bytes, &mut ancillary, SendFlags::NOSIGNAL))?;
    }
    (&*stream).write_all(&[END])
}

/// Receives sockets until the end mark.
fn receive(stream: &UnixStream, inherited: &mut Inherited) -> io::Result<()> {
    loop {
        let mut kinds = [0; SOCKETS_PER_MESSAGE];
        let mut space =
            [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_PER_MESSAGE))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let into = &mut [IoSliceMut::new(&mut kinds)];
        // With a time limit, a pause of the process interrupts it (signal(7)).
        let received =
            retry_on_intr(|| recvmsg(stream, into, &mut ancillary, RecvFlags::CMSG_CLOEXEC))?;
        let messages = ancillary.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        let kinds = kinds.iter().take(received.bytes);
        let descriptors: Vec<_> = messages.flatten().collect();
        if descriptors.len() != kinds.clone().filter(|kind| **kind != END).count() {
            // The kernel drops descriptors that exceed the process's limit; connections in their
            // queues would be lost.
            let missing = "not all sockets could be taken over: too few file descriptors";
            return Err(io::Error::new(ErrorKind::InvalidData, missing));
        }
        for (descriptor, kind) in descriptors.into_iter().zip(kinds.clone()) {
            inherited.push(ListeningSocket {
                listener: descriptor.into(),
                is_managed: *kind == MANAGED,
            });
        }
        match kinds.copied().next_back() {
            Some(END) => return Ok(()),
            Some(_) => {}
            None => return Err(ErrorKind::UnexpectedEof.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    fn listening() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    fn handles(listener: &TcpListener, count: usize) -> Vec<ListeningSocket> {
        let handle = || ListeningSocket {
            listener: listener.try_clone().unwrap(),
            is_managed: false,
        };
        (0..count).map(|_| handle()).collect()
    }

    #[tokio::test]
    async fn a_successor_gets_every_socket_with_the_connections_that_wait_there() {
        let (listener, address) = listening();
        let (admin, admin_address) = listening();
        // More than one message can carry.
        let clients = handles(&listener, 150);
        let (takeover, mut replaced) =
            Takeover::spawn(address, clients, handles(&admin, 1)).unwrap();
        let client = TcpStream::connect(address).unwrap();
        let mut inherited = Inherited::default();
        let predecessor = Predecessor::find(address, &mut inherited).unwrap().unwrap();
        let sockets = inherited.sockets_at(address).unwrap();
        assert_eq!(
            (
                sockets.len(),
                inherited.sockets_at(admin_address).unwrap().len()
            ),
            (150, 1)
        );
        predecessor.replace(&[address, admin_address]).unwrap();
        assert_eq!(replaced.recv().await.unwrap(), [address, admin_address]);
        // Sockets that the successor has not taken are closed as on a signal.
        assert_eq!(takeover.give_up(), []);
        drop((takeover, listener));
        let (_, peer) = sockets[0].listener.accept().unwrap();
        assert_eq!(peer, client.local_addr().unwrap());
        // The name is free for the successor's own successors.
        let _next = Takeover::spawn(address, sockets, Vec::new()).unwrap();
        assert!(
            Predecessor::find(address, &mut inherited)
                .unwrap()
                .is_some()
        );
    }

    /// The kernel silently drops descriptors that exceed the process's limit.
    #[test]
    fn a_successor_never_goes_on_without_some_of_the_sockets() {
        let (near, far) = UnixStream::pair().unwrap();
        (&far).write_all(&[OWN, OWN, END]).unwrap();
        let error = receive(&near, &mut Inherited::default()).unwrap_err();
        assert!(error.to_string().contains("not all sockets"), "{error}");
    }

    #[tokio::test]
    async fn a_successor_that_fails_before_it_serves_changes_nothing() {
        let (listener, address) = listening();
        let clients = handles(&listener, 1);
        let (_takeover, mut replaced) = Takeover::spawn(address, clients, Vec::new()).unwrap();
        for _ in 0..3 {
            let mut inherited = Inherited::default();
            let failed = Predecessor::find(address, &mut inherited).unwrap();
            assert_eq!(inherited.sockets_at(address).unwrap().len(), 1);
            drop(failed);
        }
        assert!(replaced.try_recv().is_err());
        let mut inherited = Inherited::default();
        let ready = Predecessor::find(address, &mut inherited).unwrap().unwrap();
        ready.replace(&[]).unwrap();
        assert_eq!(replaced.recv().await.unwrap(), []);
    }

    #[test]
    fn a_gateway_that_drains_hands_over_its_admin_listener_alone() {
        let (listener, address) = listening();
        let (admin, admin_address) = listening();
        let clients = handles(&listener, 1);
        let (takeover, _) = Takeover::spawn(address, clients, handles(&admin, 1)).unwrap();
        assert_eq!(takeover.give_up(), []);
        let mut inherited = Inherited::default();
        let _predecessor = Predecessor::find(address, &mut inherited).unwrap().unwrap();
        assert!(inherited.sockets_at(address).unwrap().is_empty());
        assert_eq!(inherited.sockets_at(admin_address).unwrap().len(), 1);
    }

    #[test]
    fn sockets_that_a_successor_has_already_are_returned_when_the_process_drains() {
        let (listener, address) = listening();
        let clients = handles(&listener, 1);
        let (takeover, _) = Takeover::spawn(address, clients, Vec::new()).unwrap();
        let mut inherited = Inherited::default();
        let _predecessor = Predecessor::find(address, &mut inherited).unwrap().unwrap();
        assert_eq!(takeover.give_up(), [address]);
    }

    #[test]
    fn a_predecessor_that_ends_instead_of_answering_does_not_stop_its_successor() {
        let (near, far) = UnixStream::pair().unwrap();
        let predecessor = thread::spawn(move || {
            let mut told = Vec::new();
            let read = BufReader::new(&far).read_until(END, &mut told);
            read.map(|_| told)
        });
        let address = "127.0.0.1:80".parse().unwrap();
        let text = logged(|| Predecessor(near).replace(&[address]).unwrap());
        assert!(text.contains("WARN"), "{text}");
        let told = predecessor.join().unwrap().unwrap();
        assert_eq!(told, b"127.0.0.1:80\n\0");
    }

    #[test]
    fn a_name_that_another_user_has_is_warned_of() {
        let (_listener, address) = listening();
        let name = name(address).unwrap();
        let _holder = UnixListener::bind_addr(&name).unwrap();
        let to_holder = UnixStream::connect_addr(&name).unwrap();
        let own = geteuid();
        assert_eq!(logged(|| warn_of_other_user(&to_holder, own)), "");
        let other = Uid::from_raw(own.as_raw() + 1);
        let text = logged(|| warn_of_other_user(&to_holder, other));
        assert!(text.contains("WARN"), "{text}");
        assert!(
            text.contains(&format!("pid={}", std::process::id())),
            "{text}"
        );
    }

    /// What is logged meanwhile on this thread.
    fn logged(events: impl FnOnce()) -> String {
        let (read, write) = UnixStream::pair().unwrap();
        let write = std::sync::Mutex::new(write);
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(write);
        weir_testing::subscribed(subscriber.finish(), events);
        let mut text = String::new();
        (&read).read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn where_no_gateway_is_there_is_nothing_to_take_over() {
        let (_listener, address) = listening();
        let found = Predecessor::find(address, &mut Inherited::default());
        assert!(found.unwrap().is_none());
    }
}
