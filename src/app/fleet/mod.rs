//! The gateways of one Redis, as each of them knows the others: each lists itself, and publishes
//! its figures every two seconds, in a bounded form; whoever is asked reads those of all. No
//! gateway has to reach another one.
//!
//! Nothing of this is on the path of a request. What is published ends by itself, by the time of
//! the store, so a gateway that is gone is silent first, and then forgotten.

mod census;
mod definitions;
mod figures;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use weir_config::StoreSettings;
use weir_console::fleet::{
    ENTRY_KEPT, FIGURES_KEPT, Figures, FiguresState, FleetView, GatewayEntry, GatewayState,
    INTERVAL, KnownGateway, LIMITS_INTERVAL, LIMITS_KEPT, MAX_GATEWAYS, MAX_LIMITS_BYTES,
    OtherConfiguration, PublishedLimits, SILENT_AFTER, Solitude, differences, figures_name,
    limits_name,
};
use weir_limit::time::{Clock, Timestamp};
use weir_store::{SharedEntry, StoreError};

pub(super) use self::figures::Surroundings;
use super::reloads::Snapshot;
use super::shared_list::millis;
use super::stores::SharedStores;

/// The list of gateways in the store.
const LIST: &str = "gateways";

/// How long a view is shown before the store is asked again.
const VIEW_KEPT: Duration = Duration::from_secs(1);

/// How often something is tried for which Redis's user has no right.
const FORBIDDEN_INTERVAL: Duration = Duration::from_secs(60);

/// Who a gateway is among the others.
#[derive(Default)]
pub(super) struct Identity {
    /// Of the process.
    id: String,
    /// Of the machine.
    name: String,
    /// Of the admin listener, or of the first listener for clients.
    address: String,
}

impl Identity {
    /// The identity of this process, which listens at these addresses.
    pub(super) fn of_process(admin: Option<SocketAddr>, listening: &[SocketAddr]) -> Self {
        let address = admin.or(listening.first().copied());
        let machine = rustix::system::uname();
        Self {
            id: format!("{:016x}", rand::random::<u64>()),
            name: machine.nodename().to_string_lossy().into_owned(),
            address: address.map_or_else(String::new, |address| address.to_string()),
        }
    }
}

/// What this gateway and the others of its store know of each other.
#[derive(Clone)]
pub(super) struct Fleet(Arc<Inner>);

struct Inner {
    around: Surroundings,
    clock: Arc<dyn Clock>,
    /// None if this process is alone, by its configuration.
    shared: Option<SharedStores>,
    /// This gateway, as it was published last.
    entry: Mutex<GatewayEntry>,
    /// The configuration in force, for others to compare.
    configuration: Mutex<Option<Configuration>>,
    view: Mutex<Option<(Instant, Arc<FleetView>)>>,
}

/// The configuration of a snapshot.
#[derive(Clone)]
struct Configuration {
    /// It may end, with what belongs to it.
    snapshot: Weak<Snapshot>,
    digest: String,
    /// The fingerprint of the key of hashes, which the digest does not cover.
    hash_key: Option<String>,
    limits: Arc<PublishedLimits>,
}

impl Fleet {
    /// The fleet of the gateways that `shared` is shared with.
    pub(super) fn new(
        identity: Identity,
        around: Surroundings,
        shared: Option<SharedStores>,
    ) -> Self {
        let Identity { id, name, address } = identity;
        let store = &around.snapshot().settings.process.store;
        let is_off = matches!(store, StoreSettings::Redis(redis) if !redis.has_fleet);
        let shared = shared.filter(|_| !is_off);
        let clock = around.stores.clock();
        let since = clock.now().as_secs();
        Self(Arc::new(Inner {
            clock,
            shared,
            entry: Mutex::new(GatewayEntry::new(&id, &name, &address, since)),
            configuration: Mutex::default(),
            view: Mutex::default(),
            around,
        }))
    }

    /// Publishes what this gateway has counted, again and again.
    pub(super) async fn follow(&self) -> Infallible {
        self.0.show(&[]);
        let Some(shared) = &self.0.shared else {
            return self.0.follow_configuration().await;
        };
        tokio::select! {
            never = self.publish(shared) => never,
            never = self.0.follow_census(shared) => never,
            never = self.0.follow_configuration() => never,
        }
    }

    async fn publish(&self, shared: &SharedStores) -> Infallible {
        let mut publisher = Publisher::new(&self.0, shared);
        loop {
            publisher.publish().await;
            // Not all gateways should publish at the same time.
            sleep(INTERVAL.mul_f64(rand::random_range(0.9..1.1))).await;
        }
    }

