//! Writes an access log as Weir would, to measure `weir replay`: an hour of visits with one or more
//! requests each, in the order in which requests ended. Half of the visits are of clients with a heavy
//! tail: the first of them sends some three hundredths of all requests, and most send a few.
//!
//! `cargo run --release --example access_log -- 10000000 100000 > access.log` writes ten million lines
//! of some hundred thousand clients.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, BufWriter, Write};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const START: u64 = 1_795_255_200_000_000_000;
const HOUR: u64 = 3_600_000_000_000;
const MILLISECOND: u64 = 1_000_000;

/// The most requests of a visit, and the longest time between two of them.
const MOST_OF_VISIT: u64 = 8;
const LONGEST_PAUSE: u64 = 200 * MILLISECOND;

const AGENTS: [&str; 4] = [
    "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) \
     Chrome/130.0 Safari/537.36",
    "python-requests/2.32.3",
    "okhttp/4.12.0",
];

/// A request, of which those that end first come first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Request {
    end: u64,
    at: u64,
    client: u32,
    kind: u32,
    number: u32,
}

fn main() -> io::Result<()> {
    let argument = |place, default| {
        let given = std::env::args().nth(place);
        given.and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let (requests, clients) = (argument(1, 100_000), argument(2, 100_000));
    let mut random = StdRng::seed_from_u64(1);
    let mut out = BufWriter::with_capacity(1 << 20, io::stdout().lock());
    // Requests that have come and not ended: each line is written at the end of its request.
    let mut pending: BinaryHeap<Reverse<Request>> = BinaryHeap::new();
    let mut number = 0;
    while number < requests {
        let mut at = START
            + u64::try_from(u128::from(HOUR) * u128::from(number) / u128::from(requests))
                .unwrap_or_default();
        while pending.peek().is_some_and(|Reverse(next)| next.end <= at) {
            write_next(&mut out, &mut pending)?;
        }
        let client = client(&mut random, clients);
        let of_visit = random
            .random_range(1..=MOST_OF_VISIT)
            .min(requests - number);
        for _ in 0..of_visit {
            let took = match random.random_range(0..1000_u32) {
                0 => random.random_range(1000 * MILLISECOND..20_000 * MILLISECOND),
                _ => random.random_range(MILLISECOND / 2..200 * MILLISECOND),
            };
            pending.push(Reverse(Request {
                end: at + took,
                at,
                client,
                kind: random.random_range(0..20),
                number: random.random_range(0..50_000),
            }));
            at += random.random_range(1..LONGEST_PAUSE);
        }
        number += of_visit;
    }
    while !pending.is_empty() {
        write_next(&mut out, &mut pending)?;
    }
    out.flush()
}

/// The client of a visit: one of all, or one of few with many visits, the fewer the more.
fn client(random: &mut StdRng, clients: u64) -> u32 {
    let all = u32::try_from(clients).unwrap_or(u32::MAX).max(1);
    if random.random_bool(0.5) {
        return random.random_range(0..all);
    }
    let share: f64 = random.random();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is between one and the number of clients"
    )]
    let rank = f64::from(all).powf(share) as u32;
    rank - 1
}

fn write_next(out: &mut impl Write, pending: &mut BinaryHeap<Reverse<Request>>) -> io::Result<()> {
    let Some(Reverse(Request {
        end,
        at,
        client,
        kind,
        number,
    })) = pending.pop()
    else {
        return Ok(());
    };
    let (method, path, route) = match kind {
        0 => ("POST", "/login".to_owned(), "login"),
        1..=3 => ("GET", "/search".to_owned(), "search"),
        4..=6 => ("GET", format!("/api/v1/orders/{number}"), "api"),
        7..=12 => ("GET", format!("/assets/app-{}.js", number % 40), "assets"),
        _ => ("GET", format!("/items/{number}"), "everything"),
    };
    let status = match number % 50 {
        0 => 404,
        1 if kind == 0 => 401,
        _ => 200,
    };
    let agent = usize::try_from(client).unwrap_or_default() % AGENTS.len();
    let agent = AGENTS.get(agent).copied().unwrap_or_default();
    let time = jiff::Timestamp::from_nanosecond(end.into()).unwrap_or_default();
    let [_, a, b, c] = client.to_be_bytes();
    let took = (end - at) / 1000;
    writeln!(
        out,
        "{{\"timestamp\":\"{time:.6}\",\"level\":\"INFO\",\"client\":\"10.{a}.{b}.{c}\",\
         \"method\":\"{method}\",\"path\":\"{path}\",\"status\":{status},\"route\":\"{route}\",\
         \"decision\":\"allowed\",\"bytes\":1234,\"cost\":1,\"remaining\":19,\"scheme\":\"https\",\
         \"host\":\"www.example.com\",\"version\":\"2\",\"duration_ms\":{}.{:03},\"store_ms\":0.0,\
         \"decided_ns\":{at},\"upstream\":\"10.0.0.5:3000\",\"upstream_status\":{status},\
         \"upstream_ms\":{}.{:03},\"user_agent\":\"{agent}\",\"target\":\"weir::access\"}}",
        took / 1000,
        took % 1000,
        took / 2000,
        took / 2 % 1000,
    )
}
