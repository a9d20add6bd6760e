//! How one of several servers is chosen.

use std::sync::Arc;

use parking_lot::Mutex;
use siphasher::sip::SipHasher24;

use super::server_state::ServerState;
use super::settings::Balance;

/// Chooses servers for one worker. Servers go by their index.
pub(crate) struct Picker {
    balance: Balance,
    servers: Box<[Candidate]>,
    /// For each server, the credit that weighted round robin has saved up.
    credits: Mutex<Box<[i64]>>,
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
        Self {
            balance,
            servers: servers.iter().map(candidate).collect(),
            credits: Mutex::new(servers.iter().map(|_| 0).collect()),
        }
    }

    /// One of the servers to which `weight` gives one. `key` is the hash of the request's subject;
    /// requests without one go to each server in turn.
    pub(crate) fn pick(
        &self,
        key: Option<u64>,
        weight: impl Fn(usize, &ServerState) -> Option<u64>,
    ) -> Option<usize> {
        let (servers, weight) = (self.servers.iter().enumerate(), &weight);
        let eligible = servers.filter_map(move |(index, server)| {
            let weight = weight(index, &server.state)?;
            Some(Eligible {
                index,
                server,
                weight,
            })
        });
        match (self.balance, key) {
            (Balance::Hash, Some(key)) => by_hash(key, eligible),
            (Balance::LeastRequests, _) => by_requests(eligible),
            (Balance::RoundRobin, _) | (Balance::Hash, None) => self.in_turn(eligible),
        }
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
fn by_requests<'s>(eligible: impl Iterator<Item = Eligible<'s>> + Clone) -> Option<usize> {
    let first = draw(eligible.clone())?;
    let others = eligible.filter(|other| other.index != first.index);
    let Some(second) = draw(others) else {
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