    /// Tells the others that this gateway ends. If that fails, it is silent for a while.
    pub(super) async fn leave(&self) {
        let Some(shared) = &self.0.shared else { return };
        let entry = self.0.entry.lock().clone();
        let (now, remove) = (self.0.clock.now(), vec![entry.text()]);
        let removed = shared.lists.change(LIST, Vec::new(), remove, now);
        let ended = Duration::from_millis(1);
        let figures = shared
            .texts
            .put(&figures_name(&entry.id), String::new(), ended);
        let _ = tokio::join!(removed, figures);
    }

    /// All gateways, as the store has them now.
    pub(super) async fn view(&self) -> Arc<FleetView> {
        let known = self.0.view.lock().clone();
        if let Some((at, view)) = known
            && at.elapsed() < VIEW_KEPT
        {
            return view;
        }
        let view = Arc::new(self.0.view().await);
        *self.0.view.lock() = Some((Instant::now(), Arc::clone(&view)));
        view
    }
}

impl Inner {
    async fn view(&self) -> FleetView {
        let now = self.clock.now();
        let configuration = self.configuration();
        let mut entry = self.entry.lock().clone();
        entry.configuration.clone_from(&configuration.digest);
        entry.hash_key.clone_from(&configuration.hash_key);
        let own = KnownGateway {
            entry,
            is_self: true,
            seen: Duration::ZERO,
            is_replaced: false,
            figures: Ok(self.around.figures(now)),
        };
        let mut view = FleetView {
            gateways: vec![own],
            configurations: Vec::new(),
            is_cut: false,
            alone: None,
        };
        let Some(shared) = &self.shared else {
            let settings = &self.around.snapshot().settings;
            let why = match settings.process.store.is_shared() {
                true => "store.redis.fleet is false",
                false => "the store is memory, which gateways do not share",
            };
            view.alone = Some(Solitude::Configured(why));
            return view;
        };
        match self.others(shared, now).await {
            Ok(others) => {
                view.gateways.extend(others.gateways);
                leave_out_restarted(&mut view.gateways, now);
                view.is_cut = others.is_cut;
                view.alone = others
                    .unread
                    .map(|error| Solitude::Failed(in_words(&error)));
            }
            Err(error) => view.alone = Some(Solitude::Failed(in_words(&error))),
        }
        view.configurations = self
            .other_configurations(shared, &view.gateways, &configuration)
            .await;
        view
    }

    /// The other gateways.
    async fn others(&self, shared: &SharedStores, now: Timestamp) -> Result<Others, StoreError> {
        let own_id = self.entry.lock().id.clone();
        let (listed, is_cut) = listed(shared, now).await?;
        let listed = listed.into_iter().filter_map(|listed| {
            let entry = GatewayEntry::parse(&listed.text)?;
            Some((entry.id.clone(), (entry, listed.until)))
        });
        // The latest entry of a gateway comes last.
        let mut others: BTreeMap<String, (GatewayEntry, u64)> = listed.collect();
        others.remove(&own_id);
        let texts = others.values().map(|(entry, _)| {
            let is_shared = entry.figures == FiguresState::Shared;
            let text = is_shared.then(|| shared.texts.text(&figures_name(&entry.id)));
            async move {
                match text {
                    Some(text) => text.await,
                    None => Ok(None),
                }
            }
        });
        let texts = join_all(texts).await;
        let (mut known, mut unread) = (Vec::new(), None);
        for ((entry, until), text) in others.into_values().zip(texts) {
            let mut seen = seen(until, now);
            let figures = match text {
                Ok(Some(text)) => {
                    // They would be over, so the clock of that gateway is behind.
                    if seen > FIGURES_KEPT * 2 {
                        seen = Duration::ZERO;
                    }
                    Figures::parse(&text)
                }
                // Its clock was ahead, so that the list keeps it for longer than it should.
                Ok(None) if until > millis(now + (ENTRY_KEPT * 2).into()) => continue,
                Ok(None) if entry.figures == FiguresState::Shared => {
                    // They are over, by the time of the store, whatever its own clock said.
                    seen = seen.max(FIGURES_KEPT);
                    Err(FiguresState::Missing)
                }
                Ok(None) => Err(entry.figures),
                // Something else than a gateway has written there.
                Err(error) if error.is_wrong_type() => Err(FiguresState::AnotherVersion),
                Err(error) if error.is_partial() => {
                    unread = Some(error);
                    Err(FiguresState::Missing)
                }
                Err(error) => return Err(error),
            };
            known.push(KnownGateway {
                entry,
                is_self: false,
                seen,
                is_replaced: false,
                figures,
            });
        }
        known.sort_by_key(KnownGateway::title);
        Ok(Others {
            gateways: known,
            is_cut,
            unread,
        })
    }

