//! How a route uses a limit: what is checked and spent when, and on whom it is enforced.

use std::fmt::{self, Write};

use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};

use crate::config::ByteSize;
use crate::limit::{BucketKey, Mode, Transaction};
use crate::rules::{
    Cost, Enforcement, LimitUse, MeasuredCost, Pending, RequestAttributes, SpendWhen,
};

/// The cost of the request, as far as its head says it.
pub(super) fn cost(
    usage: &LimitUse,
    transaction: &Transaction,
    facts: &RequestAttributes<'_>,
) -> String {
    let Cost::Measured(measured) = &usage.cost else {
        return transaction.cost.to_string();
    };
    let estimate = measured.estimate(facts.headers, body_bytes(facts));
    let units = estimate.units;
    match estimate.pending {
        Pending::Nothing => units.to_string(),
        Pending::Response => format!("{units} until the response says it"),
        Pending::Body => format!("{units} until the size of the body is known"),
    }
}

/// The size of the body as the head says it.
fn body_bytes(facts: &RequestAttributes<'_>) -> Option<u64> {
    if facts.headers.contains_key(TRANSFER_ENCODING) {
        return None;
    }
    let length = facts.headers.get(CONTENT_LENGTH);
    length.map_or(Some(0), |length| length.to_str().ok()?.parse().ok())
}

/// Writes what sets the use apart from one that checks and spends at once.
pub(super) fn write_use(out: &mut String, usage: &LimitUse) -> fmt::Result {
    if let Cost::Measured(measured) = &usage.cost {
        writeln!(out, "  the cost is said by {}", said_by(measured))?;
    }
    match usage.kind {
        Mode::CheckOnly => writeln!(out, "  check only: denies without room, and takes nothing")?,
        Mode::SpendOnly => writeln!(out, "  spend only: never denies, and takes what fits")?,
        _ => {}
    }
    match &usage.spend {
        SpendWhen::Always => Ok(()),
        SpendWhen::On(set) => writeln!(out, "  takes its cost when the response is {set}"),
        SpendWhen::ExceptOn(set) => {
            writeln!(out, "  gives its cost back when the response is {set}")
        }
    }
}

fn said_by(measured: &MeasuredCost) -> String {
    let mut ways = Vec::new();
    if let Some(name) = &measured.response_header {
        ways.push(format!("the response's {name}"));
    }
    if let Some(name) = &measured.request_header {
        ways.push(format!("the request's {name}"));
    }
    if let Some(bytes) = measured.request_bytes {
        ways.push(format!("each {} of the body", ByteSize(bytes.get())));
    }
    ways.push(measured.default.to_string());
    ways.join(", or else ")
}

/// Writes on whom a limit is enforced that is not enforced on all.
pub(super) fn write_enforcement(
    out: &mut String,
    enforcement: Enforcement,
    key: &BucketKey,
) -> fmt::Result {
    let reach = reach(enforcement);
    match (enforcement.is_partial(), enforcement.acts_on(key)) {
        (false, _) => Ok(()),
        (true, true) => writeln!(out, "  is enforced on {reach}, this subject included"),
        (true, false) if enforcement == Enforcement::NONE => {
            writeln!(out, "  dry run: is enforced on {reach}")
        }
        (true, false) => {
            writeln!(
                out,
                "  dry run: is enforced on {reach}, this subject not included"
            )
        }
    }
}

/// On how many subjects a limit is enforced.
pub(super) fn reach(enforcement: Enforcement) -> String {
    if enforcement == Enforcement::NONE {
        "nobody".to_owned()
    } else {
        enforcement.to_string()
    }
}
