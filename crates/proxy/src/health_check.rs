//! Active health checks: the process asks each server of an upstream at intervals how it is.
//!
//! A check is a request on a connection of its own, so that it finds out whether the server accepts
//! connections. The first one decides at once; until then, a server counts as healthy.

use std::error::Error as _;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONNECTION, HOST, USER_AGENT};
use http::{HeaderValue, Request, request};
use http_body_util::Full;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::balance::{HealthCheck, ServerState, UpstreamState};
use super::channel::Channel;
use super::error::ProxyError;
use super::request::Outbound;
use super::settings::{HostHeader, Server, UpstreamSettings};

const AGENT: HeaderValue = HeaderValue::from_static("weir-health-check");

/// Checks the servers of an upstream, on the runtime that calls it, for as long as `state` or one
/// that replaces it has them.
pub fn start_health_checks(settings: &UpstreamSettings, state: &UpstreamState) {
    let Some(check) = &settings.health_check else {
        return;
    };
    state.start_checks(&settings.servers, |server, state| {
        let host = match &settings.host {
            HostHeader::Fixed(host) => host.clone(),
            HostHeader::Preserve | HostHeader::Upstream => server.host_header().clone(),
        };
        let check = follow(server.clone(), Arc::clone(state), host, check.clone());
        Arc::new(AbortOnDropHandle::new(tokio::spawn(check)))
    });
}

async fn follow(server: Server, state: Arc<ServerState>, host: HeaderValue, check: HealthCheck) {
    let mut results = Results::default();
    loop {
        let deadline = Instant::now() + check.timeout;
        let checked = timeout_at(deadline, ask(&server, &state, &host, &check, deadline)).await;
        let checked = checked.unwrap_or_else(|_| Err("it did not respond in time".to_owned()));
        if let Some(healthy) = results.add(checked.is_ok(), &check) {
            state.set_healthy(healthy, checked.err().as_deref().unwrap_or_default());
        }
        // Several gateways that start together should not ask together for ever.
        sleep(check.interval.mul_f64(rand::random_range(0.9..1.1))).await;
    }
}

/// Asks once; why the server is not healthy is an error.
async fn ask(
    server: &Server,
    state: &ServerState,
    host: &HeaderValue,
    check: &HealthCheck,
    deadline: Instant,
) -> Result<(), String> {
    let head = head(host, check).map_err(|error| error.to_string())?;
    let channel = Channel::open_alone(server, state.addresses(), deadline).await;
    let channel = channel.map_err(|error| error.to_string())?;
    let mut outbound = Outbound::<Full<Bytes>>::without_body(Box::new(head));
    let (is_secure, now) = (server.is_secure(), Instant::now());
    let exchange = channel.exchange(&mut outbound, is_secure, check.timeout, now);
    let exchanged = exchange.await.map(|exchanged| exchanged.status());
    let status = exchanged.or_else(|error| {
        let error = ProxyError::from_exchange(error, Arc::clone(server.name()));
        // A response that is too large for clients says how the server is all the same.
        error.status().ok_or_else(|| match error.source() {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        })
    })?;
    match check.expect.contains(status) {
        true => Ok(()),
        false => Err(format!("it responded with {status}")),
    }
}

fn head(host: &HeaderValue, check: &HealthCheck) -> http::Result<request::Parts> {
    let request = Request::get(&*check.path)
        .header(HOST, host)
        .header(USER_AGENT, AGENT)
        .header(CONNECTION, HeaderValue::from_static("close"));
    Ok(request.body(())?.into_parts().0)
}

/// The last results of one server's checks.
#[derive(Default)]
struct Results {
    /// None before the first one.
    healthy: Option<bool>,
    /// How many in a row have said the opposite.
    opposite: u32,
}

impl Results {
    /// Adds a result, and returns what it changes.
    fn add(&mut self, passed: bool, check: &HealthCheck) -> Option<bool> {
        if self.healthy == Some(passed) {
            self.opposite = 0;
            return None;
        }
        self.opposite += 1;
        let enough = match (self.healthy, passed) {
            (None, _) => 1,
            (Some(_), true) => check.healthy_after,
            (Some(_), false) => check.unhealthy_after,
        };
        if self.opposite < enough {
            return None;
        }
        (self.healthy, self.opposite) = (Some(passed), 0);
        Some(passed)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    fn changes(results: &str) -> String {
        let check = HealthCheck::new("/health".into());
        let mut counted = Results::default();
        let change = |passed: char| match counted.add(passed == '+', &check) {
            Some(true) => '+',
            Some(false) => '-',
            None => '.',
        };
        results.chars().map(change).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_service_that_keeps_silent_does_not_use_up_the_time_of_a_check() {
        let server: Server = "http://localhost:9".parse().unwrap();
        let mut check = HealthCheck::new("/health".into());
        check.timeout = Duration::from_millis(500);
        let settings = UpstreamSettings::new("app", vec![server.clone()]);
        let state = Arc::clone(&UpstreamState::new(&settings).servers()[0]);
        let last = "127.0.0.1:9".parse().unwrap();
        state.addresses().fall_silent(last).await;
        let host = server.host_header().clone();
        let checks = follow(server, Arc::clone(&state), host, check.clone());
        assert!(timeout(check.timeout, checks).await.is_err());
        assert!(state.addresses().are_trusted());
    }

    #[test]
    fn the_first_result_decides_at_once_and_later_ones_when_enough_in_a_row_differ() {
        assert_eq!(changes("+--+---+-++"), "+.....-...+");
        assert_eq!(changes("-+-++"), "-...+");
    }
}
