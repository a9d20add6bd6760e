//! Sends HTTP requests to a proxy on this machine, and says how it fared.
//!
//! It connects, warms up, and prints `ready`. Then it takes commands on standard input and answers
//! each with a line of JSON, so that the caller can read the proxy's CPU time just before and
//! after:
//!
//! - `closed SECONDS`: each connection sends its next request when the last one is answered;
//! - `count REQUESTS`: the same, until so many requests have been sent;
//! - `open SECONDS RATE`: so many requests a second, each at its time, whether the others are
//!   answered or not. Latency counts from the time that a request was meant to be sent at.
//!
//! With `--reconnect` each request goes over a connection of its own, and its latency counts from
//! before that is opened.

mod histogram;
mod http1;
mod http2;
mod link;
mod options;
mod report;
mod response;
mod run;
mod wire;

use std::io::{BufRead, Write, stdin, stdout};
use std::process::ExitCode;
use std::time::Duration;

use options::Options;
use run::Load;
use wire::Dialler;

fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weir-load: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> Result<(), String> {
    let options = Options::parse(std::env::args().skip(1))?;
    let dialler = Dialler::new(&options)?;
    let idle = link::open_idle(&options, &dialler)
        .map_err(|error| format!("idle connections: {error}"))?;
    let mut load =
        Load::connect(&options, &dialler).map_err(|error| format!("connect: {error}"))?;
    load.closed(options.warm_up)?;
    say("ready");
    for line in stdin().lock().lines() {
        let line = line.map_err(|error| error.to_string())?;
        say(&obey(&mut load, &line)?);
    }
    drop(idle);
    Ok(())
}

fn obey(load: &mut Load, line: &str) -> Result<String, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let report = match words.as_slice() {
        ["closed", seconds] => load.closed(span(seconds)?)?,
        ["count", requests] => load.count(options::number(requests)?)?,
        ["open", seconds, rate] => load.open(span(seconds)?, options::number(rate)?)?,
        _ => return Err(format!("unknown command: {line}")),
    };
    Ok(report.to_json())
}

fn span(seconds: &str) -> Result<Duration, String> {
    Duration::try_from_secs_f64(options::number(seconds)?).map_err(|error| error.to_string())
}

fn say(line: &str) {
    println!("{line}");
    // Without a reader there is nothing left to do, and the next read says so.
    let _ = stdout().flush();
}