    /// The configurations of other gateways that publish.
    async fn other_configurations(
        &self,
        shared: &SharedStores,
        gateways: &[KnownGateway],
        own: &Configuration,
    ) -> Vec<OtherConfiguration> {
        let mut others: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for gateway in gateways {
            let digest = &*gateway.entry.configuration;
            let is_there = gateway.state() != GatewayState::Silent;
            if is_there && digest != own.digest && !digest.is_empty() {
                others.entry(digest).or_default().push(gateway.title());
            }
        }
        let texts = others
            .keys()
            .map(|digest| shared.texts.text(&limits_name(digest)));
        let texts = join_all(texts).await;
        let others = others.into_iter().zip(texts);
        let others = others.map(|((digest, gateways), text)| {
            // Without the limits, it is another configuration all the same.
            let limits = text.ok().flatten();
            let limits = limits.and_then(|text| PublishedLimits::parse(&text));
            OtherConfiguration {
                digest: digest.to_owned(),
                gateways,
                limits: limits.map(|limits| differences(&own.limits, &limits)),
            }
        });
        others.collect()
    }

    /// The configuration in force. It is described anew only after a reload, as that parses files.
    fn configuration(&self) -> Configuration {
        let snapshot = self.around.snapshot();
        let mut known = self.configuration.lock();
        match &*known {
            Some(known) if Weak::as_ptr(&known.snapshot) == Arc::as_ptr(&snapshot) => known.clone(),
            _ => {
                let configuration = Configuration {
                    digest: definitions::digest(&snapshot.settings),
                    hash_key: definitions::hash_key(&snapshot.settings),
                    limits: Arc::new(definitions::limits(&snapshot.settings)),
                    snapshot: Arc::downgrade(&snapshot),
                };
                known.insert(configuration).clone()
            }
        }
    }
}

/// The other gateways of a store.
struct Others {
    gateways: Vec<KnownGateway>,
    /// There may be more.
    is_cut: bool,
    /// Why figures of them cannot be read, if so.
    unread: Option<StoreError>,
}

/// The entries in the list of gateways, and whether there may be more. Those that publish have the
/// first places.
async fn listed(
    shared: &SharedStores,
    now: Timestamp,
) -> Result<(Vec<SharedEntry>, bool), StoreError> {
    let from = |from| shared.lists.entries(LIST, from, 0, MAX_GATEWAYS);
    let mut listed = from(millis(now)).await?;
    let is_cut = listed.len() >= MAX_GATEWAYS;
    if is_cut {
        let kept = ENTRY_KEPT.saturating_sub(SILENT_AFTER);
        let live = from(millis(now + kept.into())).await?;
        listed.truncate(MAX_GATEWAYS - live.len().min(MAX_GATEWAYS));
        listed.extend(live);
    }
    Ok((listed, is_cut))
}

/// Finds gateways in whose place another has started since their last word, and leaves out those
/// of them that are silent.
fn leave_out_restarted(gateways: &mut Vec<KnownGateway>, now: Timestamp) {
    let started = gateways.iter();
    let started: Vec<_> = started
        .map(|gateway| {
            let entry = &gateway.entry;
            (gateway.title(), entry.id.clone(), entry.since)
        })
        .collect();
    for gateway in &mut *gateways {
        let last_word = now.as_secs().saturating_sub(gateway.seen.as_secs());
        let title = gateway.title();
        gateway.is_replaced = started.iter().any(|(other, id, since)| {
            *other == title && *id != gateway.entry.id && *since >= last_word
        });
    }
    gateways.retain(|gateway| gateway.state() != GatewayState::Silent || !gateway.is_replaced);
}

/// How long ago an entry was published that ends then.
fn seen(until: u64, now: Timestamp) -> Duration {
    let kept = u64::try_from(ENTRY_KEPT.as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis(millis(now).saturating_sub(until.saturating_sub(kept)))
}

/// An error with its causes.
fn in_words(error: &StoreError) -> String {
    weir_telemetry::events::Chain(error).to_string()
}

/// Publishes this gateway.
struct Publisher<'f> {
    fleet: &'f Inner,
    shared: &'f SharedStores,
    /// The entry in the list.
    listed: Option<String>,
    /// The configuration whose limits were published, and when.
    limits: Option<(String, Instant)>,
    /// When a right was lacking the last time: to publish figures, or to be listed at all.
    forbidden: Option<Instant>,
    unlisted: Option<Instant>,
    /// Why it cannot publish, as it was logged.
    logged: Option<String>,
}

impl<'f> Publisher<'f> {
    const fn new(fleet: &'f Inner, shared: &'f SharedStores) -> Self {
        Self {
            fleet,
            shared,
            listed: None,
            limits: None,
            forbidden: None,
            unlisted: None,
            logged: None,
        }
    }

