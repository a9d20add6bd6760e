//! How many entries one request may add to sliding logs: each is sent to Redis, which does nothing
//! else meanwhile.

use weir_limit::{MAX_LOG_ENTRIES, MAX_UNCHECKED_LOG_ENTRIES, Quota};
use weir_rules::LimitUse;

/// What to do about too many entries.
pub(crate) const HELP: &str = "choose `algorithm: sliding_window`, a smaller `count`, or a fixed \
     `cost` in place of one that is measured";

/// Why the limits of a route may add too many entries, if they may: with this override of one of
/// them, if there is one.
pub(crate) fn too_many_log_entries<'u>(
    limits: impl Iterator<Item = &'u LimitUse> + Clone,
    overriding: Option<(&str, &Quota)>,
) -> Option<String> {
    let entries: u64 = limits
        .clone()
        .map(|usage| match overriding {
            Some((limit, quota)) if usage.limit.name() == limit => usage.log_entries(quota),
            _ => usage.max_log_entries(),
        })
        .sum();
    let counts_denied = limits.clone().any(LimitUse::counts_denied);
    let (most, why) = match counts_denied {
        true => (
            MAX_UNCHECKED_LOG_ENTRIES,
            " where denied requests are counted",
        ),
        false => (MAX_LOG_ENTRIES, ""),
    };
    (entries > most).then(|| {
        format!("one request may add {entries} entries to sliding logs, more than {most}{why}")
    })
}
