//! The forms of access logs: Weir's own, and those of other servers.

mod combined;
mod json;
mod scalar;
mod time;
mod weir;

use std::str::FromStr;

use self::combined::Combined;
use self::weir::WeirLog;
use super::line::{Line, Names, Wants};
use crate::time::Timestamp;

const SECOND: u64 = 1_000_000_000;

/// The form of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Weir's own, in JSON.
    Weir,
    /// The combined log format of Apache and nginx, or the common one.
    Combined,
    /// nginx's, in a JSON of the operator's.
    NginxJson,
    /// Caddy's.
    Caddy,
    /// Traefik's, in JSON.
    Traefik,
}

/// What a line is.
#[derive(Debug)]
pub enum Parsed {
    /// A request.
    Request(Line),
    /// A line of the log that is not about a request.
    Other,
    /// A line that is not of this form.
    Malformed(&'static str),
}

impl Format {
    /// All of them, with their names.
    pub const ALL: [(&'static str, Self); 5] = [
        ("weir", Self::Weir),
        ("combined", Self::Combined),
        ("nginx-json", Self::NginxJson),
        ("caddy", Self::Caddy),
        ("traefik", Self::Traefik),
    ];

    /// The name.
    pub fn name(self) -> &'static str {
        let mut all = Self::ALL.iter();
        all.find(|(_, format)| *format == self)
            .map_or("", |(name, _)| name)
    }

    /// The form of a log whose first line is this; none if it is of none of them.
    pub fn guess(line: &[u8]) -> Option<Self> {
        let names = Names::default();
        let is_of = |format: Self| {
            let mut parser = format.parser(&names, Wants::default());
            matches!(parser.parse(line), Parsed::Request(_))
        };
        // nginx's names are common ones, so its form comes last.
        let all = [
            Self::Weir,
            Self::Combined,
            Self::Caddy,
            Self::Traefik,
            Self::NginxJson,
        ];
        all.into_iter().find(|format| is_of(*format))
    }

    /// Whether it has this header of requests.
    pub fn has_header(self, name: &str) -> bool {
        // Caddy writes REDACTED in place of what is secret.
        const SECRET: [&str; 3] = ["authorization", "cookie", "proxy-authorization"];
        match self {
            Self::Caddy => !SECRET.contains(&name),
            Self::Weir => matches!(name, "host" | "user-agent" | "referer" | "x-request-id"),
            _ => matches!(name, "host" | "user-agent" | "referer"),
        }
    }

    /// What parses its lines.
    pub fn parser(self, names: &Names, wants: Wants) -> Parser<'_> {
        match self {
            Self::Weir => Parser::Weir(WeirLog { names, wants }),
            Self::Combined => Parser::Combined(Combined::new(wants)),
            Self::NginxJson => Parser::Json(json::nginx, wants),
            Self::Caddy => Parser::Json(json::caddy, wants),
            Self::Traefik => Parser::Json(json::traefik, wants),
        }
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut all = Self::ALL.iter();
        let found = all.find(|(name, _)| *name == text);
        found.map(|(_, format)| *format).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|(name, _)| *name).collect();
            format!("not a form of logs; write one of {}", names.join(", "))
        })
    }
}

/// Parses lines of one form.
#[derive(Debug)]
pub enum Parser<'n> {
    Weir(WeirLog<'n>),
    Combined(Combined),
    Json(fn(&str, Wants) -> Result<Parsed, &'static str>, Wants),
}

impl Parser<'_> {
    /// Parses a line, which has no line break.
    pub fn parse(&mut self, line: &[u8]) -> Parsed {
        match self {
            Self::Weir(weir) => weir.parse(line),
            Self::Combined(combined) => combined.parse(line),
            Self::Json(..) if line.trim_ascii().is_empty() => Parsed::Other,
            Self::Json(parse, wants) => match str::from_utf8(line) {
                Ok(line) => parse(line, *wants).unwrap_or_else(Parsed::Malformed),
                Err(_) => Parsed::Malformed("it is not UTF-8"),
            },
        }
    }

    /// Whether all times of these bytes are of whole seconds.
    pub fn is_coarse(&mut self, lines: &[u8]) -> bool {
        let mut lines = lines.split(|byte| *byte == b'\n');
        lines.all(|line| match self.parse(line) {
            Parsed::Request(line) => line.ended.as_nanos().is_multiple_of(SECOND),
            _ => true,
        })
    }

    /// The time of the first request of these bytes, by which files are put in order.
    pub fn first_time(&mut self, lines: &[u8]) -> Option<Timestamp> {
        let mut lines = lines.split(|byte| *byte == b'\n');
        lines.find_map(|line| match self.parse(line) {
            Parsed::Request(line) => Some(line.ended),
            _ => None,
        })
    }
}
