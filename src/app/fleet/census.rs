//! What the metrics of this gateway say of the fleet: by the list of gateways alone, as the figures of
//! all would cost Redis the square of their number.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use tokio::time::sleep;
use weir_console::fleet::{
    FiguresState, GatewayEntry, GatewayState, KnownGateway, SILENT_AFTER, figures_name,
};
use weir_store::StoreError;

use super::{FORBIDDEN_INTERVAL, Inner, leave_out_restarted, listed, seen};
use crate::app::stores::SharedStores;

const INTERVAL: Duration = Duration::from_secs(5);

impl Inner {
    /// Shows the digest of the configuration in force.
    pub(super) async fn follow_configuration(&self) -> Infallible {
        let mut snapshots = self.around.snapshots.clone();
        loop {
            snapshots.mark_unchanged();
            let digest = self.configuration().digest;
            self.around.metrics.config_digest(&digest);
            if snapshots.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Counts the gateways again and again. While the list cannot be read, the last counts stand.
    pub(super) async fn follow_census(&self, shared: &SharedStores) -> Infallible {
        loop {
            let pause = match self.gateways(shared).await {
                Ok(gateways) => {
                    self.show(&gateways);
                    INTERVAL
                }
                Err(error) if error.is_forbidden() => FORBIDDEN_INTERVAL,
                Err(_) => INTERVAL,
            };
            sleep(pause.mul_f64(rand::random_range(0.9..1.1))).await;
        }
    }

    /// Shows these gateways.
    pub(super) fn show(&self, gateways: &[KnownGateway]) {
        let own = self.configuration();
        let mut entry = self.entry.lock().clone();
        entry.hash_key.clone_from(&own.hash_key);
        let count = |state| gateways.iter().filter(|it| it.state() == state).count();
        let states = [
            // This one.
            ("up", 1 + count(GatewayState::Up)),
            ("behind", count(GatewayState::Behind)),
            ("silent", count(GatewayState::Silent)),
        ];
        let differs = |other: &&KnownGateway| {
            let digest = &other.entry.configuration;
            let is_other = !digest.is_empty() && *digest != own.digest;
            other.has_other_key(&entry) || is_other && other.state() != GatewayState::Silent
        };
        let others = gateways.iter().filter(differs).count();
        self.around.metrics.gateways(states, others);
    }

    /// The other gateways, without their figures.
    async fn gateways(&self, shared: &SharedStores) -> Result<Vec<KnownGateway>, StoreError> {
        let now = self.clock.now();
        let own = self.entry.lock().clone();
        let (listed, _) = listed(shared, now).await?;
        let entries = listed.into_iter().filter_map(|listed| {
            let entry = GatewayEntry::parse(&listed.text)?;
            Some((entry.id.clone(), (entry, listed.until)))
        });
        // The latest entry of a gateway comes last.
        let mut entries: BTreeMap<String, (GatewayEntry, u64)> = entries.collect();
        entries.remove(&own.id);
        let known = |entry, seen, is_self| KnownGateway {
            entry,
            is_self,
            seen,
            is_replaced: false,
            figures: Err(FiguresState::Missing),
        };
        let mut gateways = vec![known(own, Duration::ZERO, true)];
        for (entry, until) in entries.into_values() {
            let mut seen = seen(until, now);
            // Its clock may be behind. Figures end by that of the store.
            if seen > SILENT_AFTER && shared.texts.text(&figures_name(&entry.id)).await?.is_some() {
                seen = Duration::ZERO;
            }
            gateways.push(known(entry, seen, false));
        }
        leave_out_restarted(&mut gateways, now);
        gateways.retain(|gateway| !gateway.is_self);
        Ok(gateways)
    }
}
