//! The header lines of the response to a request that one limit denies, for a server that writes
//! lines: rendered when the configuration is loaded, but for three numbers. A flood of denials then
//! writes little more than those.

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use weir_http::line;
use weir_http::problem::{PROBLEM_JSON, ProblemResponse};
use weir_limit::Quota;

use super::header_fields::{Label, LimitStatus, POLICY, RATE_LIMIT};
use crate::header_text::push_integer;

/// The lines of a problem document that has the default headers, by the usual quota of a limit.
#[derive(Debug)]
pub(super) struct DenialLines {
    quota: Quota,
    /// Up to the seconds of `Retry-After`.
    before_wait: Vec<u8>,
    /// From there up to the units that are left.
    before_remaining: Vec<u8>,
}

impl DenialLines {
    /// None for a limit without a quota of its own, and for one on requests in flight.
    pub(super) fn new(label: &Label) -> Option<Self> {
        let (quota, policy) = label.usual().filter(|(quota, _)| !quota.is_in_flight())?;
        let mut before_wait = Vec::new();
        let name = CONTENT_TYPE;
        line::push(&mut before_wait, name.as_ref(), PROBLEM_JSON.as_bytes());
        before_wait.extend_from_slice(format!("{RETRY_AFTER}: ").as_bytes());
        let mut before_remaining = b"\r\n".to_vec();
        let name = POLICY;
        line::push(&mut before_remaining, name.as_ref(), policy.as_bytes());
        let state = format!("{RATE_LIMIT}: {};r=", label.quoted_name());
        before_remaining.extend_from_slice(state.as_bytes());
        Some(Self {
            quota,
            before_wait,
            before_remaining,
        })
    }

    /// Those that show a denied client this status, and these seconds to wait. None where there are
    /// others to show: by another quota, or without a state.
    #[inline]
    pub(super) fn showing(
        &self,
        status: &LimitStatus<'_>,
        retry_after: u64,
    ) -> Option<ProblemResponse> {
        let decision = status.state().filter(|_| status.quota == self.quota)?;
        let mut problem = ProblemResponse::with_lines();
        let lines = &mut problem.lines;
        lines.extend_from_slice(&self.before_wait);
        push_integer(lines, retry_after);
        lines.extend_from_slice(&self.before_remaining);
        push_integer(lines, decision.remaining);
        lines.extend_from_slice(b";t=");
        push_integer(lines, status.more_in_secs(decision));
        lines.extend_from_slice(b"\r\n");
        Some(problem)
    }
}
