//! Keeps the filter of listening sockets to those who are banned or blocked now: as they come, until
//! their bans end or are lifted, on whichever gateway.
//!
//! A peer in the filter sends no more requests, so nothing here learns from them that its ban was
//! lifted elsewhere. So the store is asked for all of its bans once a second.

use std::collections::HashSet;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use smallvec::smallvec;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use weir_config::Settings;
use weir_limit::time::Timestamp;
use weir_middleware::{RefusedPeer, Treatment};
use weir_rules::{Ban, Banned};
use weir_server::{FilteredPeers, PeerFilter};
use weir_socket_filter::{FilterTooLong, PeerSet, Program};
use weir_store::Store;

use super::{BATCH_SIZE, SharedBans};

/// How often the store is asked whether bans still hold.
const CONFIRM_INTERVAL: Duration = Duration::from_secs(1);

/// How long peers that come, and bans that end, are collected before the filter is made anew, which
/// takes a worker up to a millisecond.
const COLLECT_TIME: Duration = Duration::from_millis(100);

/// So small a part of the room in the filter may be left empty.
const SPARE_PART: usize = 64;

/// After how long a request of a peer counts half as much.
const AGE_INTERVAL: Duration = Duration::from_secs(60);

/// Whose connections are refused, by a configuration.
#[derive(Default)]
pub(super) struct RefusalRules {
    /// Each with whether it keeps out all whom it bans.
    bans: Vec<(Arc<Ban>, bool)>,
    blocked: Vec<IpNet>,
    /// Whose connections never are.
    exempt: Vec<IpNet>,
}

impl RefusalRules {
    pub(super) fn new(settings: &Settings) -> Self {
        let access = &settings.access;
        let is_refused = |it: &Treatment| matches!(it, Treatment::Drop { in_kernel: true });
        let refusing = access.bans.iter().filter(|it| is_refused(&it.treatment));
        let blocked = is_refused(&access.blocked).then(|| access.lists.block.networks());
        // This machine's own health checks and sidecars, whatever they did.
        let loopback = [
            IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8)),
            IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128)),
        ];
        Self {
            bans: refusing
                .map(|it| (Arc::clone(&it.ban), it.acts_on_all()))
                .collect(),
            blocked: blocked.into_iter().flatten().collect(),
            exempt: access.lists.allow.networks().chain(loopback).collect(),
        }
    }

    fn is_empty(&self) -> bool {
        self.bans.is_empty() && self.blocked.is_empty()
    }

    fn ban(&self, name: &str) -> Option<&Arc<Ban>> {
        let mut bans = self.bans.iter().map(|(ban, _)| ban);
        bans.find(|ban| &**ban.name() == name)
    }
}

/// A network whose peers are refused. The greater ones go into the filter first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    /// By an operator, who sets few.
    is_standing: bool,
    hits: u32,
    network: IpNet,
    until: Timestamp,
}

