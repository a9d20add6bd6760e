//! The servers of an upstream, whose turn it is, and what happens when one does not answer.

use std::error::Error as StdError;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderMap, Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use tokio::time::{Instant, timeout};

use super::connection::{Connection, Release};
use super::error::ProxyError;
use super::peer::Peer;
use super::request::Outbound;
use super::server::Server;
use super::settings::{HostHeader, UpstreamSettings};
use super::upload::{OutOfPatience, Turn, Upload, with_patience};
use crate::telemetry::Upstreamed;

/// An upstream with its connections. Clones share them.
///
/// Each worker thread has one of its own, so that a request never leaves its thread.
pub struct Upstream<B>(Arc<Inner<B>>);

struct Inner<B> {
    name: String,
    peers: Box<[Arc<Peer<B>>]>,
    next: AtomicUsize,
    connect_timeout: Duration,
    response_timeout: Duration,
    host: HostHeader,
}

/// The head of a response, the connection that its body comes from, and how it came about.
pub(super) struct Answer {
    pub(super) response: Response<Incoming>,
    pub(super) connection: Box<dyn Release>,
    pub(super) upstreamed: Upstreamed,
}

/// What became of a request that was given to a connection.
enum Exchange<B> {
    Answered(Answer),
    /// Nothing was sent: the connection had been closed.
    NotSent(Request<Upload<B>>, hyper::Error),
}

impl<B> Upstream<B> {
    /// An upstream of the servers in `settings`, with no connection yet.
    pub fn new(settings: UpstreamSettings) -> Self {
        let peer = |server: &Server| Arc::new(Peer::new(server.clone(), &settings));
        Self(Arc::new(Inner {
            peers: settings.servers.iter().map(peer).collect(),
            name: settings.name,
            next: AtomicUsize::new(0),
            connect_timeout: settings.connect_timeout,
            response_timeout: settings.response_timeout,
            host: settings.host,
        }))
    }

    /// The upstream's name.
    pub fn name(&self) -> &str {
        &self.0.name
    }
}

impl<B> Clone for Upstream<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B> Inner<B> {
    /// The servers to try, the one whose turn it is first. Those that could not be reached lately
    /// are left out; but the only server there is always gets its chance.
    fn in_turn(&self, now: Instant) -> impl Iterator<Item = &Arc<Peer<B>>> + Clone {
        let first = self.next.fetch_add(1, Ordering::Relaxed) % self.peers.len().max(1);
        let (before, from) = self.peers.split_at(first);
        let only = self.peers.len() == 1;
        let in_turn = from.iter().chain(before);
        in_turn.filter(move |peer| only || peer.is_available(now))
    }

    /// Sets what the upstream is to see as the host.
    fn set_host(&self, headers: &mut HeaderMap, server: &Server) {
        match &self.host {
            // An HTTP/1.0 client need not name a host.
            HostHeader::Preserve if headers.contains_key(HOST) => return,
            HostHeader::Preserve | HostHeader::Upstream => {
                headers.insert(HOST, server.host_header().clone())
            }
            HostHeader::Fixed(host) => headers.insert(HOST, host.clone()),
        };
    }
}

