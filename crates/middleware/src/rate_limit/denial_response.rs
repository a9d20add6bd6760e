//! The honest response to a request that limits deny.

use std::sync::Arc;

use http::Response;
use weir_http::problem::ProblemResponse;
use weir_limit::time::Nanos;

use super::decisions::{Denial, QueriedLimits};
use super::layer::{Denied, Settings};
use super::response_context::{Shown, show_limits};
use crate::rejection::{self, EmptyResponse, Rejection, retry_after};
use crate::response_body::ResponseBody;
use crate::route::RouteState;

/// The response to a denied request on a route that rejects such requests, with the headers that show
/// where its client stands. It begins as an `empty` one.
#[inline]
pub(super) fn denial_response<R>(
    empty: EmptyResponse,
    settings: &Settings,
    (route, rejection): (&Arc<RouteState>, &Rejection),
    queried: &QueriedLimits,
    denial: &Denial<'_>,
) -> Response<ResponseBody<R>> {
    let wait = denial.told_wait();
    let mut response = match &settings.respond {
        Some(respond) => {
            let retry_after = (wait != Nanos::NEVER).then(|| wait.into());
            let limit = &*denial.limit();
            respond(&Denied { limit, retry_after }).map(ResponseBody::full)
        }
        None => {
            let status = rejection.status_after(wait);
            let document = denial.document(status);
            let lines = empty.takes_lines().then(|| lines(route, queried, denial));
            if let Some(lines) = lines.flatten() {
                return empty.into_problem(status, document, lines);
            }
            rejection::reject(empty, rejection, status, document, wait)
        }
    };
    show_limits(route, queried, Shown::Denial, &mut response);
    response
}

