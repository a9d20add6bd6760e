use std::fmt::Display;
use std::io;
use std::sync::Arc;

use http::{HeaderValue, Method, StatusCode, Uri, Version};
use parking_lot::Mutex;
use std::time::Duration;
use tracing::info;

use super::*;
use weir_runtime::loop_time;
use weir_telemetry::{
    CountedRequest, Disposition, LoggedRequest, Metrics, Notes, RequestFinished, Tunnel,
    UpstreamOutcome, Verdict,
};

/// Takes what is written, for all clones.
#[derive(Clone, Default)]
pub(super) struct Written(pub(super) Arc<Mutex<Vec<u8>>>);

impl io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn logged(human: bool, settings: &LogSettings, events: impl FnOnce()) -> String {
    let lines = Written::default();
    let to = lines.clone();
    let (_, filter) = LogLevel::new(settings).unwrap();
    let subscriber = subscriber(human, filter, move || to.clone());
    weir_testing::subscribed(subscriber, events);
    let bytes = lines.0.lock().clone();
    String::from_utf8(bytes).unwrap()
}

/// A request that is over.
struct Request {
    counted: CountedRequest,
    logged: LoggedRequest,
    account: Box<dyn Display>,
}

fn access_line(form: &AccessForm, request: &Request) -> String {
    let mut written = String::new();
    let finished = RequestFinished {
        counted: &request.counted,
        logged: &request.logged,
        account: Some(&request.account),
        took: Duration::from_micros(1234),
    };
    form.with_line(&finished, |line| {
        written.push_str(str::from_utf8(line).unwrap());
    });
    written
}

/// A line break, a forged line, C0, DEL and C1, and what hides or reorders what is shown.
const EVIL: &str = "/x\n00:00:00.000 INFO  forged\r\x1b[2J\u{9b}\u{7f}\u{202e}\u{2066}\u{2028}\u{200b}\u{e0041}\u{e9}\u{65e5}";

/// What of it a target of HTTP can have.
const EVIL_TARGET: &str = "/x\u{9b}\u{202e}\u{2066}\u{2028}\u{200b}\u{e0041}\u{e9}\u{65e5}";

/// Whether a line consists of characters that show what they are.
fn shows_what_it_is(line: &str) -> bool {
    let shown = |character: char| matches!(character, ' '..='~' | '\u{e9}' | '\u{65e5}');
    line.trim_end_matches('\n').chars().all(shown) && line.matches('\n').count() == 1
}

#[test]
fn deceptive_characters_are_escaped_in_the_text_form() {
    let text = logged(true, &LogSettings::default(), || {
        info!(path = EVIL, cause = %EVIL, debug = ?EVIL, "message {EVIL}");
    });
    assert!(shows_what_it_is(&text), "{text:?}");
    assert!(
        text.contains("\\u{9b}") && text.contains("\\u{202e}"),
        "{text}"
    );
}

#[test]
fn deceptive_characters_are_escaped_in_the_json_form_and_mean_the_same() {
    let text = logged(false, &LogSettings::default(), || {
        info!(path = EVIL, cause = %EVIL, "message {EVIL}");
    });
    assert!(shows_what_it_is(&text), "{text:?}");
    let line: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(line["path"], EVIL);
    assert_eq!(line["cause"], EVIL);
}

