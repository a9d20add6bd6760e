//! Takes a request through the stages of a decision, as the layers do, with buckets that are full.
//! What else is explained says why; this says what it comes to.

use weir_config::{Route, Settings};
use weir_limit::time::Nanos;
use weir_middleware::{AccessState, Progress, RouteAction, RouteState, Simulation, Verdict};
use weir_rules::RequestAttributes;
use weir_store::{Memory, MemorySettings};
use weir_telemetry::{Disposition, Metrics};

/// What becomes of a request if nobody has sent any before.
pub(super) struct FirstDecision {
    pub(super) verdict: Verdict,
    /// What limits decided, by their indexes among those of the route, and when the request fits.
    by_limit: Vec<(usize, Disposition, Nanos)>,
}

impl FirstDecision {
    /// Decides about a request that takes this route, one without limits where none matches, and
    /// has a body of so many bytes.
    pub(super) fn new(
        settings: &Settings,
        route: Option<&Route>,
        facts: &RequestAttributes<'_>,
        body_bytes: impl Fn() -> Option<u64>,
    ) -> Self {
        let policy = route.map(|route| route.policy.clone());
        // Nothing here is counted, or known to the gateway that serves by the same settings.
        let metrics = Metrics::new();
        let access = AccessState::new(&metrics).control(settings.access.clone(), &metrics);
        let action = RouteAction::default();
        let state = RouteState::new(policy.unwrap_or_default(), &action, &access, &metrics);
        let simulation = Simulation::new(Memory::new(MemorySettings::default()), access);
        let mut by_limit = Vec::new();
        let progress = simulation.arrive(&state, facts, body_bytes, |decided| {
            let disposition = decided.disposition;
            by_limit.extend(disposition.map(|it| (decided.limit, it, decided.retry_in)));
        });
        let decided = match progress {
            Progress::Decided(decided) => decided,
            Progress::Waits(waiting) => simulation.turn_has_come(*waiting, |_| ()),
        };
        Self {
            verdict: decided.verdict().clone(),
            by_limit,
        }
    }

    /// What the limit with this index decided; none if it was not asked.
    pub(super) fn of_limit(&self, index: usize) -> Option<Disposition> {
        let mut limits = self.by_limit.iter();
        let found = limits.find(|(limit, ..)| *limit == index)?;
        Some(found.1)
    }

