//! Clients that send one request after the other until they are told to stop.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::{Client, Request, Response, eventually};

/// Some clients, each on a thread and a connection of its own.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicUsize>,
    answers: Arc<Mutex<Vec<Answered>>>,
    clients: Vec<JoinHandle<Report>>,
}

/// What became of the requests.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) statuses: Vec<u16>,
    /// All answers, in the order in which they came.
    pub(crate) answers: Vec<Answered>,
    /// Why requests got no answer.
    pub(crate) failures: Vec<String>,
    /// The longest that one took.
    pub(crate) slowest: Duration,
}

/// An answer, and between which moments it was given.
#[derive(Clone, Debug)]
pub(crate) struct Answered {
    /// The number of the client that got it.
    pub(crate) client: usize,
    pub(crate) sent: Instant,
    pub(crate) received: Instant,
    pub(crate) status: u16,
    /// `RateLimit-Policy`, which tells under which configuration it was given.
    pub(crate) policy: Option<String>,
}

impl Load {
    /// Starts so many clients, each of which makes requests from its own number and how many it
    /// has sent before.
    pub(crate) fn start(
        to: SocketAddr,
        clients: usize,
        make: impl Fn(usize, usize) -> Request + Send + Sync + 'static,
    ) -> Self {
        let make = Arc::new(make);
        let stop = Arc::<AtomicBool>::default();
        let sent = Arc::<AtomicUsize>::default();
        let answers = Arc::<Mutex<Vec<Answered>>>::default();
        let client = |number| {
            let make = Arc::clone(&make);
            let (stop, sent) = (Arc::clone(&stop), Arc::clone(&sent));
            let answers = Arc::clone(&answers);
            thread::spawn(move || {
                let seen = |answer| answers.lock().expect("answers").push(answer);
                run(to, number, &stop, &sent, |count| make(number, count), seen)
            })
        };
        let clients = (0..clients).map(client).collect();
        Self {
            stop,
            sent,
            answers,
            clients,
        }
    }

    /// Waits until so many more requests were answered.
    pub(crate) fn go_on_for(&self, requests: usize) {
        let goal = self.sent.load(Ordering::SeqCst) + requests;
        eventually("answers to the load", || {
            (self.sent.load(Ordering::SeqCst) >= goal).then_some(())
        });
    }

    /// The answers so far, in the order in which they came.
    pub(crate) fn answers(&self) -> Vec<Answered> {
        let mut answers = self.answers.lock().expect("answers").clone();
        answers.sort_by_key(|answer| answer.received);
        answers
    }

    /// Stops, and tells how it went.
    pub(crate) fn stop(self) -> Report {
        self.stop.store(true, Ordering::SeqCst);
        self.finished()
    }

    /// Waits until all clients were told by the gateway to go.
    pub(crate) fn finished(mut self) -> Report {
        let mut all = Report::default();
        eventually("the end of all clients", || {
            let mut clients = self.clients.iter();
            clients.all(JoinHandle::is_finished).then_some(())
        });
        for client in self.clients.drain(..) {
            let report = client.join().expect("a client");
            all.statuses.extend(report.statuses);
            all.failures.extend(report.failures);
            all.slowest = all.slowest.max(report.slowest);
        }
        all.answers = self.answers();
        all
    }
}

fn run(
    to: SocketAddr,
    number: usize,
    stop: &AtomicBool,
    sent: &AtomicUsize,
    make: impl Fn(usize) -> Request,
    seen: impl Fn(Answered),
) -> Report {
    let mut report = Report::default();
    let mut client = match Client::try_connect(to) {
        Ok(client) => client,
        Err(error) => {
            report.failures.push(format!("connecting: {error}"));
            return report;
        }
    };
    while !stop.load(Ordering::SeqCst) {
        let sent_at = Instant::now();
        let answer = client.try_send(&make(report.statuses.len()));
        if let Ok(response) = &answer {
            seen(Answered {
                client: number,
                sent: sent_at,
                received: Instant::now(),
                status: response.status,
                policy: response.field("ratelimit-policy").map(str::to_owned),
            });
        }
        report.slowest = report.slowest.max(sent_at.elapsed());
        sent.fetch_add(1, Ordering::SeqCst);
        if report.add(answer) {
            break;
        }
    }
    report
}

impl Report {
    /// Tells whether the connection is of no use any more.
    fn add(&mut self, answer: io::Result<Response>) -> bool {
        match answer {
            Ok(response) => {
                self.statuses.push(response.status);
                response.closes()
            }
            Err(error) => {
                self.failures.push(format!("{}: {error}", error.kind()));
                true
            }
        }
    }

    /// How many answers had this status.
    pub(crate) fn count(&self, status: u16) -> usize {
        self.statuses.iter().filter(|it| **it == status).count()
    }
}