#[test]
fn of_what_a_client_chose_512_bytes_are_logged() {
    // Two bytes a character, after one: none is cut through.
    let long = format!("/{}", "\u{e9}".repeat(4000));
    let header = || HeaderValue::from_bytes(long.as_bytes()).ok();
    let mut request = finished("login");
    request.account = Box::new(long.clone());
    request.logged = LoggedRequest {
        queries: true,
        host: header(),
        user_agent: header(),
        referer: header(),
        request_id: header(),
        method: Method::from_bytes(&[b'A'; 4000]).unwrap(),
        uri: format!("{long}?{long}").parse().unwrap(),
        ..request.logged
    };
    let text = access_line(&AccessForm::Json, &request);
    let line: serde_json::Value = serde_json::from_str(&text).unwrap();
    for field in ["path", "query", "account"] {
        assert_eq!(line[field], long[..511], "{field}");
    }
    assert_eq!(line["method"], "A".repeat(512));
    for field in ["host", "user_agent", "referer", "request_id"] {
        let value = line[field].as_str().unwrap();
        assert_eq!(value.trim_end_matches('\u{fffd}'), &long[..511], "{field}");
    }
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

/// An account's name is shown by its `Display`, and stood there without quotes.
#[test]
fn no_value_forges_a_field_of_the_text_form() {
    let mut event = finished("login");
    event.account = Box::new("bob decision=denied");
    let form = AccessForm::Text(TextFormatter::for_stdout());
    let text = access_line(&form, &event);
    assert!(text.contains(" account=\"bob decision=denied\" "), "{text}");
    let text = logged(true, &LogSettings::default(), || {
        info!(cause = %"a b=c", "failed");
    });
    assert!(text.contains("failed cause=\"a b=c\""), "{text}");
}

#[test]
fn what_operators_change_is_logged_at_every_level() {
    let settings = LogSettings {
        level: "off".to_owned(),
        ..LogSettings::default()
    };
    let change = || {
        weir_telemetry::audit::bucket_reset("alice", "L", "L:a");
    };
    let line = logged(false, &settings, change);
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    let found = (&line["target"], &line["by"], &line["message"]);
    let expected = ["weir::audit", "alice", "bucket reset"].map(serde_json::Value::from);
    assert_eq!(found, (&expected[0], &expected[1], &expected[2]));
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
        assert!(told.contains("is not a level; write error, warn"), "{told}");
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

/// Its limit denied it.
fn verdict() -> Verdict {
    Verdict {
        denied_by: Some("LoginsPerAddress".into()),
        store: Some(Duration::from_micros(120)),
        in_flight: Some(3),
        ..Verdict::new(Disposition::Denied)
    }
}

fn finished(route: &str) -> Request {
    let since = loop_time::now();
    let uri = Uri::from_static("/login");
    Request {
        counted: CountedRequest {
            since,
            route: Arc::new(Metrics::new().route(route)),
            is_head: false,
            status: StatusCode::TOO_MANY_REQUESTS,
            decision: Disposition::Denied,
            bytes: 181,
            complete: true,
        },
        logged: LoggedRequest {
            client: Some("203.0.113.9".parse().unwrap()),
            verdict: Some(verdict()),
            upstream: Some(UpstreamOutcome {
                server: "127.0.0.1:3000".into(),
                status: StatusCode::OK,
                connect: None,
                arrived: since,
                head: Duration::from_millis(3),
            }),
            ..LoggedRequest::new(Method::POST, uri, Version::HTTP_11)
        },
        account: Box::new("00112233445566778899aabbccddeeff"),
    }
}

/// The line of the same request in each form.
fn line(form: &AccessForm) -> String {
    access_line(form, &finished("login"))
}

#[test]
fn an_access_log_line_for_people() {
    let text = line(&AccessForm::Text(TextFormatter::for_stdout()));
    insta::assert_snapshot!(&text["12:30:05.123 ".len()..].trim_end());
}

#[test]
fn an_access_log_line_for_machines() {
    let text = line(&AccessForm::Json);
    let (before, time) = text.trim_end().split_once("\"timestamp\":\"").unwrap();
    let after = &time[time.find('"').unwrap()..];
    insta::assert_snapshot!(format!("{before}\"timestamp\":\"TIME{after}"));
}

/// tracing's formatter has `serde_json` write its lines.
#[test]
fn an_access_log_line_for_machines_is_the_one_that_serde_would_write() {
    let tunnel = Tunnel::default();
    tunnel.traffic().received(usize::MAX);
    tunnel.traffic().sent(181);
    let mut request = finished("login \"q\" \\");
    request.logged = LoggedRequest {
        queries: true,
        uri: "/a\u{e9}\"?".parse().unwrap(),
        client: Some("2001:db8::1".parse().unwrap()),
        user_agent: Some(HeaderValue::from_static("a\tb\\")),
        verdict: Some(Verdict {
            denied_by: Some("/a\tb".into()),
            delay: Some(Duration::from_secs(9_999)),
            ..verdict()
        }),
        traffic: Some(Arc::clone(tunnel.traffic())),
        ..request.logged
    };
    let text = access_line(&AccessForm::Json, &request);
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(text, format!("{value}\n"));
    assert_eq!(
        (&value["aborted"], &value["delay_ms"]),
        (&true.into(), &9_999_000.0.into())
    );
}

/// An access log line by a template, without its line break.
fn by_template(template: &str, request: &Request) -> String {
    let text = access_line(&AccessForm::Template(template.parse().unwrap()), request);
    text.strip_suffix('\n').unwrap().to_owned()
}

#[test]
fn the_combined_format_is_the_one_that_tools_read() {
    let mut event = finished("login");
    let shown = by_template("combined", &event);
    let (before, rest) = shown.split_once('[').unwrap();
    let (time, after) = rest.split_once(']').unwrap();
    assert_eq!(before, "203.0.113.9 - 00112233445566778899aabbccddeeff ");
    assert_eq!(after, r#" "POST /login HTTP/1.1" 429 181 "-" "-""#);
    assert!(
        jiff::fmt::strtime::parse("%d/%b/%Y:%H:%M:%S %z", time).is_ok(),
        "{time}"
    );
    event.logged.queries = true;
    event.logged.uri = Uri::from_static("/login?a=b");
    event.logged.user_agent = Some(HeaderValue::from_static("curl/8 \"x\" \\"));
    event.logged.referer = Some(HeaderValue::from_static("http://example.com/"));
    let shown = by_template("combined", &event);
    let end = r#""POST /login?a=b HTTP/1.1" 429 181 "http://example.com/" "curl/8 \x22x\x22 \x5C""#;
    assert!(shown.ends_with(end), "{shown}");
}

#[test]
fn no_clients_text_forges_a_line_or_a_field_of_a_template() {
    let mut event = finished("login");
    event.logged.uri = EVIL_TARGET.parse().unwrap();
    event.account = Box::new("a 200 \"b\"");
    let shown = by_template(r#"{account} "{path}" {limit} {ban}"#, &event);
    assert!(shows_what_it_is(&format!("{shown}\n")), "{shown}");
    assert!(
        shown.starts_with("a\\x20200\\x20\\x22b\\x22 \"/x"),
        "{shown}"
    );
    assert!(shown.ends_with("\" LoginsPerAddress -"), "{shown}");
    let sent = format!("{EVIL_TARGET}\t\" 200 \"");
    event.logged.user_agent = HeaderValue::from_bytes(sent.as_bytes()).ok();
    event.logged.referer = event.logged.user_agent.clone();
    event.logged.host = event.logged.user_agent.clone();
    let shown = by_template(r#""{user_agent}" "{referer}" "{host}""#, &event);
    assert!(shows_what_it_is(&format!("{shown}\n")), "{shown}");
    assert_eq!(shown.matches('"').count(), 6, "{shown}");
    event.account = Box::new(EVIL);
    event.logged.verdict = Some(Verdict {
        denied_by: Some(EVIL.into()),
        ..verdict()
    });
    let shown = by_template("{account} {limit}", &event);
    assert!(shows_what_it_is(&format!("{shown}\n")), "{shown}");
}

mod of_steps {
    use weir_telemetry::log_field;

    log_field! {
        /// by which word
        /// it went
        pub static WORD: &'static str = "word";
    }
    log_field! {
        /// what was said
        pub static TEXT: String = "said";
    }
    log_field! {
        /// how often
        pub static NUMBER: u64 = "times";
    }
    log_field! {
        /// for how long
        pub static DURATION: std::time::Duration = "waited_ms";
    }
}

#[test]
fn the_fields_of_steps_stand_behind_those_of_all_lines_in_every_form() {
    let mut notes = Notes::default();
    notes.set(&of_steps::WORD, "one");
    notes.set(&of_steps::NUMBER, 7);
    notes.set(&of_steps::TEXT, format!("a \"b\"{}", "c".repeat(600)));
    notes.set(&of_steps::DURATION, Duration::from_micros(1500));
    notes.set(&of_steps::NUMBER, 8);
    let mut request = finished("login");
    request.logged.notes = Some(Box::new(notes));
    let long = "c".repeat(507);
    let text = access_line(&AccessForm::Json, &request);
    let ends = format!(
        ",\"word\":\"one\",\"said\":\"a \\\"b\\\"{long}\",\"waited_ms\":1.5,\"times\":8,\
         \"target\":\"weir::access\"}}\n"
    );
    assert!(text.ends_with(&ends), "{text}");
    let text = access_line(&AccessForm::Text(TextFormatter::for_stdout()), &request);
    let ends = format!(" word=one said=\"a \\\"b\\\"{long}\" waited_ms=1.5 times=8\n");
    assert!(text.ends_with(&ends), "{text}");
    let known = [of_steps::WORD.described(), of_steps::NUMBER.described()];
    let template = |text| Template::parse(text, &known);
    let form = AccessForm::Template(template("{status} {word} {times}").unwrap());
    assert_eq!(access_line(&form, &request), "429 one 8\n");
    assert_eq!(access_line(&form, &finished("login")), "429 - -\n");
    let unknown = template("{said}").unwrap_err();
    assert_eq!(unknown, TemplateError::UnknownField("said".to_owned()));
    assert_eq!(of_steps::WORD.described().doc(), "by which word it went");
}