    async fn publish(&mut self) {
        let is_due = |at: Instant| at.elapsed() >= FORBIDDEN_INTERVAL;
        // Nobody reads the figures of a gateway that is not listed.
        if !self.unlisted.is_none_or(is_due) {
            return;
        }
        let configuration = self.fleet.configuration();
        let mut outcome = Ok(());
        if self.forbidden.is_none_or(is_due) {
            outcome = self.put_texts(&configuration).await;
            let is_forbidden = matches!(&outcome, Err(error) if error.is_forbidden());
            self.forbidden = is_forbidden.then(Instant::now);
        }
        let mut entry = self.fleet.entry.lock().clone();
        entry.configuration = configuration.digest;
        entry.hash_key = configuration.hash_key;
        entry.figures = match self.forbidden {
            Some(_) => FiguresState::Forbidden,
            None => FiguresState::Shared,
        };
        *self.fleet.entry.lock() = entry.clone();
        let listed = self.list(&entry).await;
        let is_forbidden = matches!(&listed, Err(error) if error.is_forbidden());
        self.unlisted = is_forbidden.then(Instant::now);
        match outcome.and(listed) {
            Ok(()) if self.forbidden.is_some() => {}
            Ok(()) => self.published(),
            Err(error) => self.failed(&error),
        }
    }

    async fn list(&mut self, entry: &GatewayEntry) -> Result<(), StoreError> {
        let (text, now) = (entry.text(), self.fleet.clock.now());
        let until = millis(now + ENTRY_KEPT.into());
        let earlier = self.listed.replace(text.clone());
        let earlier = earlier.filter(|earlier| *earlier != text);
        let (add, remove) = (SharedEntry { until, text }, earlier.into_iter().collect());
        let listed = self.shared.lists.change(LIST, vec![add], remove, now);
        listed.await.map(drop)
    }

    async fn put_texts(&mut self, configuration: &Configuration) -> Result<(), StoreError> {
        let texts = &self.shared.texts;
        let figures = self.fleet.around.text(self.fleet.clock.now());
        let name = figures_name(&self.fleet.entry.lock().id);
        texts.put(&name, figures, FIGURES_KEPT).await?;
        let digest = &configuration.digest;
        let is_known =
            |(known, at): &(String, Instant)| known == digest && at.elapsed() < LIMITS_INTERVAL;
        if !self.limits.as_ref().is_some_and(is_known) {
            let limits = configuration.limits.text();
            if limits.len() <= MAX_LIMITS_BYTES {
                texts.put(&limits_name(digest), limits, LIMITS_KEPT).await?;
            }
            self.limits = Some((digest.clone(), Instant::now()));
        }
        Ok(())
    }

    fn published(&mut self) {
        if self.logged.take().is_some() {
            tracing::info!("other gateways know again how this one does");
        }
    }

    fn failed(&mut self, error: &StoreError) {
        let cause = in_words(error);
        // An outage of the store is logged as such.
        if error.is_out_of_reach() || self.logged.as_ref() == Some(&cause) {
            return;
        }
        if error.is_forbidden() {
            tracing::warn!(
                cause,
                "other gateways do not know how this one does; give its Redis user the rights, or set \
                 store.redis.fleet to false"
            );
        } else {
            tracing::warn!(cause, "other gateways do not know how this one does");
        }
        self.logged = Some(cause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two machines may have one name, and one of them loses its way to the store.
    #[test]
    fn a_silent_gateway_is_hidden_only_by_one_that_started_after_its_last_word() {
        let now = Timestamp::from_nanos(1_000_000_000_000);
        let gateway = |id: &str, since, seen| KnownGateway {
            entry: GatewayEntry::new(id, "gw", "0.0.0.0:9901", since),
            is_self: false,
            seen: Duration::from_secs(seen),
            is_replaced: false,
            figures: Ok(Figures::new()),
        };
        let shown = |gateways: [KnownGateway; 2]| {
            let mut gateways = Vec::from(gateways);
            leave_out_restarted(&mut gateways, now);
            let shown = gateways.into_iter();
            let shown = shown.map(|gateway| (gateway.entry.id, gateway.is_replaced));
            shown.collect::<Vec<_>>()
        };
        let entry = |id: &str, is_replaced| (id.to_owned(), is_replaced);
        assert_eq!(
            shown([gateway("old", 10, 60), gateway("new", 950, 0)]),
            [entry("new", false)]
        );
        assert_eq!(
            shown([gateway("old", 10, 4), gateway("new", 997, 0)]),
            [entry("old", true), entry("new", false)]
        );
        assert_eq!(
            shown([gateway("lost", 10, 60), gateway("other", 20, 0)]),
            [entry("lost", false), entry("other", false)]
        );
    }
}
