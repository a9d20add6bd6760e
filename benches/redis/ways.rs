//! The ways to decide: what each sends in its one or two round trips.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weir::limit::Quota;

use crate::client::{Client, command};
use crate::recorder::record;
use weir_testing::RedisServer;

const KEYS: usize = 1024;

/// GCRA, exact in whole microseconds: a double has no room for nanoseconds of today. The TAT is
/// written and given its expiry by one command.
const LUA: &str = "\
local now, increment, tolerance = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local tat = tonumber(redis.call('GET', KEYS[1]) or '0')
local debt = math.max(tat - now, 0)
if debt + increment > tolerance then return {debt, 0} end
redis.call('SET', KEYS[1], string.format('%.0f', now + debt + increment), 'PX', ARGV[4])
return {debt, 1}";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Allowed,
    Denied,
}

impl Outcome {
    pub(crate) const ALL: [Self; 2] = [Self::Allowed, Self::Denied];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
        }
    }

    /// A bucket that no bench empties, or one that is empty at once.
    fn quota(self) -> Quota {
        let day = Duration::from_secs(86_400);
        match self {
            Self::Allowed => Quota::new(10_000_000_000, 10_000_000_000, day),
            Self::Denied => Quota::new(1, 1, day),
        }
        .unwrap()
    }
}

pub(crate) const WEIR: &str = "weir";
pub(crate) const WEIR_NEW: &str = "weir, with expiry";
pub(crate) const IN_LUA: &str = "lua";
pub(crate) const BOULDER: &str = "boulder";

/// One way to decide about buckets of one kind.
pub(crate) struct Way {
    pub(crate) name: &'static str,
    pub(crate) outcome: Outcome,
    trips: Vec<Trip>,
}

/// A round trip: for each key what is sent, and how many lines come back.
struct Trip {
    commands: Vec<Vec<u8>>,
    lines: usize,
}

impl Way {
    pub(crate) fn all(server: &RedisServer) -> Vec<Self> {
        Outcome::ALL
            .into_iter()
            .flat_map(|outcome| {
                let [weir, new] = weir(server, outcome);
                [weir, new, lua(server, outcome), boulder(server, outcome)]
            })
            .collect()
    }

    fn new(
        name: &'static str,
        outcome: Outcome,
        server: &RedisServer,
        trips: Vec<Vec<Vec<u8>>>,
    ) -> Self {
        let mut client = Client::connect(server);
        let trip = |commands: Vec<Vec<u8>>| {
            // All buckets are there from now on, and in the state that they keep.
            let replies: Vec<_> = commands.iter().map(|one| client.try_out(one)).collect();
            for reply in &replies {
                assert!(!reply.starts_with(b"-"), "{}", reply.escape_ascii());
            }
            let reply = client.try_out(commands.last().unwrap());
            Trip {
                commands,
                lines: reply.iter().filter(|&&byte| byte == b'\n').count(),
            }
        };
        Self {
            name,
            outcome,
            trips: trips.into_iter().map(trip).collect(),
        }
    }

    /// Decides so many times `depth` buckets, of which each `depth` travel together; how many
    /// decisions these are.
    pub(crate) fn run(&self, client: &mut Client, depth: usize, times: usize) -> u32 {
        for time in 0..times {
            for trip in &self.trips {
                let first = time * depth % KEYS;
                let commands = trip.commands.iter().cycle().skip(first).take(depth);
                let bytes = commands.flatten().copied().collect::<Vec<_>>();
                client.exchange(&bytes, depth * trip.lines);
            }
        }
        u32::try_from(depth * times).unwrap()
    }
}

fn keys(way: &str, outcome: Outcome) -> Vec<String> {
    let key = |number| {
        format!(
            "{way}-{}:203.0.{}.{}",
            outcome.name(),
            number / 256,
            number % 256
        )
    };
    (0..KEYS).map(key).collect()
}

/// As Weir sends it, with an expiry and without.
fn weir(server: &RedisServer, outcome: Outcome) -> [Way; 2] {
    let recorded = record(server, outcome.quota(), &keys("w", outcome));
    [
        Way::new(WEIR, outcome, server, vec![recorded.later]),
        Way::new(WEIR_NEW, outcome, server, vec![recorded.first]),
    ]
}

fn lua(server: &RedisServer, outcome: Outcome) -> Way {
    let reply = Client::connect(server).try_out(&command(&["SCRIPT", "LOAD", LUA]));
    let reply = String::from_utf8(reply).unwrap();
    let hash = reply.lines().nth(1).expect("the script's hash").to_owned();
    let quota = outcome.quota();
    let micros = |nanos: u64| nanos.div_ceil(1000).to_string();
    let now = now().as_micros().to_string();
    let increment = micros(quota.emission_interval().get());
    let tolerance = micros(quota.tolerance().get());
    let lifetime = quota.tolerance().ceil_millis().to_string();
    let decide = |key: String| {
        command(&[
            "EVALSHA", &hash, "1", &key, &now, &increment, &tolerance, &lifetime,
        ])
    };
    let commands = keys("l", outcome).into_iter().map(decide).collect();
    Way::new(IN_LUA, outcome, server, vec![commands])
}

/// Boulder reads the TAT, decides by itself, and then raises the TAT of a bucket that is not full.
/// A request that is denied writes nothing.
fn boulder(server: &RedisServer, outcome: Outcome) -> Way {
    let keys = keys("b", outcome);
    let tat = (now() + Duration::from_secs(3600)).as_nanos().to_string();
    for key in &keys {
        Client::connect(server).try_out(&command(&["SET", key, &tat, "EX", "90000"]));
    }
    let get = keys.iter().map(|key| command(&["GET", key])).collect();
    let raise = |key: &String| {
        let expire = command(&["EXPIRE", key, "90000"]);
        [command(&["INCRBY", key, "8640"]), expire].concat()
    };
    let trips = match outcome {
        Outcome::Allowed => vec![get, keys.iter().map(raise).collect()],
        Outcome::Denied => vec![get],
    };
    Way::new(BOULDER, outcome, server, trips)
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}
