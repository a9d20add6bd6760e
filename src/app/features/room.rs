//! What a feature shows of itself wherever the gateway speaks of all of them: when it starts, in the
//! admin API, to the dashboard, and in `weir explain`.

use std::fmt;
use std::sync::Arc;

use futures_util::future::{BoxFuture, ready};
use serde_json::{Map, Value};
use weir_config::{Route, Settings};
use weir_console::findings::{GatewayFinding, Remedy};
use weir_middleware::ClientIdentity;
use weir_rules::RequestAttributes;
use weir_telemetry::{DecisionSample, Failures, Metrics};

use super::Load;
use crate::app::admin_api::endpoint::Endpoint;
use crate::app::admin_api::findings::{Finding, LookUp};

/// A feature, as far as a configuration tells of it. All of them are in [`ROOMS`](super::ROOMS). Some
/// hooks have one room that uses them: they keep its feature out of the files that call them.
pub(in crate::app) trait Room: Sync {
    /// Writes the lines about it that the gateway prints when it starts.
    fn summarize(&self, _out: &mut String, _: &Settings) -> fmt::Result {
        Ok(())
    }

    /// Adds its members to the configuration that the dashboard shows.
    fn describe(&self, _members: &mut Map<String, Value>, _: &Settings) {}

    /// Whether it does something about requests that no route matches.
    fn acts_without_route(&self, _: &Settings) -> bool {
        false
    }

    /// Writes what it may do about a request before limits are asked.
    fn explain_arrival(
        &self,
        _out: &mut String,
        _: &Settings,
        _: &ArrivedRequest<'_>,
    ) -> fmt::Result {
        Ok(())
    }

    /// Writes what becomes of a request whose client is on a list, by which nothing else matters.
    fn explain_listed(
        &self,
        _out: &mut String,
        _: &Settings,
        _: &RequestAttributes<'_>,
    ) -> fmt::Result {
        Ok(())
    }

    /// Writes what it does about a request, beside what limits do.
    fn explain(&self, _out: &mut String, _: &Settings, _: &RequestAttributes<'_>) -> fmt::Result {
        Ok(())
    }

    /// Its paths of the admin API.
    fn endpoints(&self) -> &'static [Endpoint] {
        &[]
    }

    /// Finds out which of these subjects it has dealt with already, and notes it by
    /// [`Finding::found`].
    fn look_up<'f>(&'f self, _: LookUp<'f>, _found: &'f mut [Finding<'_>]) -> BoxFuture<'f, ()> {
        Box::pin(ready(()))
    }

    /// What an operator can do by it about a subject that does not wait. The remedy of the first
    /// room that has one is shown.
    fn remedy(&self, _: &Settings, _: &Finding<'_>) -> Option<Remedy> {
        None
    }

    /// What needs attention of it, by the failures of the last minute.
    fn gateway_findings(&self, _: &Failures) -> Vec<GatewayFinding> {
        Vec::new()
    }

    /// What it decides, for the events of the dashboard.
    fn decisions(&self, _: &Settings, _: &Metrics) -> Option<DecisionCounters> {
        None
    }
}

/// A request that a route matches.
pub(in crate::app) struct ArrivedRequest<'a> {
    pub(in crate::app) route: &'a Route,
    pub(in crate::app) identity: &'a ClientIdentity,
    /// It is a preflight that limits leave alone.
    pub(in crate::app) is_exempt: bool,
    /// Of the gateway that it would come to; none where none runs.
    pub(in crate::app) load: Option<&'a Load>,
}

/// Counters of decisions. The members of an event that rooms name must differ: of two that are the
/// same, the last one is shown alone.
pub(in crate::app) struct DecisionCounters {
    /// The member of an event that has them.
    pub(in crate::app) member: &'static str,
    /// The member that has the number of requests that were denied.
    pub(in crate::app) denied_member: &'static str,
    /// By the names of what decides.
    pub(in crate::app) by_name: Vec<(Arc<str>, Sample)>,
}

/// Reads counters.
type Sample = Box<dyn Fn() -> DecisionSample + Send + Sync>;
