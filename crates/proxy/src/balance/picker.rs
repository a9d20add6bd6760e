//! How one of several servers is chosen.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;
use siphasher::sip::SipHasher24;

use super::server_state::ServerState;
use super::settings::Balance;

/// How many servers are drawn at random before all are looked at for one that is eligible.
const MAX_DRAWS: usize = 8;

/// Chooses servers for one worker. Servers go by their index.
///
/// Where all weights are the same, a choice looks at no more servers than it has to, as there may be
/// thousands.
pub(crate) struct Picker {
    balance: Balance,
    servers: Box<[Candidate]>,
    /// Whether each server has the same weight at any time.
    is_even: bool,
    /// For each server, the credit that weighted round robin has saved up.
    credits: Mutex<Box<[i64]>>,
    /// Whose turn is next, if all weights are the same.
    next: AtomicUsize,
}

struct Candidate {
    state: Arc<ServerState>,
    /// Hash of the server's name, so that all gateways, and the next process, choose alike.
    hash: u64,
}

impl Picker {
    pub(crate) fn new(balance: Balance, servers: &[Arc<ServerState>]) -> Self {
        let candidate = |state: &Arc<ServerState>| Candidate {
            state: Arc::clone(state),
            hash: SipHasher24::new().hash(state.name().as_bytes()),
        };
        let mut weights = servers.iter().map(|state| state.constant_weight());
        let first = weights.next().flatten();
        Self {
            balance,
            servers: servers.iter().map(candidate).collect(),
            is_even: first.is_some() && weights.all(|weight| weight == first),
            credits: Mutex::new(servers.iter().map(|_| 0).collect()),
            next: AtomicUsize::new(0),
        }
    }

    /// One of the servers to which `weight` gives one. `key` is the hash of the request's subject;
    /// requests without one go to each server in turn.
    pub(crate) fn pick(
        &self,
        key: Option<u64>,
        weight: impl Fn(usize, &ServerState) -> Option<u64>,
    ) -> Option<usize> {
        let weight = &weight;
        let eligible = (0..self.servers.len()).filter_map(|index| self.eligible(index, weight));
        match (self.balance, key) {
            (Balance::Hash, Some(key)) => by_hash(key, eligible),
            (Balance::LeastRequests, _) => by_requests(|other| {
                let is_other = |one: &Eligible<'_>| Some(one.index) != other;
                let some = self.draw_some(weight).filter(is_other);
                some.or_else(|| draw(eligible.clone().filter(is_other)))
            }),
            (Balance::RoundRobin, _) | (Balance::Hash, None) if self.is_even => self.next(weight),
            (Balance::RoundRobin, _) | (Balance::Hash, None) => self.in_turn(eligible),
        }
    }

    fn eligible(
        &self,
        index: usize,
        weight: &impl Fn(usize, &ServerState) -> Option<u64>,
    ) -> Option<Eligible<'_>> {
        let server = self.servers.get(index)?;
        let weight = weight(index, &server.state)?;
        Some(Eligible {
            index,
            server,
            weight,
        })
    }

    /// Any eligible server, with the same chance for each, if a few draws find one.
    fn draw_some(
        &self,
        weight: &impl Fn(usize, &ServerState) -> Option<u64>,
    ) -> Option<Eligible<'_>> {
        let draws = if self.is_even { MAX_DRAWS } else { 0 };
        (0..draws).find_map(|_| self.eligible(rand::random_range(0..self.servers.len()), weight))
    }

    /// The next eligible server after the one that was chosen last.
    fn next(&self, weight: &impl Fn(usize, &ServerState) -> Option<u64>) -> Option<usize> {
        let next = self.next.load(Relaxed);
        let mut in_turn = (next..self.servers.len()).chain(0..next);
        let index = in_turn.find(|index| self.eligible(*index, weight).is_some())?;
        self.next.store(index + 1, Relaxed);
        Some(index)
    }

    /// Smooth weighted round robin, as nginx has it: a server of weight 3 among two of weight 1
    /// gets every other request and then one more, not three at a time.
    fn in_turn<'s>(&self, eligible: impl Iterator<Item = Eligible<'s>>) -> Option<usize> {
        let mut credits = self.credits.lock();
        let (mut total, mut best) = (0_i64, None);
        for Eligible { index, weight, .. } in eligible {
            let weight = i64::try_from(weight).unwrap_or(i64::MAX);
            let Some(saved) = credits.get_mut(index) else {
                continue;
            };
            *saved = saved.saturating_add(weight);
            total = total.saturating_add(weight);
            if best.is_none_or(|(_, most)| *saved > most) {
                best = Some((index, *saved));
            }
        }
        let (index, _) = best?;
        if let Some(saved) = credits.get_mut(index) {
            *saved = saved.saturating_sub(total);
        }
        Some(index)
    }
}

#[derive(Clone, Copy)]
struct Eligible<'s> {
    index: usize,
    server: &'s Candidate,
    weight: u64,
}

impl Eligible<'_> {
    /// Whether one request more would load it less than `other`, each for its weight.
    fn is_less_loaded_than(&self, other: &Self) -> bool {
        let load = |of: &Self| of.server.state.in_flight() as u128 + 1;
        load(self) * u128::from(other.weight) < load(other) * u128::from(self.weight)
    }
}

/// The power of two choices: of two servers that are drawn by their weight, the one with the lesser
/// load. To always take the server with the least load would send all workers to the same one.
/// `draw` draws one that is not the given one.
fn by_requests<'s>(draw: impl Fn(Option<usize>) -> Option<Eligible<'s>>) -> Option<usize> {
    let first = draw(None)?;
    let Some(second) = draw(Some(first.index)) else {
        return Some(first.index);
    };
    match second.is_less_loaded_than(&first) {
        true => Some(second.index),
        false => Some(first.index),
    }
}

fn draw<'s>(eligible: impl Iterator<Item = Eligible<'s>> + Clone) -> Option<Eligible<'s>> {
    let total: u64 = eligible.clone().map(|server| server.weight).sum();
    let mut ticket = match total {
        0 => return None,
        total => rand::random_range(0..total),
    };
    let mut last = None;
    for server in eligible {
        if ticket < server.weight {
            return Some(server);
        }
        ticket -= server.weight;
        last = Some(server);
    }
    last
}

/// Rendezvous hashing: each server draws a number from the key and its own name, and the highest
/// one wins. A server that goes takes only its own keys with it, one that comes takes its share of
/// the others'. Weights count as in "Weighted Distributed Hash Tables" (Schindelhauer, Schomaker).
fn by_hash<'s>(key: u64, eligible: impl Iterator<Item = Eligible<'s>>) -> Option<usize> {
    let scored = eligible.map(|server| (server.index, score(key, &server)));
    let best = scored.max_by(|(_, one), (_, other)| one.total_cmp(other));
    best.map(|(index, _)| index)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a draw needs no more than 53 bits"
)]
fn score(key: u64, server: &Eligible<'_>) -> f64 {
    let drawn = (mixed(key ^ server.server.hash) >> 11) as f64 + 0.5;
    let share = drawn / (1_u64 << 53) as f64;
    server.weight as f64 / -share.ln()
}

/// The last step of SplitMix64, which spreads each bit over all others.
const fn mixed(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
