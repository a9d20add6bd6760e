//! The state machine of a client: what it sends, and when, given the responses that it gets. The
//! world calls it; its randomness is the client's own.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Behaviour, Client};
use crate::random::Random;

/// A request, and what becomes of it behind the gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Number of the client (`Client::id`), and of the request among its own.
    pub id: (u64, u32),
    /// Index of the gateway that it goes to.
    pub gateway: usize,
    /// Index of the route.
    pub route: usize,
    /// Further header fields.
    pub headers: Vec<(String, String)>,
    /// How long the app takes for it, until the head of its response.
    pub app_takes: Duration,
    /// How long the body of the response lasts.
    pub body_lasts: Duration,
    /// The status of the app's response.
    pub status: u16,
    /// What the app says in `x-cost` of its response.
    pub response_cost: Option<u64>,
    /// When the client leaves, after it was sent.
    pub leaves_after: Option<Duration>,
    /// Whether it is sent because a Retry-After is over.
    pub obeys: bool,
}

impl Request {
    /// As it is called in stories.
    #[must_use]
    pub fn name(&self) -> String {
        format!("request {}/{}", self.id.0, self.id.1)
    }
}

/// A client that is running.
#[derive(Debug)]
pub struct Runner {
    client: Client,
    random: Random,
    sent: u32,
    /// Requests of the present round that are not over.
    open: u32,
    /// When the next round begins.
    next: Option<Duration>,
    /// When the next round of a client that waits for its responses may begin, as far as they say.
    resumes: Duration,
    obeys: bool,
}

impl Runner {
    /// A client that has not sent anything.
    #[must_use]
    pub fn new(seed: u64, client: Client) -> Self {
        let random = Random::new(seed, 1000 + client.id);
        let next = Some(client.from);
        Self {
            client,
            random,
            sent: 0,
            open: 0,
            next,
            resumes: Duration::ZERO,
            obeys: false,
        }
    }

    /// When it sends next, if it does not wait for a response.
    #[must_use]
    pub fn next(&self) -> Option<Duration> {
        self.next.filter(|at| *at < self.client.until)
    }

    /// What it sends at `now`, which is the time of `next`.
    pub fn send(&mut self, now: Duration, gateways: usize) -> Vec<Request> {
        self.next = match self.client.behaviour {
            // Whatever the response is.
            Behaviour::Steady | Behaviour::Leaves(_) | Behaviour::Lies => Some(now + self.pause()),
            Behaviour::Obeys | Behaviour::Hammers => None,
        };
        let count = self.client.at_once.max(1);
        self.open += count;
        let obeys = std::mem::take(&mut self.obeys);
        (0..count).map(|_| self.request(gateways, obeys)).collect()
    }

    /// A response came, or the connection broke (`None`), or the client left.
    pub fn over(&mut self, now: Duration, response: Option<(u16, Option<u64>)>) {
        self.open = self.open.saturating_sub(1);
        let waits = match (self.client.behaviour, response) {
            (Behaviour::Obeys, Some((429 | 410 | 503, Some(seconds)))) => {
                self.obeys = true;
                // Its clock may be faster than the store's.
                let wait = Duration::from_secs(seconds);
                Some(wait + wait / 1000 + Duration::from_millis(2))
            }
            (Behaviour::Obeys, _) => Some(self.pause()),
            (Behaviour::Hammers, Some((200..=399, _))) => Some(self.pause()),
            (Behaviour::Hammers, _) => Some(Duration::from_millis(5)),
            _ => None,
        };
        if let Some(wait) = waits {
            self.resumes = self.resumes.max(now + wait);
            if self.open == 0 {
                self.next = Some(std::mem::take(&mut self.resumes));
            }
        }
    }

    fn pause(&mut self) -> Duration {
        let mean = self.client.interval;
        self.random
            .duration(mean / 4, mean * 7 / 4)
            .max(Duration::from_millis(1))
    }

    fn request(&mut self, gateways: usize, obeys: bool) -> Request {
        let client = &self.client;
        let random = &mut self.random;
        let id = (client.id, self.sent);
        let turn = usize::try_from(client.id + u64::from(self.sent)).unwrap_or(0);
        let gateway = client.gateway.unwrap_or(turn % gateways.max(1));
        self.sent += 1;
        let mut headers = Vec::new();
        if let Some(account) = &client.account {
            headers.push(("x-api-key".into(), account.clone()));
        }
        let mut cost = random.between(0, client.cost);
        if client.behaviour == Behaviour::Obeys {
            cost = client.cost;
        }
        if client.behaviour == Behaviour::Lies {
            let claimed = format!("198.51.100.{}", random.between(0, 255));
            headers.push(("x-forwarded-for".into(), claimed.clone()));
            headers.push(("forwarded".into(), format!("for={claimed}")));
            if random.chance(20) {
                cost = random.next();
            }
        }
        headers.push(("x-cost".into(), cost.to_string()));
        let (least, most) = client.app_takes;
        Request {
            id,
            gateway,
            route: client.route,
            headers,
            app_takes: random.duration(least, most),
            body_lasts: if random.chance(20) {
                random.millis(0, 50)
            } else {
                Duration::ZERO
            },
            status: if random.chance(client.app_fails) {
                500
            } else {
                200
            },
            response_cost: random.chance(80).then(|| random.between(0, client.cost)),
            leaves_after: match client.behaviour {
                Behaviour::Leaves(after) => Some(random.duration(Duration::ZERO, after)),
                _ => None,
            },
            obeys,
        }
    }
}
