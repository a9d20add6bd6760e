//! A warning of bans that keep out clients which wait as they are told.

use std::time::Duration;

use weir_limit::{Algorithm, Quota};
use weir_yaml::{HumanDuration, Lowering};

use super::schema::Strikes;
use crate::routes::LoweredRoute;

/// Clients are told whole seconds.
const SHORTEST_WAIT: Duration = Duration::from_secs(1);

/// Where every denial is a strike, one client that waits out each of them may earn enough.
pub(super) fn warn_of_obeying_clients(
    cx: &mut Lowering<'_>,
    strikes: &Strikes,
    routes: &[LoweredRoute],
) {
    let Some(workers) = strikes.workers.filter(|workers| workers.value == 0) else {
        return;
    };
    let (count, period) = (strikes.count.value.0, strikes.period.value.0);
    let (Some(count), Some(HumanDuration(period))) = (count, period) else {
        return;
    };
    let uses = routes
        .iter()
        .flat_map(|route| route.limits.iter().flatten());
    let named = strikes.limits.iter().flat_map(|limits| &limits.0);
    let reached = named.filter_map(|name| {
        let mut uses = uses.clone();
        let usage = uses.find(|usage| usage.limit.name() == name.value)?;
        let denials = period.as_nanos() / longest_wait(&usage.limit.quota()?).as_nanos().max(1);
        (denials >= u128::from(count)).then_some((name, denials))
    });
    let reached: Vec<_> = reached.collect();
    for (name, denials) in reached {
        let message = format!(
            "a client that waits as \"{}\" tells it is denied {denials} times in {}, and banned",
            name.value,
            HumanDuration(period)
        );
        cx.warn(workers.span, message)
            .help("leave `workers` out, so that only denials of those who do not wait are strikes");
    }
}

/// How long a client waits at most between two denials, if it sends whatever passes at once.
fn longest_wait(quota: &Quota) -> Duration {
    let units = match quota.algorithm() {
        Algorithm::Gcra => 1,
        _ => quota.burst().get(),
    };
    let wait = Duration::from_nanos(quota.emission_interval().get().saturating_mul(units));
    wait.max(SHORTEST_WAIT)
}
