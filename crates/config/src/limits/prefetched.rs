//! Which limits of a configuration gateways take units of ahead of their requests.

use weir_limit::Prefetch;
use weir_rules::Limit;

use crate::settings::Settings;

impl Settings {
    /// Whether gateways may take units of some limit ahead of their requests.
    pub fn prefetches(&self) -> bool {
        self.prefetched().next().is_some()
    }

    /// The limits of which units are taken ahead, with how many units of one bucket a gateway holds
    /// at most.
    pub fn prefetched(&self) -> impl Iterator<Item = (&str, u64)> {
        let limits = self.limits().into_iter();
        limits.filter_map(|limit| Some((limit.name(), most_units(limit)?)))
    }
}

fn most_units(limit: &Limit) -> Option<u64> {
    let of_overrides = limit.overrides().map(|overridden| overridden.quota);
    let quotas = limit.quota().into_iter().chain(of_overrides);
    let units = quotas.filter_map(|quota| quota.prefetch());
    units.map(Prefetch::units).max()
}