    /// How long the client of a request that limits deny is told to wait.
    pub(super) fn told_wait(&self) -> Nanos {
        let denied = |(_, disposition, _): &&(_, _, _)| *disposition == Disposition::Denied;
        let waits = self.by_limit.iter().filter(denied).map(|(.., wait)| *wait);
        waits.max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::any::Any;
    use std::cell::RefCell;
    use std::convert::Infallible;
    use std::net::IpAddr;
    use std::sync::Arc;

    use bytes::Bytes;
    use futures_util::FutureExt;
    use http::request::Parts;
    use http::{HeaderMap, Method, Request, Response, StatusCode};
    use http_body_util::Full;
    use tower::{ServiceExt, service_fn};
    use weir_config::testing::Folder;
    use weir_http::request::BoxedRequest;
    use weir_limit::time::Timestamp;
    use weir_limit::{OverloadControl, Priority, ShedLevel};
    use weir_middleware::{
        Backend, LimitedBody, Metered, Peer, RequestContext, UpstreamRouter, set_shed_level,
    };

    use super::*;
    use crate::app::explain::{explain_in_force, request_head};
    use crate::app::features::Load;
    use crate::app::stack::{Layers, SharedState};
    use crate::app::upstreams::ActiveUpstreams;

    const LIMITS: &str = "
PerAddress: {per: address, burst: 5, count: 5, period: 1h}
PerAccount: {per: account, missing: deny, burst: 5, count: 5, period: 1h}
OfAccounts: {per: account, burst: 5, count: 5, period: 1h}
InWindow: {per: address, algorithm: fixed_window, count: 5, period: 1h}
AtOnce: {per: address, in_flight: 2}
";

    const OVERRIDES: &str = "
- PerAddress: {burst: 2, count: 2, period: 1h, until: 2099-12-31, ids: [192.0.2.77]}
";

    /// A configuration with one route, to be seen through both doors.
    struct Seen {
        settings: Settings,
        upstreams: ActiveUpstreams,
        layers: Layers,
        metrics: Arc<Metrics>,
        backend: Backend,
        in_flight: RefCell<Vec<Box<dyn Any>>>,
    }

    impl Seen {
        fn new(more: &str, route: &str) -> Self {
            let gateway = format!(
                "account: [{{header: x-api-key}}]\n{more}\n\
                 routes: [{{name: app, match: {{path: '/*'}}, upstream: app, {route}}}]\n"
            );
            let app = "upstreams: {app: {servers: ['http://127.0.0.1:1']}}\n";
            let app = if more.contains("upstreams:") { "" } else { app };
            let gateway = format!("{app}{gateway}");
            let files = [
                ("gateway.yaml", &*gateway),
                ("limits/defaults.yaml", LIMITS),
                ("limits/overrides.yaml", OVERRIDES),
            ];
            let settings = Folder::with(&files).settings();
            let metrics = Metrics::new();
            let upstreams = ActiveUpstreams::new(&settings, |_| (), None);
            let shared = SharedState::new(&settings.process, &metrics, None);
            Self {
                layers: Layers::new(&settings, &upstreams, &shared),
                backend: Backend::new(Arc::new(Memory::new(MemorySettings::default()))),
                upstreams,
                settings,
                metrics,
                in_flight: RefCell::default(),
            }
        }

        /// What a request gets from the layers, from an upstream that answers everything or
        /// nothing; none if it has to wait for that, which it does from now on.
        fn real(&self, (request, peer): &(Parts, IpAddr), answers: bool) -> Option<StatusCode> {
            let upstream = service_fn(
                move |_: BoxedRequest<Metered<LimitedBody<Full<Bytes>>>>| async move {
                    if !answers {
                        std::future::pending::<()>().await;
                    }
                    Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
                },
            );
            let services = UpstreamRouter::new([Some(upstream)], []);
            let stack = self.layers.stack(self.backend.clone(), services);
            let (address, secure) = (*peer, false);
            let mut real = Request::from_parts(request.clone(), Full::<Bytes>::default());
            let context = RequestContext::new(Peer { address, secure });
            real.extensions_mut().insert(context);
            let mut response = Box::pin(stack.oneshot(real));
            let status = (&mut response)
                .now_or_never()
                .map(|it| it.unwrap().status());
            if status.is_none() {
                self.in_flight.borrow_mut().push(Box::new(response));
            }
            status
        }

        /// The only decision about a request until now.
        fn decided(&self) -> Disposition {
            let decisions = self.metrics.route("app").sample().decisions;
            let counted = Disposition::ALL.into_iter().zip(decisions);
            let all: Vec<_> = counted.filter(|(_, count)| *count > 0).collect();
            let [(disposition, 1)] = all[..] else {
                panic!("{all:?}");
            };
            disposition
        }

        fn explained(&self, (request, peer): &(Parts, IpAddr), workers: Vec<ShedLevel>) -> String {
            let load = Load::new(&self.upstreams, workers);
            explain_in_force(&self.settings, (request, *peer), &load)
        }
    }

    fn request(peer: &str, lines: &[(&'static str, &str)]) -> (Parts, IpAddr) {
        let host = ("host", "app.example");
        let lines = lines.iter().chain([&host]);
        let headers = lines.map(|(name, value)| {
            let name = http::HeaderName::from_static(name);
            (name, value.parse().unwrap())
        });
        let uri = "/trap".parse().unwrap();
        let head = request_head(Method::GET, uri, HeaderMap::from_iter(headers));
        (head, peer.parse().unwrap())
    }

    /// Further keys, those of the route, the request's headers; what the first such request really
    /// gets, and what explain has to say.
    type Row<'r> = (
        &'r str,
        String,
        &'r [(&'static str, &'r str)],
        Disposition,
        &'r str,
    );

    #[test]
    fn what_is_explained_never_differs_from_what_a_request_gets() {
        use Disposition::{Allowed, Denied, Dropped, Unlimited, WouldDeny};
        const COST: &str = "limits: [{limit: PerAddress, cost: {request_header: x-cost}}]";
        const NEVER: &str = "  denies this request even while its bucket is full, with 403";
        let dear = [("x-cost", "6")];
        let fits = [("x-cost", "5")];
        let named = [("x-api-key", "acme")];
        let nobody: [(&str, &str); 0] = [];
        let listed = "allow: {addresses: [203.0.113.0/28]}\n\
                      block: {addresses: [203.0.113.0/24], on_denied: drop}";
        let bans =
            "bans: {b: {per: address, strikes: {paths: /trap, count: 1, period: 1h}, for: 1h}}";
        let rows: [Row<'_>; 17] = [
            ("", "limits: []".into(), &nobody, Unlimited, "limits: none"),
            (
                "",
                "limits: [PerAddress]".into(),
                &nobody,
                Allowed,
                "limit PerAddress: applies",
            ),
            ("", COST.into(), &fits, Allowed, "cost 5"),
            ("", COST.into(), &dear, Denied, NEVER),
            (
                "",
                COST.replace("PerAddress", "InWindow"),
                &dear,
                Denied,
                NEVER,
            ),
            (
                "",
                format!("{COST}, on_denied: {{delay: {{up_to: 1s}}}}"),
                &dear,
                Denied,
                NEVER,
            ),
            (
                "",
                format!("{COST}, on_denied: {{delay: {{up_to: 1s}}}}"),
                &fits,
                Allowed,
                "waits for its turn",
            ),
            (
                "",
                COST.replace("cost:", "enforce: false, cost:"),
                &dear,
                WouldDeny,
                "  would deny this request even while its bucket is full",
            ),
            (
                "",
                COST.replace("cost:", "kind: spend_only, cost:"),
                &dear,
                Allowed,
                "spend only",
            ),
            (
                "",
                "limits: [PerAccount]".into(),
                &nobody,
                Denied,
                "denies, as the request has no account\n  with 403",
            ),
            (
                "",
                "limits: [{limit: PerAccount, enforce: false}]".into(),
                &nobody,
                WouldDeny,
                "would deny, as the request has no account",
            ),
            (
                "",
                "limits: [PerAccount]".into(),
                &named,
                Allowed,
                "limit PerAccount: applies",
            ),
            (
                "",
                "limits: [OfAccounts]".into(),
                &nobody,
                Unlimited,
                "OfAccounts: skipped",
            ),
            (
                "",
                "limits: [AtOnce]".into(),
                &nobody,
                Allowed,
                "at most 2 at once",
            ),
            (
                bans,
                "limits: []".into(),
                &nobody,
                Unlimited,
                "ban b: watches",
            ),
            (
                listed,
                "limits: [PerAccount]".into(),
                &nobody,
                Unlimited,
                "allow: the client is in",
            ),
            (
                listed,
                "limits: [PerAccount]".into(),
                &named,
                Dropped,
                "block: the client is in",
            ),
        ];
        for (more, route, lines, expected, said) in rows {
            let seen = Seen::new(more, &route);
            let peer = match expected {
                Dropped => "203.0.113.99",
                _ => "203.0.113.9",
            };
            let request = request(peer, lines);
            let explained = seen.explained(&request, Vec::new());
            let status = seen.real(&request, true).unwrap();
            let real = seen.decided();
            assert_eq!(real, expected, "{more} {route} {lines:?}: {explained}");
            assert!(explained.contains(said), "{said:?} in {explained}");
            let denies = explained.contains("denies this") || explained.contains("denies, as");
            assert_eq!(real == Denied, denies, "{explained}");
            assert_eq!(
                real == Denied,
                status == StatusCode::FORBIDDEN,
                "{explained}"
            );
            let would = explained.contains("would deny");
            assert_eq!(real == WouldDeny, would, "{explained}");
        }
    }

    /// The level of a worker that sheds all requests of low priority.
    fn late() -> ShedLevel {
        let at = |millis: u64| Timestamp::from_nanos(millis * 1_000_000);
        let mut control = OverloadControl::new(Nanos::new(20_000_000), at(0));
        let mut now = 0;
        while control.level().percent_of(Priority::Low) < 100 {
            now += 10;
            control.observe(Nanos::new(21_000_000), at(now));
        }
        control.level()
    }

    #[test]
    fn a_late_worker_sheds_whom_explain_says() {
        let overload = "overload: {max_delay: 20ms}\nallow: {addresses: [203.0.113.0/28]}";
        set_shed_level(late());
        for (peer, priority, sheds) in [
            ("198.51.100.9", "low", true),
            ("198.51.100.9", "critical", false),
            ("203.0.113.9", "low", false),
        ] {
            let seen = Seen::new(overload, &format!("limits: [], priority: {priority}"));
            let request = request(peer, &[]);
            let explained = seen.explained(&request, vec![late()]);
            seen.real(&request, true).unwrap();
            assert_eq!(
                seen.decided() == Disposition::Shed,
                sheds,
                "{peer} {priority}"
            );
            let said = explained.contains("now 1 of 1 workers shed that, for up to 100%");
            assert_eq!(said, sheds, "{explained}");
        }
        set_shed_level(ShedLevel::NONE);
    }

    /// The limit's own quota decides once it has ended, so the client may come again.
    #[test]
    fn a_cost_beyond_an_override_that_ends_is_never_said_to_be_refused_for_good() {
        let limits = "limits: [{limit: PerAddress, cost: {request_header: x-cost}}]";
        let seen = Seen::new("", limits);
        let request = request("192.0.2.77", &[("x-cost", "3")]);
        let explained = seen.explained(&request, Vec::new());
        assert!(explained.contains("with 429"), "{explained}");
        let status = seen.real(&request, true);
        assert_eq!(status, Some(StatusCode::TOO_MANY_REQUESTS));
    }

    #[test]
    fn a_full_upstream_sheds_whom_explain_says() {
        for (enforce, sheds, said) in [
            ("true", true, "so it would be shed\n"),
            ("false", false, "so it would be let through all the same\n"),
        ] {
            let concurrency = format!("{{limit: 1, max_wait: 0s, enforce: {enforce}}}");
            let app = "servers: ['http://127.0.0.1:1']";
            let upstreams = format!("upstreams: {{app: {{{app}, concurrency: {concurrency}}}}}");
            let seen = Seen::new(&upstreams, "limits: []");
            let request = request("203.0.113.9", &[]);
            let free = seen.explained(&request, Vec::new());
            assert!(free.contains("so it would not be shed"), "{free}");
            assert_eq!(seen.real(&request, false), None);
            let full = seen.explained(&request, Vec::new());
            assert!(full.contains(said), "{full}");
            let status = seen.real(&request, true).unwrap();
            let is_shed = status == StatusCode::SERVICE_UNAVAILABLE;
            assert_eq!(is_shed, sheds, "{status}");
        }
    }
}
