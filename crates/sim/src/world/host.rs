//! A gateway on its machine: the product's own composition, over the world's network and app.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body::Body;
use http_body_util::{BodyExt, Collected, Full};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use weir::internals::{Connect, Socket, SocketlessGateway};

use super::app::{App, Script, Slowness};
use super::port::{Emission, Port, RequestId};
use super::process::Process;
use crate::scenario::client;

/// What is to be known of the metrics.
const GAUGES: [(&str, &str); 2] = [
    ("leases", "weir_leases_held{"),
    ("memory buckets", "weir_memory_store_buckets "),
];

/// A gateway, once it has started.
type Running = Rc<RefCell<Option<Rc<SocketlessGateway<App>>>>>;

/// A machine's clock, against the world's.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClockRate {
    /// World time at which it is read for the first time.
    pub(super) began: Duration,
    /// How much faster it runs, in parts per million.
    pub(super) drift: i32,
}

/// A gateway process that lives.
pub(super) struct Host {
    pub(super) port: Arc<Port>,
    process: Process,
    running: Running,
    pace: ClockRate,
    /// The configuration that was written last.
    pub(super) configuration: usize,
    drain: Arc<Notify>,
    pub(super) is_serving: bool,
    pub(super) frozen_until: Option<Duration>,
    /// What comes while it is frozen.
    waiting: Vec<Call>,
    requests: BTreeMap<RequestId, AbortHandle>,
}

/// What somebody asks of a gateway.
pub(super) enum Call {
    Request(Arc<client::Request>, IpAddr),
    /// An operator's, by the number of the operation.
    Operation(usize, Box<Request<Bytes>>),
    /// To read the configuration again.
    Reload,
    Drain,
}

impl Host {
    /// Starts a gateway whose configuration is `gateway.yaml` in a folder.
    pub(super) fn start(
        folder: &Path,
        configuration: usize,
        pace: ClockRate,
        wall: i64,
        number: u64,
        slowness: &Slowness,
    ) -> io::Result<Self> {
        let port = Arc::<Port>::default();
        let (running, drain) = (Running::default(), Arc::<Notify>::default());
        let main = {
            let (port, slowness) = (Arc::clone(&port), Arc::clone(slowness));
            let (running, drain) = (Rc::clone(&running), Arc::clone(&drain));
            let path = folder.join("gateway.yaml");
            async move {
                let app = App::new(Arc::clone(&port), slowness);
                let started =
                    SocketlessGateway::start(&path, connect(&port), move |_| app.clone()).await;
                let (gateway, follow) = match started {
                    Ok(started) => started,
                    Err(why) => {
                        port.emit(Emission::Refused(why.to_string()));
                        return pending().await;
                    }
                };
                *running.borrow_mut() = Some(Rc::clone(&gateway));
                port.emit(Emission::Started);
                let mut follow = pin!(follow);
                let mut drains = pin!(drain.notified());
                // A gateway that has served its last request follows nothing any more.
                poll_fn(|cx| {
                    let Poll::Pending = follow.as_mut().poll(cx);
                    drains.as_mut().poll(cx)
                })
                .await;
                gateway.end().await;
                port.emit(Emission::Drained);
                pending::<Infallible>().await
            }
        };
        Ok(Self {
            process: Process::new(&port, wall, number, || Box::pin(main))?,
            port,
            running,
            pace,
            configuration,
            drain,
            is_serving: false,
            frozen_until: None,
            waiting: Vec::new(),
            requests: BTreeMap::new(),
        })
    }

    /// Runs until `target`, or until it does something that concerns the world, and tells when.
    pub(super) fn run(&mut self, target: Duration) -> Duration {
        if self.frozen_until.is_none() {
            self.process.run(self.pace.own(target));
        }
        self.now().min(target)
    }

    /// World time of its process.
    pub(super) fn now(&self) -> Duration {
        self.pace.world(self.process.position())
    }

    /// Goes on after it was frozen.
    pub(super) fn thaw(&mut self, now: Duration) {
        self.frozen_until = None;
        self.process.jump(self.pace.own(now));
        for call in std::mem::take(&mut self.waiting) {
            self.call(call);
        }
    }

