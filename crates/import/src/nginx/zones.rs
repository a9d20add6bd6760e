//! Zones: what they count by, how much, and whom they leave out.

use serde_json::{Value, json};

use super::maps::{Case, Condition, Counting, Keyed, keyed};
use super::parse::Directive;

/// How much an exempt client may send.
const UNLIMITED: u64 = 1_000_000;

/// A zone of `limit_req_zone` or `limit_conn_zone`.
pub(super) struct Zone {
    keyed: Keyed,
    /// The count, and the seconds of its period; none for a zone of requests in flight.
    pub(super) rate: Option<(u64, u64)>,
}

impl Zone {
    /// Reads the zone that a directive defines.
    ///
    /// # Errors
    /// The error says what Weir has no equal for.
    pub(super) fn new(http: &[Directive], directive: &Directive) -> Result<Self, String> {
        let is_rate = directive.name == "limit_req_zone";
        let rate = is_rate.then(|| rate(directive.parameter("rate").unwrap_or("1r/s")));
        Ok(Self {
            keyed: keyed(http, directive.argument(0))?,
            rate: rate.transpose()?,
        })
    }

    /// What requests of a case are counted by; none if they are not counted.
    pub(super) fn counting(&self, case: &Case<'_>) -> Option<&Counting> {
        match &self.keyed {
            Keyed::Always(counting) => Some(counting),
            Keyed::ByMethod { methods, others } => {
                let mut methods = methods.iter();
                let own = methods.find(|(method, _)| case.method == Some(method));
                own.map_or(others, |(_, counting)| counting).as_ref()
            }
            Keyed::ByValue {
                condition,
                with,
                without,
            } => match case.values.contains(&condition) {
                true => with.as_ref(),
                false => without.as_ref(),
            },
        }
    }

    /// All that it counts by.
    pub(super) fn countings(&self) -> Vec<&Counting> {
        match &self.keyed {
            Keyed::Always(counting) => vec![counting],
            Keyed::ByMethod { methods, others } => {
                let methods = methods.iter().map(|(_, counting)| counting);
                methods.chain([others]).flatten().collect()
            }
            Keyed::ByValue { with, without, .. } => [with, without].into_iter().flatten().collect(),
        }
    }

    /// The methods that it looks at.
    pub(super) fn methods(&self) -> impl Iterator<Item = &str> {
        let methods = match &self.keyed {
            Keyed::ByMethod { methods, .. } => &methods[..],
            _ => &[],
        };
        methods.iter().map(|(method, _)| method.as_str())
    }

    /// The header or parameter that it looks at.
    pub(super) fn condition(&self) -> Option<&Condition> {
        match &self.keyed {
            Keyed::ByValue { condition, .. } => Some(condition),
            _ => None,
        }
    }

    /// The keys of a limit that allows so much at once; none if only some clients are counted.
    pub(super) fn limit(&self, counting: &Counting, at_once: u64) -> Option<Value> {
        let mut limit = serde_json::Map::from_iter([("per".to_owned(), per(counting))]);
        limit.extend(self.quota(at_once));
        (!counting.clients.is_exempt_by_default).then_some(Value::Object(limit))
    }

    /// Overrides for the clients that are exempt, and for those that are counted alone.
    pub(super) fn overrides(&self, counting: &Counting, at_once: u64) -> Vec<Value> {
        let exempt = match self.rate {
            Some(_) => json!({"burst": UNLIMITED, "count": UNLIMITED, "period": "1s"}),
            None => json!({"in_flight": UNLIMITED}),
        };
        let exempt = exempt.as_object().cloned().unwrap_or_default();
        let all = [(false, exempt), (true, self.quota(at_once))];
        let all = all.into_iter().filter_map(|(are_counted, mut keys)| {
            let ids = counting.clients.ids(are_counted);
            keys.insert("ids".to_owned(), json!(ids));
            (!ids.is_empty()).then_some(Value::Object(keys))
        });
        all.collect()
    }

    fn quota(&self, at_once: u64) -> serde_json::Map<String, Value> {
        let keys = match self.rate {
            Some((count, seconds)) => {
                let period = if seconds == 60 { "1m" } else { "1s" };
                json!({"burst": at_once, "count": count, "period": period})
            }
            None => json!({"in_flight": at_once}),
        };
        keys.as_object().cloned().unwrap_or_default()
    }
}

/// What a limit counts per.
pub(super) fn per(counting: &Counting) -> Value {
    match &counting.sources[..] {
        [] => json!("global"),
        [one] => json!(one),
        several => json!(several),
    }
}

/// The count of a rate, and the seconds of its period.
fn rate(text: &str) -> Result<(u64, u64), String> {
    let malformed = || format!("`{text}` is not a rate");
    let (count, unit) = text.split_once("r/").ok_or_else(malformed)?;
    let count = count.parse().ok().filter(|count| *count > 0);
    let seconds = if unit == "m" { 60 } else { 1 };
    Ok((count.ok_or_else(malformed)?, seconds))
}
