//! `weir top`, `weir bucket` and `weir override`: the admin API for people.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value, json};
use weir_telemetry::{printable_json, printable_lines};

use super::findings::{self, Finding};
use super::tables::{bucket_table, gateway_table, lines, override_table, top_table, total};
use crate::app::{AdminClient, AdminError};

/// The variable that has the token where no file is named.
const TOKEN_VARIABLE: &str = "WEIR_ADMIN_TOKEN";

/// How many subjects are listed where the command does not say.
const COUNT: u32 = 20;

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

    /// Of all gateways that share the Redis, which is the default
    #[arg(long, conflicts_with = "alone")]
    fleet: bool,

    /// Of the gateway that is asked alone
    #[arg(long)]
    pub(super) alone: bool,
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

/// Which state to ask for.
#[derive(Args, Debug)]
pub(super) struct HealthArgs {
    /// Ask whether it is ready as well: its store is within reach, and no drain has begun
    #[arg(long)]
    ready: bool,

    /// The admin listener, in place of the one in the configuration
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<SocketAddr>,
}

/// The gateway to ask for the others.
#[derive(Args, Debug)]
pub(super) struct GatewaysArgs {
    #[command(flatten)]
    admin: AdminArgs,
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

/// A request to the admin API.
pub(super) struct Call {
    method: Method,
    path: String,
    body: Option<Value>,
}

impl Call {
    pub(super) fn new(method: Method, path: String) -> Self {
        Self {
            method,
            path,
            body: None,
        }
    }

    pub(super) fn with_body(mut self, body: Value) -> Self {
        self.body = Some(body);
        self
    }
}

/// An answer in one line, with nothing that a terminal obeys.
fn json_text(answer: &Value) -> String {
    printable_json(&answer.to_string()).into_owned()
}

/// The token for the admin API: that of the file, or of the environment.
pub(super) fn admin_token(file: Option<&Path>) -> Result<Option<String>, AdminError> {
    let Some(file) = file else {
        return Ok(std::env::var(TOKEN_VARIABLE).ok());
    };
    match fs::read_to_string(file) {
        Ok(token) => Ok(Some(token.trim().to_owned())),
        Err(cause) => Err(AdminError::Refused(format!("{}: {cause}", file.display()))),
    }
}

impl AdminArgs {
    fn client(&self, config: &Path) -> Result<AdminClient, AdminError> {
        let token = admin_token(self.token_file.as_deref())?;
        AdminClient::new(config, self.admin, token)
    }

    pub(super) fn call(&self, config: &Path, call: Call) -> Result<Value, AdminError> {
        let client = self.client(config)?;
        client.request(call.method, &call.path, call.body)
    }

    pub(super) fn print(&self, answer: &Value, text: impl FnOnce(&Value) -> String) -> String {
        match self.json {
            true => json_text(answer),
            false => printable_lines(&text(answer)).into_owned(),
        }
    }
}

impl HealthArgs {
    /// Asks for the state; one that is not well is an error.
    pub(super) fn run(&self, config: &Path) -> Result<String, AdminError> {
        let client = AdminClient::new(config, self.admin, None)?;
        let path = if self.ready { "/readyz" } else { "/livez" };
        let (status, text) = client.get_text(path)?;
        match status.is_success() {
            true => Ok(text),
            false => Err(AdminError::Refused(text)),
        }
    }
}

impl TopArgs {
    /// Whether the list may be live.
    pub(super) fn may_be_live(&self) -> bool {
        !self.once && !self.admin.json
    }

    /// The client and the query of a live list.
    pub(super) fn live(&self, config: &Path) -> Result<(AdminClient, TopQuery), AdminError> {
        Ok((self.admin.client(config)?, self.query.clone()))
    }

    /// Lists the subjects once, below what needs attention.
    pub(super) fn run(&self, config: &Path) -> Result<String, AdminError> {
        let client = self.admin.client(config)?;
        let answer = self.query.ask(&client, COUNT)?;
        if self.admin.json {
            return Ok(json_text(&answer));
        }
        let found = findings::ask(&client, !self.query.alone)?;
        let found = Finding::all(&found, self.query.limit.as_deref());
        let text = findings::paragraph(&found) + &top_table(&answer);
        Ok(printable_lines(&text).into_owned())
    }
}

impl GatewaysArgs {
    /// Lists the gateways that share the Redis, and how their configurations differ.
    pub(super) fn run(&self, config: &Path) -> Result<String, AdminError> {
        let call = Call::new(Method::GET, "/v1/gateways".to_owned());
        let answer = self.admin.call(config, call)?;
        Ok(self.admin.print(&answer, gateway_table))
    }
}

impl TopQuery {
    /// What the admin API is asked, for as many subjects if the count is not given.
    pub(super) fn path(&self, count: u32) -> String {
        let (sort, period) = (word(self.sort), word(self.period));
        let count = self.count.unwrap_or(count);
        let mut path = format!("/v1/top?sort={sort}&period={period}&count={count}");
        if let Some(limit) = &self.limit {
            path.push_str("&limit=");
            path.push_str(&encoded(limit));
        }
        if !self.alone {
            path.push_str("&scope=fleet");
        }
        path
    }

    /// The subjects. Of one gateway alone, with how many are `known`, which it is not asked for.
    pub(super) fn ask(&self, client: &AdminClient, count: u32) -> Result<Value, AdminError> {
        let mut answer = client.request(Method::GET, &self.path(count), None)?;
        if self.alone {
            let others = client.request(Method::GET, "/v1/gateways", None)?;
            let others = others.get("gateways").and_then(Value::as_array);
            let known = json!(others.map_or(1, Vec::len));
            if let Some(members) = answer.as_object_mut() {
                members.insert("known".to_owned(), known);
            }
        }
        Ok(answer)
    }
}

impl ListArgs {
    /// What is listed under a path, by the name of its list.
    pub(super) fn print(
        &self,
        config: &Path,
        path: &str,
        items: &str,
        table: impl FnOnce(&Value) -> String,
    ) -> Result<String, AdminError> {
        let listed = self.admin.client(config)?.list(path, items, self.count)?;
        Ok(self.admin.print(&listed, table))
    }
}

impl BucketCommand {
    pub(super) fn run(&self, config: &Path) -> Result<String, AdminError> {
        let (bucket, call) = match self {
            Self::List { limit, list } => {
                let path = format!("/v1/buckets/{}", encoded(limit));
                return list.print(config, &path, "buckets", bucket_table);
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

impl OverrideCommand {
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
        let members = given([
            ("burst", self.burst.map(Value::from)),
            ("count", self.count.map(Value::from)),
            ("period", self.period.clone().map(Value::from)),
            ("in_flight", self.in_flight.map(Value::from)),
            ("comment", self.comment.clone().map(Value::from)),
            ("until", self.until.clone().map(Value::from)),
            ("for", self.length.clone().map(Value::from)),
        ]);
        members.into()
    }
}

/// An object of the members that have a value.
pub(super) fn given<const N: usize>(members: [(&str, Option<Value>); N]) -> Map<String, Value> {
    let members = members.into_iter();
    let given = members.filter_map(|(name, value)| Some((name.to_owned(), value?)));
    given.collect()
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

/// A value as the command line and the admin API write it.
fn word(value: impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

/// A segment of a path, or a value of a query.
pub(super) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_have_a_slash_or_a_question_mark_stay_one_segment() {
        assert_eq!(encoded("2001:db8::/64"), "2001%3Adb8%3A%3A%2F64");
        assert_eq!(encoded("a?b&c=%"), "a%3Fb%26c%3D%25");
    }
}
