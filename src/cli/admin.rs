//! `weir top`, `weir bucket`, `weir ban` and `weir override`: the admin API for people.

use std::fmt::Write;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value, json};

use super::findings::{self, Finding};
use crate::app::{AdminClient, AdminError};
use crate::config::HumanDuration;

/// The variable that has the token where no file is named.
const TOKEN_VARIABLE: &str = "WEIR_ADMIN_TOKEN";

/// How many subjects are listed where the command does not say.
const COUNT: u32 = 20;

/// The most items of a page.
const LARGEST_PAGE: usize = 1000;

/// Where the gateway is.
#[derive(Args, Debug)]
pub(super) struct AdminArgs {
    /// The admin listener, in place of the one in the configuration
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<SocketAddr>,

    /// The file with the admin listener's token, in place of the variable WEIR_ADMIN_TOKEN
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// Print the answer of the admin API as it is
    #[arg(long)]
    json: bool,
}

/// The subjects to list, and how.
#[derive(Args, Debug)]
pub(super) struct TopArgs {
    #[command(flatten)]
    query: TopQuery,

    /// Print the list once and end, also on a terminal
    #[arg(long)]
    once: bool,

    #[command(flatten)]
    admin: AdminArgs,
}

/// Which subjects to list.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct TopQuery {
    /// Of this limit alone
    #[arg(long, value_name = "NAME")]
    pub(super) limit: Option<String>,

    /// What comes first
    #[arg(long, value_enum, default_value_t)]
    pub(super) sort: Sort,

    /// Over how long
    #[arg(long, value_enum, default_value_t)]
    pub(super) period: Period,

    /// How many; by default 20, and in the live view 100
    #[arg(long, value_name = "NUMBER")]
    pub(super) count: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Sort {
    /// Those with most requests
    #[default]
    Rate,
    /// Those with most denials
    Denied,
    /// Those with least left, which are near their limit or over it
    Remaining,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Period {
    #[default]
    Minute,
    Hour,
}

/// What to do with a bucket.
#[derive(Debug, Subcommand)]
pub(super) enum BucketCommand {
    /// List the known subjects of a limit, each with what it has left
    List {
        /// The limit
        limit: String,

        #[command(flatten)]
        list: ListArgs,
    },
    /// Show what a subject has left, without spending from it
    Get(BucketArgs),
    /// Make it full
    Reset(BucketArgs),
    /// Give units back
    Refund {
        /// How many
        #[arg(long, value_name = "UNITS", default_value_t = 1)]
        cost: u64,

        #[command(flatten)]
        bucket: BucketArgs,
    },
}

/// How much to list.
#[derive(Args, Debug)]
pub(super) struct ListArgs {
    /// How many at most
    #[arg(long, value_name = "NUMBER", default_value_t = 1000)]
    count: usize,

    #[command(flatten)]
    admin: AdminArgs,
}

/// A bucket.
#[derive(Args, Debug)]
pub(super) struct BucketArgs {
    /// The limit
    limit: String,

    /// The subject, as an override would name it
    subject: String,

    #[command(flatten)]
    admin: AdminArgs,
}

/// What to do with a ban.
#[derive(Debug, Subcommand)]
pub(super) enum BanCommand {
    /// List who is banned, why, and for how long
    List(ListArgs),
    /// Show a subject's ban, strikes and offences
    Get(BanArgs),
    /// Ban a subject, or every address of a network, from now on
    Add {
        /// For how long, such as 2h, or `forever`; by default as long as a first ban
        #[arg(long = "for", value_name = "DURATION", conflicts_with = "until")]
        length: Option<String>,

        /// Until when, such as 2026-12-31
        #[arg(long, value_name = "DATE")]
        until: Option<String>,

        /// What to remember of it
        #[arg(long, value_name = "TEXT")]
        comment: Option<String>,

        #[command(flatten)]
        ban: BanArgs,
    },
    /// Delete the ban, the strikes and the offences
    Lift(BanArgs),
}

/// A ban of a subject.
#[derive(Args, Debug)]
pub(super) struct BanArgs {
    /// The ban, as the configuration names it
    ban: String,

    /// The subject, or a network such as 203.0.113.0/24
    subject: String,

    #[command(flatten)]
    admin: AdminArgs,
}

/// What to do with overrides.
#[derive(Debug, Subcommand)]
pub(super) enum OverrideCommand {
    /// List the overrides of files and of the admin API, and which of them are in force
    List {
        /// Of this limit alone
        limit: Option<String>,

        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Set an override, on all gateways that share the store, in place of one for the same id
    Set(Box<SetOverride>),
    /// Delete an override that was set so; one of a file for the same id applies again
    Delete(OverrideArgs),
}

/// The parameters of an override.
#[derive(Args, Debug)]
pub(super) struct SetOverride {
    #[command(flatten)]
    target: OverrideArgs,

    /// How much is let through at once
    #[arg(long, value_name = "UNITS")]
    burst: Option<u64>,

    /// How much comes back each period
    #[arg(long, value_name = "UNITS")]
    count: Option<u64>,

    /// The period, such as 1m
    #[arg(long, value_name = "DURATION")]
    period: Option<String>,

    /// How many requests may be in flight, for a limit on those
    #[arg(long, value_name = "NUMBER")]
    in_flight: Option<u64>,

    /// Why it is there
    #[arg(long, value_name = "TEXT")]
    comment: Option<String>,

    /// When it ends: a day such as 2026-12-31, or a moment such as 2026-12-31T18:00:00Z
    #[arg(long, value_name = "DATE", conflicts_with = "length")]
    until: Option<String>,

    /// How long it lasts, such as 2h
    #[arg(long = "for", value_name = "DURATION")]
    length: Option<String>,
}

/// An override.
#[derive(Args, Debug)]
pub(super) struct OverrideArgs {
    /// The limit
    limit: String,

    /// Whom it is for, as in overrides.yaml: one subject, a network, or a text with a `*`
    id: String,

    #[command(flatten)]
    admin: AdminArgs,
}

/// What is asked of the admin API.
struct Call {
    method: Method,
    path: String,
    body: Option<Value>,
}

impl Call {
    fn new(method: Method, path: String) -> Self {
        Self {
            method,
            path,
            body: None,
        }
    }

    fn with_body(mut self, body: Value) -> Self {
        self.body = Some(body);
        self
    }
}

impl AdminArgs {
    fn client(&self, config: &Path) -> Result<AdminClient, AdminError> {
        AdminClient::new(config, self.admin, self.token()?)
    }

    fn call(&self, config: &Path, call: Call) -> Result<Value, AdminError> {
        let client = self.client(config)?;
        client.ask(call.method, &call.path, call.body)
    }

    /// Lists what stands under `items` in the pages of a path, up to `count`, as one page.
    fn list(
        &self,
        config: &Path,
        path: &str,
        items: &str,
        count: usize,
    ) -> Result<Value, AdminError> {
        let client = AdminClient::new(config, self.admin, self.token()?)?;
        let (mut listed, mut cursor) = (Vec::new(), String::new());
        loop {
            let page_count = (count - listed.len()).clamp(1, LARGEST_PAGE);
            let path = format!("{path}?count={page_count}{cursor}");
            let mut page = client.ask(Method::GET, &path, None)?;
            if let Some(found) = page.get_mut(items).and_then(Value::as_array_mut) {
                listed.append(found);
            }
            match page.get("next").and_then(Value::as_str) {
                Some(next) if listed.len() < count => cursor = format!("&cursor={next}"),
                _ => {
                    listed.truncate(count);
                    if let Some(members) = page.as_object_mut() {
                        members.insert(items.to_owned(), listed.into());
                    }
                    return Ok(page);
                }
            }
        }
    }

    fn token(&self) -> Result<Option<String>, AdminError> {
        let Some(file) = &self.token_file else {
            return Ok(std::env::var(TOKEN_VARIABLE).ok());
        };
        match fs::read_to_string(file) {
            Ok(token) => Ok(Some(token.trim().to_owned())),
            Err(cause) => Err(AdminError::Refused(format!("{}: {cause}", file.display()))),
        }
    }

    fn print(&self, answer: &Value, text: impl FnOnce(&Value) -> String) -> String {
        match self.json {
            true => answer.to_string(),
            false => text(answer),
        }
    }
}

impl TopArgs {
    /// Whether the list is to be live where that is possible.
    pub(super) fn may_be_live(&self) -> bool {
        !self.once && !self.admin.json
    }

    /// What to ask, and whom.
    pub(super) fn live(&self, config: &Path) -> Result<(AdminClient, TopQuery), AdminError> {
        Ok((self.admin.client(config)?, self.query.clone()))
    }

    /// Lists the subjects once, below what needs attention.
    pub(super) fn run(&self, config: &Path) -> Result<String, AdminError> {
        let client = self.admin.client(config)?;
        let answer = client.ask(Method::GET, &self.query.path(COUNT), None)?;
        if self.admin.json {
            return Ok(answer.to_string());
        }
        // A gateway of another version may not say what needs attention.
        let found = client.ask(Method::GET, findings::PATH, None);
        let found = found.unwrap_or_default();
        let found = Finding::all(&found, self.query.limit.as_deref());
        Ok(findings::paragraph(&found) + &top_table(&answer))
    }
}

impl TopQuery {
    /// What the admin API is asked, for as many subjects if the count is not given.
    pub(super) fn path(&self, count: u32) -> String {
        let sort = match self.sort {
            Sort::Rate => "rate",
            Sort::Denied => "denied",
            Sort::Remaining => "remaining",
        };
        let period = match self.period {
            Period::Minute => "minute",
            Period::Hour => "hour",
        };
        let count = self.count.unwrap_or(count);
        let mut path = format!("/v1/top?sort={sort}&period={period}&count={count}");
        if let Some(limit) = &self.limit {
            path.push_str("&limit=");
            path.push_str(&encoded(limit));
        }
        path
    }
}

impl BucketCommand {
    /// Does it, and shows the bucket.
    pub(super) fn run(&self, config: &Path) -> Result<String, AdminError> {
        let (bucket, call) = match self {
            Self::List { limit, list } => {
                let path = format!("/v1/buckets/{}", encoded(limit));
                let buckets = list.admin.list(config, &path, "buckets", list.count)?;
                return Ok(list.admin.print(&buckets, bucket_table));
            }
            Self::Get(bucket) => (bucket, Call::new(Method::GET, bucket.path())),
            Self::Reset(bucket) => (bucket, Call::new(Method::DELETE, bucket.path())),
            Self::Refund { cost, bucket } => {
                let call = Call::new(Method::POST, bucket.path() + "/refund");
                (bucket, call.with_body(json!({ "cost": cost })))
            }
        };
        let answer = bucket.admin.call(config, call)?;
        Ok(bucket.admin.print(&answer, lines))
    }
}

impl BucketArgs {
    fn path(&self) -> String {
        let (limit, subject) = (encoded(&self.limit), encoded(&self.subject));
        format!("/v1/buckets/{limit}/{subject}")
    }
}

impl BanCommand {
    /// Does it, and shows the ban.
    pub(super) fn run(&self, config: &Path) -> Result<String, AdminError> {
        let (ban, call) = match self {
            Self::List(list) => {
                let bans = list.admin.list(config, "/v1/bans", "bans", list.count)?;
                return Ok(list.admin.print(&bans, ban_table));
            }
            Self::Get(ban) => (ban, Call::new(Method::GET, ban.path())),
            Self::Lift(ban) => (ban, Call::new(Method::DELETE, ban.path())),
            Self::Add {
                length,
                until,
                comment,
                ban,
            } => {
                let members = [("for", length), ("until", until), ("comment", comment)];
                let given = members.into_iter().filter_map(|(name, value)| {
                    let value = value.clone()?;
                    Some((name.to_owned(), Value::from(value)))
                });
                let body: Map<String, Value> = given.collect();
                let call = Call::new(Method::PUT, ban.path());
                let call = match body.is_empty() {
                    true => call,
                    false => call.with_body(body.into()),
                };
                (ban, call)
            }
        };
        let answer = ban.admin.call(config, call)?;
        Ok(ban.admin.print(&answer, lines))
    }
}

impl BanArgs {
    fn path(&self) -> String {
        format!("/v1/bans/{}/{}", encoded(&self.ban), encoded(&self.subject))
    }
}

impl OverrideCommand {
    /// Does it, and shows what it is about.
    pub(super) fn run(&self, config: &Path) -> Result<String, AdminError> {
        match self {
            Self::List { limit, admin } => {
                let mut path = "/v1/overrides".to_owned();
                if let Some(limit) = limit {
                    path.push('/');
                    path.push_str(&encoded(limit));
                }
                let answer = admin.call(config, Call::new(Method::GET, path))?;
                Ok(admin.print(&answer, override_table))
            }
            Self::Set(set) => {
                let call = Call::new(Method::PUT, set.target.path());
                let answer = set.target.admin.call(config, call.with_body(set.body()))?;
                Ok(set.target.admin.print(&answer, lines))
            }
            Self::Delete(target) => {
                let call = Call::new(Method::DELETE, target.path());
                let answer = target.admin.call(config, call)?;
                Ok(target.admin.print(&answer, |answer| match total(answer) {
                    0 => "deleted".to_owned(),
                    _ => format!(
                        "deleted; what a file says applies\n{}",
                        override_table(answer)
                    ),
                }))
            }
        }
    }
}

impl SetOverride {
    fn body(&self) -> Value {
        let members = [
            ("burst", self.burst.map(Value::from)),
            ("count", self.count.map(Value::from)),
            ("period", self.period.clone().map(Value::from)),
            ("in_flight", self.in_flight.map(Value::from)),
            ("comment", self.comment.clone().map(Value::from)),
            ("until", self.until.clone().map(Value::from)),
            ("for", self.length.clone().map(Value::from)),
        ];
        let written = members
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?)));
        Value::Object(written.collect())
    }
}