impl<B> Upstream<B>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    /// Sends the request to the server whose turn it is, on a kept-alive connection if there is
    /// one, and awaits the head of the response.
    ///
    /// A request of which something was sent is never sent again.
    pub(super) async fn send(&self, outbound: Outbound<B>) -> Result<Answer, ProxyError> {
        let Outbound {
            mut request, turn, ..
        } = outbound;
        let (arrived, turn) = (Instant::now(), turn.as_deref());
        let peers = self.0.in_turn(arrived);
        let peer = peers.clone().next().ok_or(ProxyError::NoServer)?;
        if let Some(connection) = peer.idle(arrived) {
            let link = Link::kept_alive(peer, connection, arrived);
            match self.exchange(link, request, turn).await? {
                Exchange::Answered(answer) => return Ok(answer),
                Exchange::NotSent(given_back, _) => request = given_back,
            }
        }
        let link = self.connect(peers, arrived).await?;
        let server = Arc::clone(link.peer.server().name());
        match self.exchange(link, request, turn).await? {
            Exchange::Answered(answer) => Ok(answer),
            Exchange::NotSent(_, source) => Err(ProxyError::Closed { server, source }),
        }
    }

    /// Opens a connection to the first of the servers that can be reached. Each gets its share of
    /// the time, so that one that does not answer leaves some to the others.
    async fn connect<'p>(
        &self,
        peers: impl Iterator<Item = &'p Arc<Peer<B>>> + Clone,
        arrived: Instant,
    ) -> Result<Link<'p, B>, ProxyError> {
        let start = Instant::now();
        let deadline = start + self.0.connect_timeout;
        let mut failure = None;
        for (left, peer) in shares(peers) {
            if let Some(error) = failure.take() {
                self.log_passed_over(&error);
            }
            let share = deadline.saturating_duration_since(Instant::now()) / left;
            match connect_within(share, peer).await {
                Ok(connection) => {
                    return Ok(Link {
                        peer,
                        connection,
                        connect: Some(start.elapsed()),
                        arrived,
                    });
                }
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or(ProxyError::NoServer))
    }

    fn log_passed_over(&self, error: &ProxyError) {
        let cause = error.source().map(tracing::field::display);
        tracing::warn!(upstream = self.name(), %error, cause, "trying the upstream's next server");
    }

    async fn exchange(
        &self,
        mut link: Link<'_, B>,
        mut request: Request<Upload<B>>,
        turn: Option<&Turn>,
    ) -> Result<Exchange<B>, ProxyError> {
        let server = link.peer.server();
        self.0.set_host(request.headers_mut(), server);
        let sent = link.connection.send(request);
        match with_patience(sent, self.0.response_timeout, turn).await {
            Ok(Ok(response)) => Ok(Exchange::Answered(link.answer(response))),
            Ok(Err(mut error)) => match error.take_message() {
                Some(request) => Ok(Exchange::NotSent(request, error.into_error())),
                None => Err(ProxyError::of_exchange(
                    error.into_error(),
                    Arc::clone(server.name()),
                )),
            },
            Err(OutOfPatience) => Err(ProxyError::ResponseTimeout {
                server: Arc::clone(server.name()),
            }),
        }
    }
}

/// The servers, each with the number of those that are left from it on.
fn shares<I: Iterator + Clone>(peers: I) -> impl Iterator<Item = (u32, I::Item)> {
    let count = u32::try_from(peers.clone().count()).unwrap_or(u32::MAX);
    let left = (0..count).rev().map(|after| after + 1);
    // The iterator is lazy: a server may drop out after it was counted, but none may join.
    left.zip(peers)
}

async fn connect_within<B>(
    share: Duration,
    peer: &Arc<Peer<B>>,
) -> Result<Box<Connection<B>>, ProxyError>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    let server = || Arc::clone(peer.server().name());
    let error = match timeout(share, peer.connect()).await {
        Ok(Ok(connection)) => return Ok(connection),
        Ok(Err(source)) => ProxyError::Connect {
            server: server(),
            source,
        },
        Err(_) => ProxyError::ConnectTimeout { server: server() },
    };
    peer.back_off();
    Err(error)
}

/// A connection taken for one request.
struct Link<'p, B> {
    peer: &'p Arc<Peer<B>>,
    connection: Box<Connection<B>>,
    connect: Option<Duration>,
    arrived: Instant,
}

impl<'p, B> Link<'p, B> {
    fn kept_alive(
        peer: &'p Arc<Peer<B>>,
        connection: Box<Connection<B>>,
        arrived: Instant,
    ) -> Self {
        Self {
            peer,
            connection,
            connect: None,
            arrived,
        }
    }
}

impl<B: Send + 'static> Link<'_, B> {
    fn answer(self, response: Response<Incoming>) -> Answer {
        let upstreamed = Upstreamed {
            server: Arc::clone(self.peer.server().name()),
            status: response.status(),
            connect: self.connect,
            head: self.arrived.elapsed(),
        };
        Answer {
            response,
            connection: self.connection,
            upstreamed,
        }
    }
}
