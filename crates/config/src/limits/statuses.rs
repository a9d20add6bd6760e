//! Lists of statuses.

use weir_rules::{StatusSet, Statuses};
use weir_yaml::{Lowered, Lowering, OneOrMany, Spanned};

use crate::foreign::Parsed;

/// Statuses, classes of them, or ranges.
pub(crate) type StatusList = Spanned<OneOrMany<Spanned<Parsed<Statuses>>>>;

pub(crate) fn status_set(cx: &mut Lowering<'_>, written: &StatusList) -> Lowered<StatusSet> {
    let statuses = cx.filled(
        written,
        "there are no statuses",
        "name some, such as [401, 403] or 5xx",
    )?;
    Ok(statuses.iter().map(|statuses| statuses.0.clone()).collect())
}