impl OverrideArgs {
    fn path(&self) -> String {
        format!(
            "/v1/overrides/{}/{}",
            encoded(&self.limit),
            encoded(&self.id)
        )
    }
}

/// A segment of a path, or a value of a query.
fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// The subjects, a line each.
fn top_table(answer: &Value) -> String {
    let heads = [
        "LIMIT",
        "SUBJECT",
        "REQUESTS",
        "DENIED",
        "PER SECOND",
        "USED",
    ];
    let rows = rows(answer, "subjects", |subject| {
        let used = subject["used"].as_f64().unwrap_or_default() * 100.0;
        [
            shown(&subject["limit"]),
            shown(name_or_id(subject)),
            subject["requests"].to_string(),
            subject["denied"].to_string(),
            subject["rate"].to_string(),
            format!("{used:.0}%"),
        ]
    });
    match rows.is_empty() {
        true => "no subjects".to_owned(),
        false => table(heads, 2, &rows),
    }
}

/// The name of a subject's account where that is known, and else its id.
pub(super) fn name_or_id(subject: &Value) -> &Value {
    match &subject["name"] {
        Value::Null => &subject["subject"],
        name => name,
    }
}

/// The buckets, a line each.
fn bucket_table(answer: &Value) -> String {
    let heads = ["SUBJECT", "REMAINING", "BURST", "FULL IN"];
    let rows = rows(answer, "buckets", |bucket| {
        let burst = bucket.get("burst").or(bucket.get("most"));
        [
            shown(&bucket["subject"]),
            bucket["remaining"].to_string(),
            burst.map_or_else(String::new, Value::to_string),
            bucket["reset_in"].as_f64().map_or_else(String::new, span),
        ]
    });
    match rows.is_empty() {
        true => "no subjects".to_owned(),
        false => table(heads, 1, &rows) + more(answer),
    }
}

