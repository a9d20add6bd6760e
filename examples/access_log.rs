//! Writes an access log as Weir would, to measure `weir replay`: requests of many honest clients and
//! of a few that are not, over an hour, in the order in which they ended.
//!
//! `cargo run --release --example access_log -- 10000000 > access.log`

use std::io::{self, BufWriter, Write};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const START: u64 = 1_795_255_200_000_000_000;
const HOUR: u64 = 3_600_000_000_000;
const CLIENTS: u32 = 100_000;

fn main() -> io::Result<()> {
    let requests: u64 = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .unwrap_or(100_000);
    let mut random = StdRng::seed_from_u64(1);
    let mut out = BufWriter::with_capacity(1 << 20, io::stdout().lock());
    // Requests that have come and not ended: each line is written at the end of its request.
    let mut pending = std::collections::BinaryHeap::new();
    for number in 0..requests {
        let at = START + HOUR / requests * number + random.random_range(0..1000);
        let micros = match random.random_range(0..1000_u32) {
            0 => random.random_range(1_000_000..20_000_000_u64),
            _ => random.random_range(500..200_000),
        };
        // One request of a hundred is of one of ten clients that send far too many.
        let client = match random.random_range(0..100_u32) {
            0 => random.random_range(0..10),
            _ => random.random_range(10..CLIENTS),
        };
        pending.push(std::cmp::Reverse((
            at + micros * 1000,
            at,
            client,
            number % 97,
        )));
        while let Some(std::cmp::Reverse((end, ..))) = pending.peek()
            && *end <= at
        {
            write_next(&mut out, &mut pending)?;
        }
    }
    while !pending.is_empty() {
        write_next(&mut out, &mut pending)?;
    }
    out.flush()
}

type Pending = std::collections::BinaryHeap<std::cmp::Reverse<(u64, u64, u32, u64)>>;

fn write_next(out: &mut impl Write, pending: &mut Pending) -> io::Result<()> {
    let Some(std::cmp::Reverse((end, at, client, page))) = pending.pop() else {
        return Ok(());
    };
    let time = jiff::Timestamp::from_nanosecond(end.into()).unwrap_or_default();
    let [_, a, b, c] = client.to_be_bytes();
    let took = (end - at) / 1000;
    writeln!(
        out,
        "{{\"timestamp\":\"{time:.6}\",\"level\":\"INFO\",\"client\":\"10.{a}.{b}.{c}\",\"method\":\"GET\",\
         \"path\":\"/items/{page}\",\"status\":200,\"route\":\"everything\",\"decision\":\"allowed\",\
         \"bytes\":1234,\"cost\":1,\"remaining\":19,\"scheme\":\"https\",\"host\":\"www.example.com\",\
         \"version\":\"2\",\"duration_ms\":{}.{:03},\"store_ms\":0.0,\"decided_ns\":{at},\
         \"upstream\":\"10.0.0.5:3000\",\"upstream_status\":200,\"upstream_ms\":{}.{:03},\
         \"user_agent\":\"Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\",\
         \"target\":\"weir::access\"}}",
        took / 1000,
        took % 1000,
        took / 2000,
        took / 2 % 1000,
    )
}