impl SharedBans {
    /// Keeps the filter up to date with the configurations that are published, whose rules
    /// `rules_of` gets, and with the bans in this store.
    pub(super) async fn follow_refused_peers<C>(
        &self,
        mut configurations: watch::Receiver<Arc<C>>,
        rules_of: impl Fn(&C) -> RefusalRules,
        store: Arc<dyn Store>,
        filter: &PeerFilter,
    ) -> Infallible {
        let mut rules = rules_of(&configurations.borrow_and_update());
        let mut in_force = None;
        let (mut all_fit, mut fitting) = (true, 0);
        let (mut confirmed, mut aged) = (Instant::now(), Instant::now());
        // After a flood that was banned at once, bans end within milliseconds of each other.
        let mut next = Instant::now();
        loop {
            let candidates = self.candidates(&rules);
            let networks: Vec<_> = candidates.iter().map(|it| it.network).collect();
            let is_same = |in_force: &Vec<IpNet>| match all_fit {
                true => is_same_set(&networks, in_force),
                false => networks == *in_force,
            };
            if !in_force.as_ref().is_some_and(is_same) {
                fitting = refuse(filter, &networks, &rules.exempt, fitting);
                warn_of_too_many(all_fit, fitting, networks.len());
                all_fit = fitting == networks.len();
                in_force = Some(networks);
                next = Instant::now() + COLLECT_TIME;
            }
            let is_idle = rules.is_empty();
            let end = candidates.iter().map(|it| it.until).min();
            let end = end.map(|end| Duration::from(end.since(self.clock.now())));
            let end = end.map_or(CONFIRM_INTERVAL, |end| end.min(CONFIRM_INTERVAL));
            let wake = (Instant::now() + end).min(confirmed + CONFIRM_INTERVAL);
            tokio::select! {
                changed = configurations.changed() => {
                    if changed.is_err() {
                        return std::future::pending().await;
                    }
                    rules = rules_of(&configurations.borrow_and_update());
                    // Others may be exempt now.
                    in_force = None;
                }
                () = self.known.refused_peers().changed(), if !is_idle => {
                    let now = Instant::now();
                    // Each order of too many is another filter, but no ban is held for it.
                    let most = if all_fit { COLLECT_TIME } else { CONFIRM_INTERVAL };
                    tokio::select! {
                        () = sleep_until((now + most).min(wake.max(now + COLLECT_TIME))) => {}
                        () = self.known.refused_peers().changed_by_hand() => {
                            sleep(COLLECT_TIME).await;
                        }
                    }
                }
                () = sleep_until(wake.max(next)), if !is_idle => {}
            }
            if confirmed.elapsed() >= CONFIRM_INTERVAL && !rules.is_empty() {
                let confirm = self.confirm(&rules, &*store);
                let _ = timeout(CONFIRM_INTERVAL / 2, confirm).await;
                confirmed = Instant::now();
            }
            if aged.elapsed() >= AGE_INTERVAL {
                self.known.refused_peers().age();
                aged = Instant::now();
            }
        }
    }

    /// Who is refused now, the first of whom go into the filter first.
    fn candidates(&self, rules: &RefusalRules) -> Vec<Candidate> {
        let now = self.clock.now();
        let known = self.known.refused_peers().list(now);
        let whole = rules.bans.iter().filter(|(_, acts_on_all)| *acts_on_all);
        let standing = whole.flat_map(|(ban, _)| self.known.standing_of(ban.name()));
        let standing = standing.filter_map(|(banned, until)| {
            let network = match banned {
                Banned::Network(network) => network,
                Banned::Subject(subject) => network_of(&subject)?,
            };
            (until > now).then_some(Candidate {
                is_standing: true,
                hits: 0,
                network,
                until,
            })
        });
        let banned = known.iter().filter_map(|(peer, refusal)| {
            let RefusedPeer::Banned { ban, subject } = peer else {
                return None;
            };
            rules.ban(ban)?;
            Some(Candidate {
                is_standing: false,
                hits: refusal.hits,
                network: network_of(subject)?,
                until: refusal.until,
            })
        });
        let blocked = rules.blocked.iter().map(|network| {
            let refusal = known.get(&RefusedPeer::Blocked(*network));
            Candidate {
                is_standing: false,
                hits: refusal.map_or(0, |refusal| refusal.hits),
                network: *network,
                until: Timestamp::MAX,
            }
        });
        let mut candidates: Vec<_> = standing.chain(banned).chain(blocked).collect();
        candidates.sort_unstable_by(|one, other| other.cmp(one));
        candidates
    }

    /// Finds out which bans still hold, and for how long. While the store is out of reach, those that
    /// are known do.
    async fn confirm(&self, rules: &RefusalRules, store: &dyn Store) {
        let known = self.known.refused_peers().list(self.clock.now());
        let peers: Vec<_> = known.into_keys().collect();
        for some in peers.chunks(BATCH_SIZE) {
            let confirmed = some.iter().map(|peer| self.confirm_one(rules, peer, store));
            join_all(confirmed).await;
        }
    }