/// The bans, a line each.
fn ban_table(answer: &Value) -> String {
    let heads = ["BAN", "SUBJECT", "SINCE", "WHY", "ENDS IN"];
    let rows = rows(answer, "bans", |ban| {
        [
            shown(&ban["ban"]),
            shown(&ban["subject"]),
            shown(&ban["since"]),
            why(&ban["why"]),
            ban["ends_in"].as_f64().map_or("never".to_owned(), span),
        ]
    });
    match rows.is_empty() {
        true => "no bans".to_owned(),
        false => table(heads, 4, &rows) + more(answer),
    }
}

/// The cause of a ban, in words.
fn why(cause: &Value) -> String {
    let by = cause["by"].as_str().unwrap_or_default();
    if by == "operator" {
        let comment = match &cause["comment"] {
            Value::String(comment) => format!(": {}", comment.escape_debug()),
            _ => String::new(),
        };
        return shown(&cause["name"]) + &comment;
    }
    let what = match &cause[by] {
        Value::String(what) => what.escape_debug().to_string(),
        what => what.to_string(),
    };
    format!("{by} {what}, strikes: {}", cause["strikes"])
}

/// Says that there are others.
fn more(answer: &Value) -> &'static str {
    match answer["next"].is_null() {
        true => "",
        false => "and others; see --count\n",
    }
}

