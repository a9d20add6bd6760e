//! What operators and deployments do: requests to the admin API, and reloads.

use std::fmt::Write as _;
use std::io;

use bytes::Bytes;
use http::{Method, Request};

use super::World;
use super::host::Call;
use crate::scenario::{Act, Algorithm, duration};
use crate::trace::What;

impl World<'_> {
    pub(super) fn operate(&mut self, number: usize) -> io::Result<()> {
        let Some(operation) = self.scenario.operations.get(number) else {
            return Ok(());
        };
        self.note(What::Operated { operation: number });
        let gateway = operation.gateway;
        let request = self.request(&operation.act);
        let is_serving = self.host(gateway).is_some_and(|host| host.is_serving);
        if let Act::Reload { configuration } = operation.act {
            if let Some(own) = self.gateways.get_mut(gateway) {
                own.configuration = configuration;
            }
            self.write(gateway, configuration)?;
            if is_serving {
                self.call(gateway, Call::Reload);
            }
        } else if is_serving {
            self.operations.insert(number, gateway);
            self.call(gateway, Call::Operation(number, Box::new(request)));
        } else {
            self.unanswered(number);
        }
        Ok(())
    }

    /// An operator gets no response.
    pub(super) fn unanswered(&mut self, operation: usize) {
        self.note(What::OperationAnswered {
            operation,
            status: 0,
            body: String::new(),
        });
    }

    fn request(&self, act: &Act) -> Request<Bytes> {
        let (method, path, body) = match act {
            Act::Reload { .. } => (Method::GET, String::new(), String::new()),
            Act::Ban {
                ban,
                subject,
                length,
            } => {
                let length = length.map_or_else(|| "forever".to_owned(), duration);
                let body = format!(r#"{{"for": "{length}"}}"#);
                (Method::PUT, path(&["bans", ban, subject]), body)
            }
            Act::Lift { ban, subject } => {
                (Method::DELETE, path(&["bans", ban, subject]), String::new())
            }
            Act::ShowBan { ban, subject } => {
                (Method::GET, path(&["bans", ban, subject]), String::new())
            }
            Act::SetOverride {
                limit,
                subject,
                parameters,
                length,
            } => {
                let mut body = parameters.json(self.algorithm(limit));
                if let Some(length) = length {
                    body = format!(r#"{body}, "for": "{}""#, duration(*length));
                }
                let path = path(&["overrides", limit, subject]);
                (Method::PUT, path, format!("{{{body}}}"))
            }
            Act::DeleteOverride { limit, subject } => {
                let path = path(&["overrides", limit, subject]);
                (Method::DELETE, path, String::new())
            }
            Act::Refund {
                limit,
                subject,
                cost,
            } => {
                let path = path(&["buckets", limit, subject, "refund"]);
                (Method::POST, path, format!(r#"{{"cost": {cost}}}"#))
            }
            Act::Reset { limit, subject } => {
                let path = path(&["buckets", limit, subject]);
                (Method::DELETE, path, String::new())
            }
            Act::Show { limit, subject } => {
                let path = path(&["buckets", limit, subject]);
                (Method::GET, path, String::new())
            }
        };
        let request = Request::builder().method(method).uri(path);
        let request = request.header("host", "localhost").body(body.into());
        request.unwrap_or_default()
    }

    fn algorithm(&self, limit: &str) -> Algorithm {
        let configurations = self.scenario.configurations.iter();
        let mut found = configurations.filter_map(|configuration| configuration.limit(limit));
        found
            .next()
            .map_or(Algorithm::Gcra, |limit| limit.algorithm)
    }
}

/// A path of the admin API.
fn path(segments: &[&str]) -> String {
    let mut path = "/v1".to_owned();
    for segment in segments {
        path.push('/');
        for byte in segment.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                path.push(byte.into());
            } else {
                // A string takes everything.
                write!(path, "%{byte:02X}").unwrap_or_default();
            }
        }
    }
    path
}
