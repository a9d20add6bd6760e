//! Dry runs.

use super::Lowering;
use crate::config::schema::Enforce;
use crate::config::yaml::Placed;
use crate::rules::Enforcement;

impl Lowering<'_> {
    /// Whether decisions are acted upon; they are unless it is said.
    pub(super) fn enforcement(&mut self, written: Option<&Placed<Enforce>>) -> Option<Enforcement> {
        written.map_or(Some(Enforcement::FULL), |text| {
            self.ok(text.place, text.value.parse())
        })
    }
}