fn span(seconds: f64) -> String {
    // A duration has no form for parts of a second that is as short.
    let seconds = Duration::try_from_secs_f64(seconds.ceil());
    let span = seconds.map(|span| HumanDuration(span).to_string());
    span.unwrap_or_default()
}

fn rows<const N: usize>(
    answer: &Value,
    items: &str,
    row: impl Fn(&Value) -> [String; N],
) -> Vec<[String; N]> {
    let items = answer[items].as_array();
    items.into_iter().flatten().map(row).collect()
}

/// How many overrides an answer is about.
fn total(answer: &Value) -> u64 {
    answer["total"].as_u64().unwrap_or_default()
}

/// The overrides, a line each.
fn override_table(answer: &Value) -> String {
    let none = Vec::new();
    let overrides = answer["overrides"].as_array().unwrap_or(&none);
    if overrides.is_empty() {
        return "no overrides".to_owned();
    }
    let rows = overrides.iter().map(|listed| {
        let number = |name: &str| match &listed[name] {
            Value::Null => "-".to_owned(),
            number => number.to_string(),
        };
        let in_flight = &listed["in_flight"];
        let rate = match in_flight.is_null() {
            true => format!(
                "{}, {} per {}",
                number("burst"),
                number("count"),
                shown(&listed["period"])
            ),
            false => format!("{in_flight} in flight"),
        };
        let state = match listed["in_force"].as_bool() {
            Some(true) => "in force".to_owned(),
            _ => format!("not: {}", shown(&listed["reason"])),
        };
        let by = match listed["origin"].as_str() {
            Some("file") => "a file".to_owned(),
            _ => shown(&listed["set_by"]),
        };
        [
            shown(&listed["limit"]),
            shown(&listed["id"]),
            rate,
            shown(&listed["until"]),
            by,
            state,
            shown(&listed["comment"]),
        ]
    });
    let heads = [
        "LIMIT",
        "ID",
        "BURST, RATE",
        "UNTIL",
        "SET BY",
        "STATE",
        "COMMENT",
    ];
    let mut text = table(heads, heads.len(), &rows.collect::<Vec<_>>());
    let listed = overrides.len() as u64;
    if total(answer) > listed {
        let rest = total(answer) - listed;
        // Writing to a string never fails.
        let _ = writeln!(
            text,
            "... and {rest} more; name a limit, or ask the admin API by pages"
        );
    }
    text
}

