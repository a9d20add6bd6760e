//! Bans that operators have set: a list that gateways share, whose entries are known to the workers.

use std::cmp::Ordering;
use std::sync::Arc;

use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use weir_limit::time::Timestamp;
use weir_middleware::KnownBans;
use weir_rules::{Banned, StandingBans};

use super::json;
use crate::app::shared_list::{ListEntry, ListTarget, MAX_ENTRIES, millis, moment};

/// A standing ban, as the list has it.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(in crate::app::features) struct StandingBan {
    pub(super) ban: String,
    /// The subject, as bucket keys have it, or the network.
    pub(super) of: String,
    pub(super) is_network: bool,
    /// In milliseconds since 1970.
    pub(super) since: u64,
    /// In milliseconds since 1970; none for good.
    pub(super) until: Option<u64>,
    /// Who has set it.
    pub(super) by: String,
    pub(super) comment: Option<String>,
}

impl StandingBan {
    fn banned(&self) -> Option<Banned> {
        Some(match self.is_network {
            true => Banned::Network(self.of.parse().ok()?),
            false => Banned::Subject(self.of.clone()),
        })
    }
}

impl ListEntry for StandingBan {
    const LIST: &'static str = "standing-bans";
    const NOUN: &'static str = "ban";
    const SINGULAR: &'static str = "a standing ban";
    const PLURAL: &'static str = "standing bans";

    /// The ban, the subject or network, and whether it is a network.
    type Key = (String, String, bool);

    fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    fn text(&self) -> String {
        json(self)
    }

    fn key(&self) -> Self::Key {
        (self.ban.clone(), self.of.clone(), self.is_network)
    }

    fn until(&self) -> Option<Timestamp> {
        self.until.map(moment)
    }

    fn cmp_set_at(&self, other: &Self) -> Ordering {
        self.since.cmp(&other.since)
    }

    fn full() -> String {
        format!(
            "there are {MAX_ENTRIES} bans by operators already, and one of a network, for good, or \
             longer than the longest of its kind needs room there; lift some, or write such clients \
             into a list under `block`"
        )
    }

    fn log_restored(bans: usize) {
        tracing::warn!(
            bans,
            "some or all of the standing bans were lost in Redis, and were written again"
        );
    }
}

/// How many places bans may take that a bucket alone could hold. The others are for those of
/// networks, for good, and of long durations.
pub(super) const MAX_SHORT_BANS: usize = MAX_ENTRIES - 100;

/// The standing bans in force.
#[derive(Clone)]
pub(in crate::app::features) struct StandingTarget {
    known: KnownBans,
    in_force: Arc<RwLock<Vec<Arc<StandingBan>>>>,
}

impl StandingTarget {
    pub(super) fn new(known: KnownBans) -> Self {
        Self {
            known,
            in_force: Arc::default(),
        }
    }

    /// Those that have not ended.
    pub(super) fn holding(&self, now: Timestamp) -> Vec<Arc<StandingBan>> {
        let now = millis(now);
        let in_force = self.in_force.read();
        let holds = |ban: &&Arc<StandingBan>| ban.until.is_none_or(|until| until > now);
        in_force.iter().filter(holds).cloned().collect()
    }
}

impl ListTarget<StandingBan> for StandingTarget {
    fn put_in_force(&self, entries: &[Arc<StandingBan>]) {
        let mut bans = StandingBans::default();
        for ban in entries {
            if let Some(banned) = ban.banned() {
                bans.add(&ban.ban, banned, ban.until.map_or(Timestamp::MAX, moment));
            }
        }
        *self.in_force.write() = entries.to_vec();
        self.known.set_standing(bans);
    }
}