    /// Hands something over.
    pub(super) fn call(&mut self, call: Call) {
        if self.frozen_until.is_some() {
            self.waiting.push(call);
            return;
        }
        let Some(gateway) = self.running.borrow().clone() else {
            return;
        };
        let port = Arc::clone(&self.port);
        match call {
            Call::Request(script, address) => {
                let id = script.id;
                let request = request(script);
                let response = self.process.within(|| gateway.call(address, request));
                let task = self.process.spawn(async move {
                    let Ok(response) = response.await;
                    let (head, mut body) = response.into_parts();
                    let status = head.status.as_u16();
                    port.emit(Emission::Answered(id, status, fields(&head.headers)));
                    let is_whole = drain_body(&mut body).await;
                    drop(body);
                    port.emit(Emission::Finished(id, is_whole));
                });
                self.requests.insert(id, task);
            }
            Call::Operation(number, request) => {
                let response = self.process.within(|| gateway.call_admin(*request));
                self.process.spawn(async move {
                    let Ok(response) = response.await;
                    let status = response.status().as_u16();
                    let body = response.into_body().collect().await;
                    let body = body.map(Collected::to_bytes).unwrap_or_default();
                    let body = String::from_utf8_lossy(&body).into_owned();
                    port.emit(Emission::Operated(number, status, body));
                });
            }
            Call::Reload => self.process.within(|| gateway.reload()),
            Call::Drain => self.process.within(|| self.drain.notify_one()),
        }
    }

    /// A client does not wait any more.
    pub(super) fn abandon(&mut self, id: RequestId) {
        self.waiting
            .retain(|call| !matches!(call, Call::Request(script, _) if script.id == id));
        if let Some(task) = self.requests.remove(&id) {
            self.process.within(|| task.abort());
        }
    }

    pub(super) fn finished(&mut self, id: RequestId) {
        self.requests.remove(&id);
    }

    pub(super) fn requests(&self) -> impl Iterator<Item = RequestId> {
        self.requests.keys().copied()
    }

    /// What it holds: tasks, connections to servers, requests, and what its metrics say.
    pub(super) fn holds(&self) -> Vec<(String, u64)> {
        let count = |it: usize| u64::try_from(it).unwrap_or(u64::MAX);
        let mut counts = vec![
            ("requests".to_owned(), count(self.requests.len())),
            ("tasks".to_owned(), count(self.process.tasks())),
            ("connections".to_owned(), count(self.port.connections())),
        ];
        let running = self.running.borrow();
        let page = running.as_ref().map(|gateway| gateway.metrics());
        let page = page.unwrap_or_default();
        for (name, metric) in GAUGES {
            let series = page.lines().filter(|line| line.starts_with(metric));
            let values = series.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
            counts.push((name.to_owned(), values.sum()));
        }
        counts
    }

    /// Something has come from the network.
    pub(super) const fn wake(&mut self) {
        self.process.wake();
    }

    /// Sets the machine's clock ahead.
    pub(super) const fn step_wall(&mut self, by: i64) {
        self.process.step_wall(by);
    }

    /// Ends it at once.
    pub(super) fn kill(self) {
        let Self {
            process, running, ..
        } = self;
        drop(running);
        process.kill();
    }
}

impl ClockRate {
    const MILLION: i128 = 1_000_000;

    /// How much time has passed by the machine's clock, rounded up.
    pub(super) fn own(self, world: Duration) -> Duration {
        let passed = world.saturating_sub(self.began);
        let rate = Self::MILLION + i128::from(self.drift);
        scaled(passed, rate, Self::MILLION)
    }

    /// World time at which the machine's clock shows that so much has passed.
    fn world(self, own: Duration) -> Duration {
        let rate = Self::MILLION + i128::from(self.drift);
        self.began + scaled(own, Self::MILLION, rate)
    }
}

fn scaled(duration: Duration, by: i128, of: i128) -> Duration {
    let nanos = i128::try_from(duration.as_nanos()).unwrap_or(i128::MAX);
    let scaled = (nanos.saturating_mul(by) + of - 1) / of;
    Duration::from_nanos(u64::try_from(scaled).unwrap_or(0))
}

fn connect(port: &Arc<Port>) -> Connect {
    let port = Arc::clone(port);
    Arc::new(move |address| {
        let port = Arc::clone(&port);
        Box::pin(async move { Ok(Box::new(port.dial(address).await?) as Socket) })
    })
}

fn request(script: Arc<client::Request>) -> Request<Full<Bytes>> {
    let mut request = Request::get(format!("/r{}", script.route)).header("host", "sim");
    for (name, value) in &script.headers {
        request = request.header(name, value);
    }
    let request = request.extension(Script(script)).body(Full::default());
    // Names and values of a scenario are those of header fields.
    request.unwrap_or_default()
}

fn fields(headers: &HeaderMap) -> Vec<(String, String)> {
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let fields = headers.iter();
    fields
        .map(|(name, value)| (name.to_string(), text(value)))
        .collect()
}

/// Reads a body, and tells whether it came to its end.
async fn drain_body(body: &mut (impl Body + Unpin)) -> bool {
    loop {
        match body.frame().await {
            None => return true,
            Some(Ok(_)) => {}
            Some(Err(_)) => return false,
        }
    }
}