    async fn confirm_one(&self, rules: &RefusalRules, peer: &RefusedPeer, store: &dyn Store) {
        let RefusedPeer::Banned { ban, subject } = peer else {
            return;
        };
        let Some(ban) = rules.ban(ban) else {
            return;
        };
        let now = self.clock.now();
        let check = ban.check(&subject.as_str().into());
        let Ok(outcome) = store.decide(&smallvec![check], now).await else {
            return;
        };
        if let Some(Some(decision)) = outcome.decisions.first() {
            let left = if decision.fits() {
                now
            } else {
                now + decision.retry_in
            };
            self.known.refused_peers().set_end(peer, left);
        }
    }
}

/// The network of a subject per address.
fn network_of(subject: &str) -> Option<IpNet> {
    let address = || subject.parse::<IpAddr>().ok().map(IpNet::from);
    subject.parse().ok().or_else(address)
}

fn is_same_set(some: &[IpNet], others: &[IpNet]) -> bool {
    let set = |networks: &[IpNet]| networks.iter().copied().collect::<HashSet<_>>();
    set(some) == set(others)
}

/// Refuses these networks but for the exempt ones. Returns how many of them fit the kernel's filter:
/// the first ones. About as many as did `before` are likely to.
fn refuse(filter: &PeerFilter, networks: &[IpNet], exempt: &[IpNet], before: usize) -> usize {
    let set_of =
        |networks: &[IpNet]| PeerSet::new(networks.iter().copied(), exempt.iter().copied());
    let peers = set_of(networks);
    if peers.is_empty() {
        filter.refuse(None);
        return networks.len();
    }
    let (count, program) = longest(networks.len(), before, |count| {
        Program::dropping(&set_of(networks.get(..count).unwrap_or(networks)))
    });
    filter.refuse(Some(FilteredPeers {
        program,
        peers,
        count,
        left_out: networks.len() - count,
    }));
    count
}

/// The greatest number, up to `most`, of which a program can be compiled, but for a few, and the
/// program. Each try takes a millisecond of a full filter, so those `before` are tried first.
fn longest(
    most: usize,
    before: usize,
    compile: impl Fn(usize) -> Result<Program, FilterTooLong>,
) -> (usize, Program) {
    if let Ok(program) = compile(most) {
        return (most, program);
    }
    let (mut fitting, mut too_many) = ((0, Program::dropping_nobody()), most);
    let near = before / SPARE_PART + 1;
    let mut likely = [before + near, before.saturating_sub(near)].into_iter();
    while too_many - fitting.0 > near {
        let likely = likely.by_ref();
        let count = likely.find(|count| (fitting.0 + 1..too_many).contains(count));
        let count = count.unwrap_or_else(|| fitting.0.midpoint(too_many));
        match compile(count) {
            Ok(program) => fitting = (count, program),
            Err(FilterTooLong) => too_many = count,
        }
    }
    fitting
}

