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
#[cfg(feature = "http3")]
mod http3;
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
use report::Report;
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
    if options.http3 > 0 {
        return over_http3(&options);
    }
    let idle = link::open_idle(&options, &dialler)
        .map_err(|error| format!("idle connections: {error}"))?;
    let mut load =
        Load::connect(&options, &dialler).map_err(|error| format!("connect: {error}"))?;
    follow(&mut load, &options)?;
    drop(idle);
    Ok(())
}

#[cfg(feature = "http3")]
fn over_http3(options: &Options) -> Result<(), String> {
    follow(&mut http3::Load::connect(options)?, options)
}

#[cfg(not(feature = "http3"))]
fn over_http3(_: &Options) -> Result<(), String> {
    Err("it was built without the feature `http3`".into())
}

/// What a load can be told to do.
trait Phases {
    /// Every connection, or stream of one, sends its next request when it has the answer to the
    /// last.
    fn closed(&mut self, span: Duration) -> Result<Report, String>;

    /// As `closed`, until a number of requests has been sent.
    fn count(&mut self, requests: u64) -> Result<Report, String>;

    /// The requests go out at a fixed rate, and wait for a connection when none is free.
    fn open(&mut self, span: Duration, rate: f64) -> Result<Report, String>;
}

fn follow(load: &mut dyn Phases, options: &Options) -> Result<(), String> {
    load.closed(options.warm_up)?;
    say("ready");
    for line in stdin().lock().lines() {
        let line = line.map_err(|error| error.to_string())?;
        say(&obey(load, &line)?);
    }
    Ok(())
}

fn obey(load: &mut dyn Phases, line: &str) -> Result<String, String> {
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