/// A text as a terminal may show it.
fn shown(value: &Value) -> String {
    match value.as_str() {
        Some(text) => text.escape_debug().to_string(),
        None => "-".to_owned(),
    }
}

/// Rows under their heads, of which the first `texts` columns are to the left.
fn table<const N: usize>(heads: [&str; N], texts: usize, rows: &[[String; N]]) -> String {
    let mut table = String::new();
    for row in std::iter::once(&heads.map(str::to_owned)).chain(rows) {
        let mut line = String::new();
        for (column, (cell, head)) in row.iter().zip(heads).enumerate() {
            let cells = rows.iter().filter_map(|row| row.get(column));
            let width = cells.map(|cell| cell.chars().count()).max();
            let width = width.unwrap_or_default().max(head.len());
            let gap = if column == 0 { "" } else { "  " };
            // Writing to a string never fails.
            let _ = match column < texts {
                true => write!(line, "{gap}{cell:width$}"),
                false => write!(line, "{gap}{cell:>width$}"),
            };
        }
        table.push_str(line.trim_end());
        table.push('\n');
    }
    table
}

/// The members of an object, a line each; of one within it, by its name and theirs.
fn lines(answer: &Value) -> String {
    let mut text = String::new();
    write_lines(&mut text, "", answer);
    text
}

