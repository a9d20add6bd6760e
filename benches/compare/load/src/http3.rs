//! The load over HTTP/3: its connections are quinn's, and each stream of them is a task.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Buf;
use h3::client::SendRequest;
use h3_quinn::OpenStreams;
use http::Request;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Endpoint};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::timeout;

use crate::Phases;
use crate::options::Options;
use crate::report::Report;
use crate::wire::{SERVER_NAME, trusting};

/// How long responses are waited for when all requests are sent.
const PATIENCE: Duration = Duration::from_secs(2);

type Sender = SendRequest<OpenStreams, bytes::Bytes>;

pub struct Load {
    runtime: Runtime,
    tasks: LocalSet,
    senders: Vec<Sender>,
    streams: usize,
    expect: u16,
    request: Rc<str>,
}

impl Load {
    pub fn connect(options: &Options) -> Result<Self, String> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let tasks = LocalSet::new();
        let certificate = options.tls.as_deref().ok_or("--http3 is for --tls")?;
        let mut tls = trusting(certificate)?;
        tls.alpn_protocols = vec![b"h3".to_vec()];
        let quic = QuicClientConfig::try_from(tls).map_err(|error| error.to_string())?;
        let config = ClientConfig::new(Arc::new(quic));
        let senders = tasks.block_on(&runtime, async {
            let mut senders = Vec::new();
            for _ in 0..options.connections {
                senders.push(connect(options.target, config.clone()).await?);
            }
            Ok::<_, String>(senders)
        })?;
        Ok(Self {
            runtime,
            tasks,
            senders,
            streams: options.http3,
            expect: options.expect,
            request: format!("https://{SERVER_NAME}{}", options.path).into(),
        })
    }

    fn back_to_back(
        &self,
        may_send: impl Fn(Instant) -> bool + Clone + 'static,
    ) -> Result<Report, String> {
        let begin = Instant::now();
        let mut report = Report::new();
        self.tasks.block_on(&self.runtime, async {
            let mut all = JoinSet::new();
            for sender in &self.senders {
                for _ in 0..self.streams {
                    let stream = Stream {
                        sender: sender.clone(),
                        request: Rc::clone(&self.request),
                        expect: self.expect,
                    };
                    all.spawn_local(stream.run(may_send.clone()));
                }
            }
            while let Some(part) = all.join_next().await {
                report.add(&part.map_err(|error| error.to_string())?);
            }
            Ok::<_, String>(())
        })?;
        report.took = begin.elapsed();
        Ok(report)
    }
}

impl Phases for Load {
    fn closed(&mut self, span: Duration) -> Result<Report, String> {
        let end = Instant::now() + span;
        self.back_to_back(move |now| now < end)
    }

    fn count(&mut self, requests: u64) -> Result<Report, String> {
        let left = Rc::new(std::cell::Cell::new(requests));
        self.back_to_back(move |_| {
            let before = left.get();
            left.set(before.saturating_sub(1));
            before > 0
        })
    }

    fn open(&mut self, _: Duration, _: f64) -> Result<Report, String> {
        Err("there is no open loop over HTTP/3".into())
    }
}

/// A connection from a port of its own.
async fn connect(target: SocketAddr, config: ClientConfig) -> Result<Sender, String> {
    let failed = |error: &dyn std::fmt::Display| format!("connect: {error}");
    let own = SocketAddr::new(target.ip(), 0);
    let mut endpoint = Endpoint::client(own).map_err(|error| failed(&error))?;
    endpoint.set_default_client_config(config);
    let connecting = endpoint.connect(target, SERVER_NAME);
    let connecting = connecting.map_err(|error| failed(&error))?;
    let connection = connecting.await.map_err(|error| failed(&error))?;
    let (mut driver, sender) = h3::client::new(h3_quinn::Connection::new(connection))
        .await
        .map_err(|error| failed(&error))?;
    tokio::task::spawn_local(async move { driver.wait_idle().await });
    Ok(sender)
}

/// What one of the streams that a connection has at a time does.
struct Stream {
    sender: Sender,
    request: Rc<str>,
    expect: u16,
}

impl Stream {
    async fn run(mut self, may_send: impl Fn(Instant) -> bool) -> Report {
        let mut report = Report::new();
        loop {
            let begin = Instant::now();
            if !may_send(begin) {
                return report;
            }
            match timeout(PATIENCE, self.exchange()).await {
                Ok(Ok(status)) => {
                    report.answered += 1;
                    report.unexpected += u64::from(status != self.expect);
                    report.latencies.add(begin.elapsed());
                }
                Ok(Err(_)) => {
                    report.lost += 1;
                    return report;
                }
                Err(_) => {
                    report.unanswered += 1;
                    return report;
                }
            }
        }
    }

    async fn exchange(&mut self) -> Result<u16, Box<dyn std::error::Error>> {
        let request = Request::get(&*self.request).body(())?;
        let mut stream = self.sender.send_request(request).await?;
        stream.finish().await?;
        let status = stream.recv_response().await?.status();
        while let Some(mut data) = stream.recv_data().await? {
            data.advance(data.remaining());
        }
        Ok(status.as_u16())
    }
}
