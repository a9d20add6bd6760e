//! Dry runs.

use super::{Lowered, Lowering};
use crate::config::schema::Enforce;
use crate::config::yaml::Spanned;
use crate::rules::Enforcement;

impl Lowering<'_> {
    /// Whether decisions are acted upon; they are unless it is said.
    pub(super) fn enforcement(
        &mut self,
        written: Option<&Spanned<Enforce>>,
    ) -> Lowered<Enforcement> {
        written.map_or(Ok(Enforcement::FULL), |text| {
            self.ok(text.span, text.value.parse())
        })
    }
}
