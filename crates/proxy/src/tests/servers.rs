//! Servers that behave as they are told to, and count their requests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::Method;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::support::*;
use crate::{Proxy, UpstreamSettings};

pub(super) const FAILED: &str = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\nno";

/// What a server does with a request whose head it has read.
#[derive(Clone, Copy)]
pub(super) enum Behaviour {
    Answers(&'static str),
    Closes,
    /// Dies with this many requests in flight.
    ClosesAllAt(usize),
    NeverAnswers,
}

/// A server that counts the requests that it gets, until it is dropped.
pub(super) struct TestServer {
    pub(super) address: SocketAddr,
    requests: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl TestServer {
    pub(super) async fn start(behaviour: Behaviour) -> Self {
        let (listener, address) = listen().await;
        Self::on(listener, address, behaviour)
    }

    pub(super) fn on(listener: TcpListener, address: SocketAddr, behaviour: Behaviour) -> Self {
        let requests = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&requests);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let mut peer = RawConnection::accept(&listener).await;
                let counted = Arc::clone(&counted);
                connections.spawn(async move {
                    while peer.0.readable().await.is_ok()
                        && peer.0.peek(&mut [0]).await.is_ok_and(|read| read > 0)
                    {
                        peer.head().await;
                        counted.fetch_add(1, Ordering::Relaxed);
                        match behaviour {
                            Answers(text) => peer.write(text).await,
                            Closes => return,
                            ClosesAllAt(most) => {
                                while counted.load(Ordering::Relaxed) < most {
                                    tokio::task::yield_now().await;
                                }
                                return;
                            }
                            NeverAnswers => std::future::pending().await,
                        }
                    }
                });
            }
        });
        Self {
            address,
            requests,
            task,
        }
    }

    pub(super) fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(super) async fn servers<const N: usize>(behaviours: [Behaviour; N]) -> Vec<TestServer> {
    let mut servers = Vec::new();
    for behaviour in behaviours {
        servers.push(TestServer::start(behaviour).await);
    }
    servers
}

pub(super) fn settings_of(servers: &[TestServer]) -> UpstreamSettings {
    let addresses: Vec<_> = servers.iter().map(|server| server.address).collect();
    settings(&addresses)
}

/// The status of a request of this method, whose response is read to its end.
pub(super) async fn status(proxy: &Proxy, method: Method) -> u16 {
    let mut request = get("/");
    *request.method_mut() = method;
    let response = send(proxy, request).await;
    let status = response.status().as_u16();
    text(response).await;
    status
}

pub(super) async fn statuses(proxy: &Proxy, method: Method, times: usize) -> Vec<u16> {
    let mut statuses = Vec::new();
    for _ in 0..times {
        statuses.push(status(proxy, method.clone()).await);
    }
    statuses
}

pub(super) use Behaviour::{Answers, Closes, ClosesAllAt, NeverAnswers};