/// Once, until all fit again.
fn warn_of_too_many(did_fit: bool, fitting: usize, all: usize) {
    if did_fit && fitting < all {
        tracing::warn!(
            fitting,
            all,
            "more peers are banned or blocked than the kernel's filter has room for; it drops those \
             that come most often"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use weir_limit::time::{Clock, ManualClock, Nanos};
    use weir_limit::{BucketKey, Quota};
    use weir_middleware::KnownBans;
    use weir_rules::{BanSchedule, HashKey, KeySource, StandingBans};
    use weir_store::{Memory, MemorySettings};
    use weir_telemetry::Metrics;

    use super::*;
    use crate::app::shared_list::moment;

    const START: u64 = 1_000_000;

    fn ban() -> Arc<Ban> {
        let hour = Duration::from_secs(3600);
        let schedule = BanSchedule::new(hour, NonZeroU32::MIN, hour, hour).unwrap();
        let per = vec![KeySource::parse("address", 64).unwrap()];
        let strikes = Quota::new(1, 1, hour).unwrap();
        Arc::new(Ban::new("scanners", per, HashKey::random(), strikes, schedule).unwrap())
    }

    fn rules(ban: &Arc<Ban>) -> RefusalRules {
        RefusalRules {
            bans: vec![(Arc::clone(ban), true)],
            blocked: vec!["192.0.2.0/24".parse().unwrap()],
            exempt: Vec::new(),
        }
    }

    fn shared() -> (SharedBans, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::new(moment(START)));
        let shared = SharedBans::new(
            KnownBans::default(),
            Arc::<ManualClock>::clone(&clock),
            None,
        );
        (shared.0, clock)
    }

    fn came(shared: &SharedBans, ban: &Ban, subject: &str, times: u32) {
        let peer = RefusedPeer::banned(ban.name(), &subject.into());
        let until = moment(START) + Nanos::from(Duration::from_secs(3600));
        (0..times).for_each(|_| shared.known.refused_peers().came(peer.clone(), until));
    }

    fn networks(shared: &SharedBans, rules: &RefusalRules) -> Vec<String> {
        let candidates = shared.candidates(rules).into_iter();
        candidates.map(|it| it.network.to_string()).collect()
    }

    #[test]
    fn standing_bans_come_first_and_then_those_who_come_most_often() {
        let ((shared, _), ban) = (shared(), ban());
        came(&shared, &ban, "198.51.100.1", 1);
        came(&shared, &ban, "2001:db8:1:2::/64", 3);
        came(&shared, &ban, "198.51.100.2", 2);
        let mut standing = StandingBans::default();
        let network = "203.0.113.0/24".parse().unwrap();
        standing.add("scanners", Banned::Network(network), Timestamp::MAX);
        let ended = Banned::Subject("203.0.114.1".to_owned());
        standing.add("scanners", ended, moment(START));
        standing.add(
            "others",
            Banned::Subject("203.0.114.2".to_owned()),
            Timestamp::MAX,
        );
        shared.known.set_standing(standing);
        let expected = [
            "203.0.113.0/24",
            "2001:db8:1:2::/64",
            "198.51.100.2/32",
            "198.51.100.1/32",
            "192.0.2.0/24",
        ];
        assert_eq!(networks(&shared, &rules(&ban)), expected);
    }

    #[test]
    fn of_too_many_the_first_are_in_the_filter_and_all_are_known_to_those_who_accept() {
        let metrics = Metrics::new().refusals().clone();
        let filter = PeerFilter::new(metrics.clone());
        let scattered = |number: u32| {
            IpNet::from(IpAddr::V4(Ipv4Addr::from_bits(
                number.wrapping_mul(2_654_435_761),
            )))
        };
        let all: Vec<_> = (1..=6_000).map(scattered).collect();
        let fitting = refuse(&filter, &all, &[], 0);
        assert!((2_900..4_096).contains(&fitting), "{fitting}");
        let refusals = metrics.sample();
        let counted =
            [refusals.peers, refusals.left_out].map(|count| usize::try_from(count).unwrap());
        assert_eq!(counted, [fitting, all.len() - fitting]);
        let all_that_fit = refuse(&filter, &all[..fitting], &[], 0);
        assert_eq!(all_that_fit, fitting);
        assert_eq!(metrics.sample().left_out, 0);
        // Once it is known about how many fit, a few of them may be left out.
        for before in [fitting, fitting / 2, all.len()] {
            let again = refuse(&filter, &all, &[], before);
            let least = fitting - before / SPARE_PART - 1;
            assert!((least..=fitting).contains(&again), "{again} of {fitting}");
        }
    }

    /// Goes with the timers of tokio.
    #[derive(Debug)]
    struct TimerClock(Instant);

    impl Clock for TimerClock {
        fn now(&self) -> Timestamp {
            moment(START) + Nanos::from(self.0.elapsed())
        }
    }

    /// Thousands that were banned within seconds had a worker attach filters without an end.
    #[tokio::test(start_paused = true)]
    async fn bans_that_end_within_milliseconds_of_each_other_make_few_filters() {
        let clock = Arc::new(TimerClock(Instant::now()));
        let (shared, _) = SharedBans::new(KnownBans::default(), clock, None);
        let (ban, metrics) = (ban(), Metrics::new().refusals().clone());
        for number in 0..50 {
            let subject = format!("198.51.100.{}", 2 * number);
            let peer = RefusedPeer::banned(ban.name(), &subject.as_str().into());
            let until = moment(START) + Nanos::from(Duration::from_millis(200 + number));
            shared.known.refused_peers().came(peer, until);
        }
        let filter = PeerFilter::new(metrics.clone());
        let (_configurations, published) = watch::channel(Arc::new(Arc::clone(&ban)));
        let rules_of = |ban: &Arc<Ban>| RefusalRules {
            blocked: Vec::new(),
            ..rules(ban)
        };
        let store = Arc::new(Memory::new(MemorySettings::default()));
        let follow = shared.follow_refused_peers(published, rules_of, store, &filter);
        let observe = async {
            let mut counts = Vec::new();
            for _ in 0..400 {
                sleep(Duration::from_millis(1)).await;
                counts.push(metrics.peers.get());
            }
            counts.dedup();
            counts
        };
        let counts = tokio::select! {
            never = follow => match never {},
            counts = observe => counts,
        };
        assert_eq!((counts.first(), counts.last()), (Some(&50), Some(&0)));
        assert!(counts.len() <= 4, "{counts:?}");
    }

    /// Their connections are closed when they are accepted, without a question to the store.
    #[tokio::test(start_paused = true)]
    async fn no_ban_that_is_lifted_holds_on_because_more_are_banned_than_the_filter_has_room_for() {
        let (shared, _) = shared();
        let (ban, metrics) = (ban(), Metrics::new().refusals().clone());
        let subject = |number: u32| {
            let scattered = Ipv4Addr::from_bits(number.wrapping_mul(2_654_435_761));
            BucketKey::from(scattered.to_string().as_str())
        };
        let until = moment(START) + Nanos::from(Duration::from_secs(3600));
        for number in 1..=5_000 {
            let peer = RefusedPeer::banned(ban.name(), &subject(number));
            shared.known.refused_peers().came(peer, until);
        }
        let filter = PeerFilter::new(metrics.clone());
        let (_configurations, published) = watch::channel(Arc::new(Arc::clone(&ban)));
        let rules_of = |ban: &Arc<Ban>| RefusalRules {
            blocked: Vec::new(),
            ..rules(ban)
        };
        let store = Arc::new(Memory::new(MemorySettings::default()));
        let follow = shared.follow_refused_peers(published, rules_of, store, &filter);
        let all = || {
            let refusals = metrics.sample();
            (refusals.peers + refusals.left_out, refusals.left_out > 0)
        };
        let lift = async {
            sleep(Duration::from_millis(200)).await;
            assert_eq!(all(), (5_000, true));
            shared.known.refused_peers().lift(ban.name(), &subject(1));
            shared.known.refused_peers().lift(ban.name(), &subject(2));
            sleep(Duration::from_millis(200)).await;
            all()
        };
        let left = tokio::select! {
            never = follow => match never {},
            left = lift => left,
        };
        assert_eq!(left, (4_998, true));
    }

    /// A peer in the filter sends nothing from which its gateway could learn of it.
    #[tokio::test]
    async fn a_ban_that_the_store_has_no_more_is_not_held() {
        let ((shared, clock), ban, store) =
            (shared(), ban(), Memory::new(MemorySettings::default()));
        let now = moment(START);
        let subject = "198.51.100.1".into();
        let begin = ban.begin(&subject, Duration::from_secs(60));
        store.decide(&smallvec![begin], now).await.unwrap();
        came(&shared, &ban, "198.51.100.1", 1);
        came(&shared, &ban, "198.51.100.2", 1);
        let rules = rules(&ban);
        shared.confirm(&rules, &store).await;
        assert_eq!(
            networks(&shared, &rules),
            ["198.51.100.1/32", "192.0.2.0/24"]
        );
        // The end is that of the store, not the one that the last request was told.
        clock.set(now + Nanos::from(Duration::from_secs(60)));
        assert_eq!(networks(&shared, &rules), ["192.0.2.0/24"]);
    }
}
