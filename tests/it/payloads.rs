//! The table of payloads: bytes that a client sends, and what has to come of them.

use std::net::Shutdown;

use crate::support::strict_upstream::{Seen, StrictUpstream};
use crate::support::*;

const TABLE: &str = include_str!("../testdata/payloads.txt");

/// A payload and its verdict, as `payloads.txt` explains them.
#[derive(Debug, Default)]
struct Case {
    name: String,
    payload: Vec<u8>,
    statuses: Vec<u16>,
    connection: String,
    upstream: Vec<Expected>,
}

/// A request as the upstream has to see it.
#[derive(Debug, Default)]
struct Expected {
    /// Method, target and body.
    request: Vec<u8>,
    with: Vec<Vec<u8>>,
    without: Vec<Vec<u8>>,
    trailers: Vec<Vec<u8>>,
}

/// How a payload is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    AtOnce,
    /// On a connection that has served a request.
    BehindAnother,
    ByteByByte,
}

/// Payloads longer than this are not sent byte by byte, which would only take long.
const LONG: usize = 4096;

#[test]
fn each_payload_gets_its_verdict_however_it_is_sent() {
    let upstream = StrictUpstream::start();
    let servers = format!("{{app: {{servers: [\"http://{}\"]}}}}", upstream.address());
    let gateway = Setup::with_upstreams(&servers)
        .key("log: {access: false}")
        .start();
    let cases = table();
    assert!(cases.len() > 200, "{}", cases.len());
    let mut failures = Vec::new();
    for case in &cases {
        for manner in [Manner::AtOnce, Manner::BehindAnother, Manner::ByteByByte] {
            if manner == Manner::ByteByByte && case.payload.len() > LONG {
                continue;
            }
            let outcome = exchange(&gateway, &upstream, case, manner)
                .and_then(|()| case.compare(&upstream.take()));
            if let Err(failure) = outcome {
                failures.push(format!("{} ({manner:?}): {failure}", case.name));
                upstream.take();
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// Sends the payload, and compares what comes back.
fn exchange(
    gateway: &Gateway,
    upstream: &StrictUpstream,
    case: &Case,
    manner: Manner,
) -> Result<(), String> {
    let mut client = gateway.client();
    if manner == Manner::BehindAnother {
        assert_eq!(client.send(&get("/before")).status, 200);
        upstream.take();
    }
    let pieces = match manner {
        Manner::ByteByByte => 1,
        _ => case.payload.len(),
    };
    for piece in case.payload.chunks(pieces) {
        // The gateway may have closed the connection already.
        if client.write(piece).is_err() {
            break;
        }
    }
    let connection = case.connection.as_str();
    if connection == "cut" {
        let _ = client.stream().shutdown(Shutdown::Write);
    }
    for (number, expected) in case.statuses.iter().enumerate() {
        let asked = case.upstream.get(number).map(|asked| &asked.request[..]);
        let is_head = asked.is_some_and(|asked| asked.starts_with(b"HEAD "));
        let response = client.read(if is_head { "HEAD" } else { "GET" });
        let response = response.map_err(|error| format!("response {number}: {error}"))?;
        if response.status != *expected {
            return Err(format!("response {number}: {}", response.status));
        }
    }
    if connection == "kept" {
        return match client.try_send(&get("/probe")) {
            Ok(response) if response.status == 200 => Ok(()),
            other => Err(format!("the connection is not kept: {other:?}")),
        };
    }
    if connection == "uploading" {
        let _ = client.write(&get("/probe").bytes());
        let _ = client.stream().shutdown(Shutdown::Write);
    }
    match client.is_closed() {
        true => Ok(()),
        false => Err("the connection is not closed".to_owned()),
    }
}

impl Case {
    /// Compares what the upstream saw. A connection that is kept has sent a probe, which has to
    /// arrive as a request of its own.
    fn compare(&self, seen: &[Seen]) -> Result<(), String> {
        if let Some(complaint) = seen.iter().find_map(|seen| seen.complaint.as_ref()) {
            return Err(format!("the upstream complains of {complaint}"));
        }
        let seen = match (self.connection.as_str(), seen.split_last()) {
            ("kept", Some((probe, before))) if probe.line == b"GET /probe" => before,
            ("kept", _) => return Err(format!("no probe in {seen:?}")),
            _ => seen,
        };
        let requests: Vec<_> = seen.iter().map(request_and_body).collect();
        let expected: Vec<_> = self.upstream.iter().map(|seen| &seen.request[..]).collect();
        if requests != expected {
            let requests = requests.iter().map(|request| request.escape_ascii());
            let requests: Vec<_> = requests.map(|request| request.to_string()).collect();
            return Err(format!("the upstream saw {requests:?}"));
        }
        for (expected, seen) in self.upstream.iter().zip(seen) {
            expected.compare_headers(seen)?;
        }
        Ok(())
    }
}

impl Expected {
    fn compare_headers(&self, seen: &Seen) -> Result<(), String> {
        for line in &self.with {
            let colon = line.windows(2).position(|pair| pair == b": ").unwrap();
            let (name, value) = (&line[..colon], &line[colon + 2..]);
            if !seen.values(name).any(|other| other == value) {
                return Err(format!("no {}: {seen:?}", line.escape_ascii()));
            }
        }
        if let Some(name) = self.without.iter().find(|name| seen.has_header(name)) {
            return Err(format!("{}: {seen:?}", name.escape_ascii()));
        }
        match seen.trailers == self.trailers {
            true => Ok(()),
            false => Err(format!("other trailers: {seen:?}")),
        }
    }
}

fn request_and_body(seen: &Seen) -> Vec<u8> {
    match seen.body.as_slice() {
        [] => seen.line.clone(),
        body => [&seen.line, &b" "[..], body].concat(),
    }
}

/// The cases of the table.
fn table() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut sections = TABLE.split("\n=== ");
    sections.next().expect("what explains the table");
    for section in sections {
        let (name, section) = section.split_once('\n').expect("a payload");
        let (payload, verdict) = section.split_once("---\n").expect("a verdict");
        let mut case = Case {
            name: name.to_owned(),
            payload: payload.lines().flat_map(payload_line).collect(),
            ..Case::default()
        };
        let lines = verdict.lines();
        for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
            case.add_verdict(line);
        }
        let connections = ["kept", "closed", "uploading", "cut"];
        assert!(connections.contains(&case.connection.as_str()), "{case:?}");
        cases.push(case);
    }
    cases
}

fn payload_line(line: &str) -> Vec<u8> {
    match line.strip_suffix('\\') {
        Some(line) => unescape(line),
        None => [unescape(line), b"\r\n".to_vec()].concat(),
    }
}

impl Case {
    fn add_verdict(&mut self, line: &str) {
        let (key, value) = line.split_once(": ").expect("a key and a value");
        match key {
            "client" => {
                let mut words: Vec<_> = value.split(' ').collect();
                words
                    .pop()
                    .expect("a connection")
                    .clone_into(&mut self.connection);
                self.statuses = words.iter().map(|word| word.parse().unwrap()).collect();
                return;
            }
            "upstream" => {
                self.upstream.push(Expected {
                    request: unescape(value),
                    ..Expected::default()
                });
                return;
            }
            _ => {}
        }
        let expected = self.upstream.last_mut().expect("a request");
        let list = match key.trim_start() {
            "with" => &mut expected.with,
            "without" => &mut expected.without,
            "trailer" => &mut expected.trailers,
            _ => panic!("{line}"),
        };
        list.push(unescape(value));
    }
}

/// The bytes that a text stands for.
fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some((plain, escape)) = rest.split_once('\\') {
        bytes.extend_from_slice(plain.as_bytes());
        let (kind, after) = escape.split_at(1);
        rest = after;
        match kind {
            "r" => bytes.push(b'\r'),
            "n" => bytes.push(b'\n'),
            "t" => bytes.push(b'\t'),
            "0" => bytes.push(0),
            "\\" => bytes.push(b'\\'),
            "x" => {
                let (digits, after) = rest.split_at(2);
                bytes.push(u8::from_str_radix(digits, 16).expect("two digits"));
                rest = after;
            }
            "{" => {
                let (repeated, after) = rest.split_once('}').expect("a closing brace");
                let (times, repeated) = repeated.split_once(' ').expect("a number and a text");
                bytes.extend(unescape(repeated).repeat(times.parse().expect("a number")));
                rest = after;
            }
            _ => panic!("an escape that does not exist: {text}"),
        }
    }
    bytes.extend_from_slice(rest.as_bytes());
    bytes
}