fn write_lines(text: &mut String, prefix: &str, value: &Value) {
    let Some(members) = value.as_object() else {
        return;
    };
    for (name, value) in members {
        // Writing to a string never fails.
        let _ = match value {
            Value::Null => Ok(()),
            Value::Object(_) => {
                write_lines(text, &format!("{prefix}{name}."), value);
                Ok(())
            }
            Value::String(value) => writeln!(text, "{prefix}{name}: {}", value.escape_debug()),
            value => writeln!(text, "{prefix}{name}: {value}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_have_a_slash_or_a_question_mark_stay_one_segment() {
        assert_eq!(encoded("2001:db8::/64"), "2001%3Adb8%3A%3A%2F64");
        assert_eq!(encoded("a?b&c=%"), "a%3Fb%26c%3D%25");
    }

    #[test]
    fn the_columns_of_the_table_stand_under_each_other() {
        let subject = |limit: &str, subject: &str, requests: u32, rate: f64| {
            json!({
                "limit": limit, "subject": subject, "requests": requests,
                "denied": 0, "rate": rate, "used": 0.5,
            })
        };
        let subjects = [
            subject("Logins", "203.0.113.9", 1234, 20.57),
            subject("SearchesPerAccount", "a\u{1b}[2J", 5, 0.08),
        ];
        insta::assert_snapshot!(top_table(&json!({ "subjects": subjects })), @r"
        LIMIT               SUBJECT      REQUESTS  DENIED  PER SECOND  USED
        Logins              203.0.113.9      1234       0       20.57   50%
        SearchesPerAccount  a\u{1b}[2J          5       0        0.08   50%
        ");
        assert_eq!(top_table(&json!({ "subjects": [] })), "no subjects");
    }

    #[test]
    fn bans_and_buckets_are_lines_with_nothing_that_a_terminal_obeys() {
        let ban = |subject: &str, ends_in: Value, why: Value| {
            json!({
                "ban": "abusers", "subject": subject, "since": "2026-11-22T14:00:00Z",
                "ends_in": ends_in, "why": why,
            })
        };
        let limit = json!({"by": "limit", "limit": "Logins", "strikes": 10, "offence": 1});
        let operator = json!({"by": "operator", "name": "alice", "comment": "a\u{1b}[2J"});
        let bans = [
            ban("203.0.113.9", json!(5400.2), limit),
            ban("198.51.100.0/24", Value::Null, operator),
        ];
        insta::assert_snapshot!(ban_table(&json!({"bans": bans, "next": null})), @r"
        BAN      SUBJECT          SINCE                 WHY                        ENDS IN
        abusers  203.0.113.9      2026-11-22T14:00:00Z  limit Logins, strikes: 10  1h30m1s
        abusers  198.51.100.0/24  2026-11-22T14:00:00Z  alice: a\u{1b}[2J            never
        ");
        let bucket = json!({"subject": "a\nb", "remaining": 3, "burst": 20, "reset_in": 60.0});
        let buckets = json!({"buckets": [bucket], "next": "more"});
        insta::assert_snapshot!(bucket_table(&buckets), @r"
        SUBJECT  REMAINING  BURST  FULL IN
        a\nb             3     20       1m
        and others; see --count
        ");
        assert_eq!(ban_table(&json!({"bans": []})), "no bans");
    }

    #[test]
    fn an_objects_members_are_lines_without_those_that_are_null() {
        let answer =
            json!({"limit": "L", "override": {"id": "a\nb", "until": null}, "remaining": 3});
        assert_eq!(
            lines(&answer),
            "limit: L\noverride.id: a\\nb\nremaining: 3\n"
        );
    }
}
