//! Findings that need attention: lines above the table of `weir top`.

use std::fmt::Write;

use http::Method;
use serde::Deserialize;
use serde_json::Value;
use weir_console::findings::{FindingKind, GatewayFindingKind, Label};
use weir_telemetry::printable;

use crate::app::{AdminClient, AdminError};

const PATH: &str = "/v1/findings";

/// Something that needs attention, and what can be done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) label: Label,
    /// What a client does, or what is wrong with the gateway.
    pub(super) text: String,
    details: Vec<String>,
    pub(super) advice: String,
    /// The command that follows the advice.
    pub(super) command: Option<String>,
}

/// The findings of the admin API, about one gateway or the fleet; null from an older gateway, which
/// has no such path.
pub(super) fn ask(client: &AdminClient, fleet: bool) -> Result<Value, AdminError> {
    let path = match fleet {
        true => format!("{PATH}?scope=fleet"),
        false => PATH.to_owned(),
    };
    match client.request(Method::GET, &path, None) {
        Err(AdminError::NotFound(_)) => Ok(Value::Null),
        answer => answer,
    }
}

impl Finding {
    /// The findings about the gateway, and those about clients; about the clients of `limit` alone,
    /// if it is set, even where a worse finding about another limit names the client. Clients chose
    /// parts of the texts, so control characters are escaped.
    pub(super) fn all(answer: &Value, limit: Option<&str>) -> Vec<Self> {
        let found = answer["findings"].as_array().into_iter().flatten();
        let of_limit = found.filter(|found| {
            let also = found["also"].as_array().into_iter().flatten();
            let mut limits = also.chain([&found["limit"]]);
            limit.is_none_or(|limit| limits.any(|of| of == limit))
        });
        let of_gateway = answer["gateway"].as_array().into_iter().flatten();
        let of_gateway = of_gateway.filter_map(Self::parse_of_gateway);
        of_gateway.chain(of_limit.filter_map(Self::parse)).collect()
    }

    fn parse_of_gateway(found: &Value) -> Option<Self> {
        let details = found["detail"].as_str().unwrap_or_default().lines();
        let text = escaped(found["text"].as_str()?);
        let gateway = found["gateway"].as_str().map(escaped);
        Some(Self {
            label: GatewayFindingKind::deserialize(&found["kind"])
                .ok()?
                .label(),
            text: gateway.map_or(text.clone(), |gateway| format!("{gateway}: {text}")),
            details: details.map(escaped).collect(),
            advice: escaped(found["remedy"].as_str()?),
            command: None,
        })
    }

    fn parse(found: &Value) -> Option<Self> {
        let subject = found["name"].as_str().or(found["subject"].as_str())?;
        let text = format!("{subject} {}", found["text"].as_str()?);
        let remedy = &found["remedy"];
        Some(Self {
            label: FindingKind::deserialize(&found["kind"]).ok()?.label(),
            text: escaped(&text),
            details: Vec::new(),
            advice: escaped(remedy["text"].as_str()?),
            command: remedy["command"].as_str().map(escaped),
        })
    }
}

/// A text that clients chose parts of. Quotes stay, so that a command can be pasted.
fn escaped(text: &str) -> String {
    printable(text).into_owned()
}

/// The findings as lines, and an empty line; nothing if there are none.
pub(super) fn paragraph(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let title = finding.label.title;
        // Writing to a string never fails.
        let _ = writeln!(text, "{title:<10}  {}", finding.text);
        let lines = finding.details.iter().chain([&finding.advice]);
        for line in lines.chain(&finding.command) {
            let _ = writeln!(text, "{:<10}  {line}", "");
        }
    }
    if !text.is_empty() {
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::path::Path;
    use std::thread;

    use serde_json::json;

    use super::*;

    fn found(kind: &str, limit: &str, subject: &str, command: &str) -> Value {
        json!({
            "kind": kind, "limit": limit, "subject": subject, "name": null, "text": "goes on",
            "remedy": {"text": "Ban it", "command": command},
        })
    }

    #[test]
    fn no_failure_but_that_of_an_older_gateway_is_ever_taken_for_no_findings() {
        let asked = |status: &str| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let body = r#"{"detail": "because"}"#;
            let answer = format!(
                "HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            let gateway = thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
                stream.write_all(answer.as_bytes()).unwrap();
            });
            let client = AdminClient::new(Path::new("none"), Some(address), None).unwrap();
            let answer = ask(&client, false);
            gateway.join().unwrap();
            answer.map_err(|error| error.to_string())
        };
        assert_eq!(asked("404 Not Found"), Ok(Value::Null));
        for status in ["403 Forbidden", "500 Internal Server Error"] {
            assert_eq!(asked(status), Err("because".to_owned()), "{status}");
        }
    }

    #[test]
    fn an_abuser_of_a_limit_is_never_left_out_because_another_limit_denies_it_more() {
        let mut worst = found("abuse", "Requests", "203.0.113.9", "weir ban add");
        worst["also"] = json!(["Logins"]);
        let answer = json!({"findings": [worst]});
        for (limit, shown) in [("Requests", 1), ("Logins", 1), ("Calls", 0)] {
            assert_eq!(Finding::all(&answer, Some(limit)).len(), shown, "{limit}");
        }
    }

    #[test]
    fn each_finding_says_who_and_what_to_do_and_nothing_that_a_terminal_obeys() {
        let mut named = found(
            "over_limit",
            "Calls",
            "hash:42c2",
            "weir override set Calls 'a b'",
        );
        named["name"] = json!("acme");
        let answer = json!({"findings": [
            found("abuse", "Logins", "203.0.113.9\u{1b}[2J", "weir ban add abusers 203.0.113.9"),
            named,
            found("of another version", "Logins", "a", "b"),
        ], "gateway": [
            {"kind": "configuration", "text": "the configuration was refused",
             "detail": "gateway.yaml:1\n  a\u{1b}[2J", "remedy": "Correct the files"},
            {"kind": "upstream", "text": "of the servers of upstream app, 1 of 1 fail",
             "detail": null, "remedy": "Look at the app there", "gateway": "gw-2\u{1b} (a:1)"},
        ]});
        insta::assert_snapshot!(paragraph(&Finding::all(&answer, None)), @r"
        CONFIG      the configuration was refused
                    gateway.yaml:1
                      a\u{1b}[2J
                    Correct the files
        UPSTREAM    gw-2\u{1b} (a:1): of the servers of upstream app, 1 of 1 fail
                    Look at the app there
        ABUSE       203.0.113.9\u{1b}[2J goes on
                    Ban it
                    weir ban add abusers 203.0.113.9
        OVER LIMIT  acme goes on
                    Ban it
                    weir override set Calls 'a b'
        ");
        // What is wrong with the gateway is told whatever limit one looks at.
        let of_calls = Finding::all(&answer, Some("Calls"));
        assert_eq!(of_calls.len(), 3);
        assert_eq!(paragraph(&[]), "");
        assert_eq!(Finding::all(&Value::Null, None), []);
    }
}
