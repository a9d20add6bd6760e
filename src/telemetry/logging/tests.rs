use std::io;
use std::sync::Arc;

use http::{Method, StatusCode, Version};
use parking_lot::Mutex;
use std::time::Duration;
use tracing::info;

use super::*;
use crate::telemetry::{Answer, Disposition, Metrics, RequestFinished, Said, UpstreamAnswer};

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn logged(human: bool, settings: &LogSettings, events: impl FnOnce()) -> String {
    let lines = Lines::default();
    let to = lines.clone();
    let filter = settings.filter().unwrap();
    let subscriber = subscriber(human, filter, move || to.clone());
    tracing::subscriber::with_default(subscriber, events);
    let bytes = lines.0.lock().clone();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn control_characters_forge_no_line_in_the_human_form() {
    let evil = "/x\n00:00:00.000 INFO  forged\r\x1b[2J\u{9b}\u{7f}";
    let text = logged(true, &LogSettings::default(), || {
        info!(path = evil, cause = %evil, debug = ?evil, "message {evil}");
    });
    assert_eq!(text.matches('\n').count(), 1, "{text:?}");
    assert!(!text.trim_end().contains(char::is_control), "{text:?}");
}

#[test]
fn control_characters_forge_no_line_in_the_json_form() {
    let evil = "/x\n{\"forged\":true}\r\x1b[2J";
    let text = logged(false, &LogSettings::default(), || {
        info!(path = evil, cause = %evil, "message {evil}");
    });
    assert_eq!(text.matches('\n').count(), 1, "{text:?}");
    let line: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(line["path"], evil);
    assert_eq!(line["cause"], evil);
}

#[test]
fn the_human_form_is_one_line_in_the_order_of_the_fields() {
    let text = logged(true, &LogSettings::default(), || {
        info!(path = "/a", status = 200, route = "a b", "served");
    });
    let (time, line) = text.split_at("12:30:05.123 ".len());
    assert_eq!(
        time.replace(|c: char| c.is_ascii_digit(), "9"),
        "99:99:99.999 "
    );
    assert_eq!(line, "INFO  served /a 200 route=\"a b\"\n");
}

#[test]
fn the_access_log_has_a_switch_of_its_own() {
    let access = || info!(target: "weir::access", "line");
    let off = LogSettings {
        access: false,
        ..LogSettings::default()
    };
    let quiet_otherwise = LogSettings {
        level: "error".to_owned(),
        ..LogSettings::default()
    };
    assert_eq!(logged(true, &off, access), "");
    assert!(logged(true, &quiet_otherwise, access).ends_with("line\n"));
}

#[test]
fn a_level_that_is_no_filter_is_refused_by_name() {
    let settings = LogSettings {
        level: "weir=loud".to_owned(),
        ..LogSettings::default()
    };
    let refused = settings.check().unwrap_err().to_string();
    assert!(
        refused.starts_with("log level \"weir=loud\": "),
        "{refused}"
    );
}

#[test]
fn a_word_that_is_no_level_is_refused_but_the_name_of_a_module_is_not() {
    let refused = |level: &str| {
        let settings = LogSettings {
            level: level.to_owned(),
            ..LogSettings::default()
        };
        settings.check().err().map(|error| error.to_string())
    };
    for level in ["verbose", "info, loud", "Warning"] {
        let told = refused(level).unwrap();
        assert!(told.contains("is no level; write error, warn"), "{told}");
    }
    for level in [
        "info",
        "WARN",
        "off",
        "0",
        "warn,weir::proxy=debug",
        "weir::proxy,info",
    ] {
        assert_eq!(refused(level), None, "{level}");
    }
}

fn access() {
    let metrics = Metrics::new();
    let route = metrics.route("login");
    let event = RequestFinished {
        received: None,
        route: &route,
        method: &Method::POST,
        path: "/login",
        query: None,
        said: Said::default(),
        version: Version::HTTP_11,
        client: Some("203.0.113.9".parse().unwrap()),
        account: Some(&"00112233445566778899aabbccddeeff"),
        decision: Disposition::Denied,
        denied_by: Some("LoginsPerAddress"),
        banned_by: None,
        listed: None,
        decided_by: None,
        upstream_error: None,
        store: Some(Duration::from_micros(120)),
        strictest: None,
        in_flight: Some(3),
        upstream: Some(UpstreamAnswer {
            server: "127.0.0.1:3000",
            status: Some(StatusCode::OK),
            head: Some(Duration::from_millis(3)),
        }),
        answer: Answer {
            status: StatusCode::TOO_MANY_REQUESTS,
            bytes: 181,
            complete: true,
            took: Duration::from_micros(1234),
        },
    };
    event.emit();
}

#[test]
fn an_access_log_line_for_people() {
    let text = logged(true, &LogSettings::default(), access);
    insta::assert_snapshot!(&text["12:30:05.123 ".len()..].trim_end());
}

#[test]
fn an_access_log_line_for_machines() {
    let text = logged(false, &LogSettings::default(), access);
    let (before, time) = text.trim_end().split_once("\"timestamp\":\"").unwrap();
    let after = &time[time.find('"').unwrap()..];
    insta::assert_snapshot!(format!("{before}\"timestamp\":\"TIME{after}"));
}