/// The header lines of a denial of which most is rendered already: by the only limit of the request,
/// where no edit of the app's fields comes before those of limits.
#[inline]
fn lines(
    route: &RouteState,
    queried: &QueriedLimits,
    denial: &Denial<'_>,
) -> Option<ProblemResponse> {
    let [limit] = queried.limits.as_slice() else {
        return None;
    };
    let prepared = route.policy.limit(limit.limit.into())?.lines.as_deref()?;
    let retry_after = retry_after(denial.told_wait()).filter(|_| !route.edits_app_fields)?;
    prepared.showing(&route.policy.status(queried, limit)?, retry_after)
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::Duration;

    use bytes::Bytes;
    use http::{Request, StatusCode};
    use http_body_util::{BodyExt, Empty};
    use proptest::prelude::*;
    use smallvec::smallvec;
    use weir_limit::{Decision, Quota};
    use weir_rules::{HashKey, KeySource, Limit, LimitUse, Missing};
    use weir_store::DecisionSource;
    use weir_telemetry::Metrics;

    use super::super::decisions::{LimitRole, QueriedLimit};
    use super::super::{HeaderForm, HeaderForms, OnDenied, RateLimitLayer, RoutePolicy};
    use super::*;
    use crate::{ClientConnection, Peer, RequestContext};

    fn quota(burst: u64) -> Quota {
        Quota::new(burst, 1, Duration::from_secs(7)).unwrap()
    }

    fn policy(status: StatusCode) -> RoutePolicy {
        let per = vec![KeySource::Global];
        let limit = Limit::new("A b", per, quota(5), Missing::Deny, HashKey::random()).unwrap();
        let status = Rejection {
            status,
            ..Rejection::default()
        };
        RoutePolicy {
            limits: vec![LimitUse::new(Arc::new(limit))],
            on_denied: OnDenied::Reject(status),
            ..RoutePolicy::default()
        }
    }

    fn route(policy: RoutePolicy) -> RouteState {
        RouteState::without_access_control(policy, &Metrics::new())
    }

    /// The same route, which has nothing rendered beforehand.
    fn without_lines(route: &RouteState) -> RouteState {
        let mut route = route.clone();
        let limits = route.policy.limits.iter_mut();
        limits.for_each(|limit| limit.lines = None);
        route
    }

    fn denied(quota: Quota, decision: Decision, ends_in: Nanos) -> QueriedLimits {
        QueriedLimits {
            limits: smallvec![QueriedLimit {
                limit: 0,
                subject: None,
                quota,
                role: LimitRole::Denies,
                cost: 1,
                quota_ends_in: ends_in,
                decision: Some(decision),
            }],
            ..QueriedLimits::default()
        }
    }

    fn decision(remaining: u64, retry_in: Nanos) -> Decision {
        Decision {
            allowed: false,
            remaining,
            retry_in,
            reset_in: retry_in,
            reset_before_secs: 0,
        }
    }

    /// The status, the header lines and the body.
    fn written(route: &RouteState, queried: &QueriedLimits) -> (StatusCode, String, Bytes) {
        let peer = Peer {
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            secure: false,
        };
        let mut request = Request::new(Empty::<Bytes>::new());
        let context = RequestContext::of_connection(ClientConnection::of(peer), true);
        request.extensions_mut().insert(context);
        let rejection = route.policy.on_denied.rejection().unwrap();
        let settings = RateLimitLayer::per_address(quota(5)).unwrap().0;
        let denial = route.policy.denial(queried).unwrap();
        let route = Arc::new(route.clone());
        let empty = rejection::in_memory_of(request);
        let response: Response<ResponseBody<Empty<Bytes>>> =
            denial_response(empty, &settings, (&route, rejection), queried, &denial);
        assert!(response.headers().is_empty(), "lines hold all fields");
        let problem = response.extensions().get::<ProblemResponse>().unwrap();
        let lines = String::from_utf8(problem.lines.clone()).unwrap();
        let status = response.status();
        let body = futures_util::FutureExt::now_or_never(response.into_body().collect());
        (status, lines, body.unwrap().unwrap().to_bytes())
    }

    #[test]
    fn the_only_limit_of_a_request_has_its_denial_rendered_beforehand() {
        let route = route(policy(StatusCode::TOO_MANY_REQUESTS));
        let queried = denied(
            quota(5),
            decision(0, Nanos::new(1_500_000_000)),
            Nanos::NEVER,
        );
        let denial = route.policy.denial(&queried).unwrap();
        let rendered = lines(&route, &queried, &denial).unwrap();
        let shown = "content-type: application/problem+json\r\nretry-after: 2\r\n\
            ratelimit-policy: \"A b\";q=5;w=35\r\nratelimit: \"A b\";r=0;t=2\r\n";
        assert_eq!(String::from_utf8_lossy(&rendered.lines), shown);
    }

    #[test]
    fn no_denial_with_other_headers_than_the_default_ones_is_rendered_beforehand() {
        let forms = HeaderForms::default().with(HeaderForm::RetryAfterMs);
        let ordinary = || policy(StatusCode::TOO_MANY_REQUESTS);
        let rejects = |change: fn(&mut Rejection)| {
            let mut rejection = Rejection::default();
            change(&mut rejection);
            RoutePolicy {
                on_denied: OnDenied::Reject(rejection),
                ..ordinary()
            }
        };
        let others = [
            RoutePolicy {
                header_forms: forms,
                ..ordinary()
            },
            rejects(|it| it.body = Some(Bytes::from_static(b"no"))),
            rejects(|it| _ = it.headers.insert("x-a", "b".parse().unwrap())),
        ];
        for other in others {
            let route = route(other);
            assert!(
                route
                    .policy
                    .limits
                    .iter()
                    .all(|limit| limit.lines.is_none())
            );
        }
    }

    proptest! {
        /// Both ways write the same bytes.
        #[test]
        fn what_is_rendered_beforehand_is_no_other_than_what_would_be_written(
            is_usual: bool,
            is_remembered: bool,
            is_unavailable: bool,
            remaining in 0..3_u64,
            wait in prop_oneof![0..4_000_000_000_u64, Just(u64::MAX), any::<u64>()],
            ends_in in prop_oneof![Just(u64::MAX), 0..4_000_000_000_u64],
        ) {
            let status = match is_unavailable {
                true => StatusCode::SERVICE_UNAVAILABLE,
                false => StatusCode::TOO_MANY_REQUESTS,
            };
            let rendered = route(policy(status));
            let wait = match wait {
                u64::MAX => Nanos::NEVER,
                wait => Nanos::new(wait),
            };
            let quota = quota(if is_usual { 5 } else { 6 });
            let mut queried = denied(quota, decision(remaining, wait), Nanos::new(ends_in));
            if is_remembered {
                queried.source = DecisionSource::Remembered;
            }
            let written_at_once = written(&without_lines(&rendered), &queried);
            prop_assert_eq!(written(&rendered, &queried), written_at_once);
        }
    }
}
