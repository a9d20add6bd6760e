//! `weir ban`: the bans of subjects, by the admin API.

use std::path::Path;

use clap::{Args, Subcommand};
use http::Method;
use serde_json::Value;
use weir_telemetry::printable;

use super::admin::{AdminArgs, Call, ListArgs, encoded, given};
use super::tables::{lines, more, rows, shown, span, table};
use crate::app::AdminError;

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

impl BanCommand {
    pub(super) fn run(&self, config: &Path) -> Result<String, AdminError> {
        let (ban, call) = match self {
            Self::List(list) => {
                return list.print(config, "/v1/bans", "bans", ban_table);
            }
            Self::Get(ban) => (ban, Call::new(Method::GET, ban.path())),
            Self::Lift(ban) => (ban, Call::new(Method::DELETE, ban.path())),
            Self::Add {
                length,
                until,
                comment,
                ban,
            } => {
                let body = given([
                    ("for", length.clone().map(Value::from)),
                    ("until", until.clone().map(Value::from)),
                    ("comment", comment.clone().map(Value::from)),
                ]);
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
    let warning = answer["warning"].as_str();
    let warning = warning.map(|warning| format!("{}\n", printable(warning)));
    table(heads, 4, &rows, "no bans") + more(answer) + &warning.unwrap_or_default()
}

/// The cause of a ban, in words.
fn why(cause: &Value) -> String {
    let by = cause["by"].as_str().unwrap_or_default();
    if by == "operator" {
        let comment = match &cause["comment"] {
            Value::String(comment) => format!(": {}", printable(comment)),
            _ => String::new(),
        };
        return shown(&cause["name"]) + &comment;
    }
    let what = match &cause[by] {
        Value::String(what) => printable(what).into_owned(),
        what => what.to_string(),
    };
    format!("{by} {what}, strikes: {}", cause["strikes"])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn bans_are_lines_with_nothing_that_a_terminal_obeys() {
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
        assert_eq!(ban_table(&json!({"bans": []})), "no bans");
    }
}
