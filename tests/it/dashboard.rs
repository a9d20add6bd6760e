//! The dashboard in a browser: what it shows, what it changes, and what no client and no other page
//! can make of it.

use std::cell::Cell;

use serde_json::json;

use crate::support::browser::{Browser, keys};
use crate::support::*;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// What would run if a client's text became markup.
const MARKUP: &str = "<img src=x onerror=window.hacked=1>";

fn setup(upstream: &Upstream) -> Setup {
    Setup::before(upstream)
        .admin("dashboard: true")
        .limits(&[
            "Calls: {per: address, burst: 5, count: 1, period: 1000h}",
            "Teams: {per: \"path:team\", burst: 5, count: 1, period: 1000h}",
        ])
        .routes(&[
            "{name: teams, match: {path: \"/teams/{team}\"}, upstream: app, limits: [Teams]}",
            "{name: all, match: {}, upstream: app, limits: [Calls]}",
        ])
        .key("client_address: {trusted_proxies: [127.0.0.1]}")
        .key("bans: {abusers: {per: address, strikes: {paths: /trap, count: 9, period: 1h}, for: 1h}}")
        .key("account: [header: x-api-key]")
        .file("hash.key", "a key that gateways share")
        .key("hash_key: {file: hash.key}")
        .key("log: {account: plain}")
}

fn from(address: &str) -> Request {
    get("/").with("x-forwarded-for", address)
}

fn page(gateway: &Gateway) -> String {
    format!("http://{}/", gateway.admin_address())
}

/// A browser with the dashboard, which shows what is counted.
fn dashboard(gateway: &Gateway) -> Browser {
    let browser = Browser::start();
    browser.open(&page(gateway));
    browser.sees("#connection", "live");
    browser
}

/// Refused contents, errors of scripts and failed requests are all in the console.
fn assert_quiet(browser: &Browser) {
    let said = browser.console();
    assert!(said.is_empty(), "{said:#?}");
}

/// Waits until a person sees a text about what is going on, which is that of the last minute.
fn sees_meanwhile(browser: &Browser, selector: &str, text: &str, going_on: impl Fn()) {
    eventually(&format!("{text:?} in {selector}"), || {
        going_on();
        browser.text(selector).contains(text).then_some(())
    });
}

/// Clicks on what is there only while something is going on.
fn clicks_meanwhile(browser: &Browser, selector: &str, going_on: impl Fn()) {
    eventually(&format!("a click on {selector}"), || {
        going_on();
        browser.try_click(selector)
    });
}

/// Shows the subjects of the last hour, which are there longer than any test takes.
fn choose_hour(browser: &Browser) {
    browser.run(
        "const select = document.getElementById('subjects-period');
        select.value = 'hour';
        select.dispatchEvent(new Event('change'))",
    );
}

/// The button that opens a subject of a limit.
fn button(limit: &str, subject: &str) -> String {
    format!("#subject-rows button[data-limit=\"{limit}\"][data-subject=\"{subject}\"]")
}

#[test]
fn without_the_key_there_is_no_dashboard_and_no_page_is_answered() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).admin("").start();
    let host = gateway.admin_address().to_string();
    for path in ["/", "/dashboard.js", "/dashboard.css"] {
        let response = gateway.admin(&get(path).with("host", &host));
        assert_eq!(response.status, 404, "{path}");
        let said = "write `admin: {address: ADDRESS, dashboard: true}` in gateway.yaml";
        assert!(response.text().contains(said), "{}", response.text());
    }
    let elsewhere = gateway.admin(&get("/nothing").with("host", &host));
    assert!(
        !elsewhere.text().contains("dashboard: true"),
        "{}",
        elsewhere.text()
    );
    let own = get("/v1/top")
        .with("host", &host)
        .with("origin", &format!("http://{host}"))
        .with("sec-fetch-site", "same-origin");
    assert_eq!(gateway.admin(&own).status, 403);
    // Nor is there one for clients.
    let gateway = setup(&upstream).start();
    assert_eq!(gateway.send(&get("/dashboard.js")).text(), "real");
}

#[test]
fn the_files_are_served_with_headers_that_let_nothing_else_run() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    for (path, kind) in [
        ("/", "text/html; charset=utf-8"),
        ("/dashboard.css", "text/css; charset=utf-8"),
        ("/dashboard.js", "text/javascript; charset=utf-8"),
        ("/dashboard.svg", "image/svg+xml"),
    ] {
        let response = gateway.admin(&get(path));
        assert_eq!(
            (response.status, response.field("content-type")),
            (200, Some(kind))
        );
        let policy = response.field("content-security-policy").unwrap();
        for part in [
            "default-src 'none'",
            "script-src 'self'",
            "frame-ancestors 'none'",
        ] {
            assert!(policy.contains(part), "{policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(response.field("x-content-type-options"), Some("nosniff"));
        assert_eq!(response.field("referrer-policy"), Some("no-referrer"));
        assert_eq!(response.field("set-cookie"), None);
    }
    assert_eq!(gateway.admin(&post("/", "")).status, 405);
    assert_eq!(gateway.admin(&get("/dashboard.other")).status, 404);
}

#[test]
fn the_page_shows_who_is_denied_by_what_and_changes_real_buckets() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let (abuser, honest) = (from("192.0.2.66"), from("192.0.2.1"));
    assert_eq!(gateway.statuses(&honest, 1), [200]);
    let browser = dashboard(&gateway);
    assert_eq!(gateway.statuses(&abuser, 20)[4..6], [200, 429]);
    let denied = || assert_eq!(gateway.statuses(&abuser, 1), [429]);
    sees_meanwhile(
        &browser,
        "#findings .bad",
        "192.0.2.66 keeps sending",
        denied,
    );
    sees_meanwhile(&browser, "#findings .bad", "Calls denies", denied);
    sees_meanwhile(
        &browser,
        "#findings .bad",
        "weir ban add abusers 192.0.2.66 --for 1h",
        denied,
    );
    browser.sees("#limit-rows", "6 allowed");
    choose_hour(&browser);
    browser.sees("#route-rows", "all");
    browser.sees("#upstream-rows", "available");

    // Reset.
    browser.click(&button("Calls", "192.0.2.66"));
    browser.sees("#subject-state", "5 of 5 used");
    browser.click("#do-reset");
    assert_eq!(gateway.statuses(&abuser, 1), [429], "it is not confirmed");
    browser.click("#subject-form .primary");
    browser.sees("#subject-result", "Reset: 5 left");
    browser.sees("#subject-state", "0 of 5 used");
    assert_eq!(gateway.statuses(&abuser, 6), [200, 200, 200, 200, 200, 429]);

    // Refund.
    browser.click("#do-refund");
    browser.fill("#subject-form input", "2");
    browser.click("#subject-form .primary");
    browser.sees("#subject-result", "Refunded: 2 left");
    assert_eq!(gateway.statuses(&abuser, 3), [200, 200, 429]);
    browser.click("#subject-close");

    // Override, until it is deleted.
    browser.click(&button("Calls", "192.0.2.66"));
    browser.sees("#subject-state", "5 of 5 used");
    browser.click("#do-override");
    browser.fill("#subject-form [name=burst]", "8");
    browser.fill("#subject-form [name=comment]", "a customer");
    browser.fill("#subject-form [name=for]", "2200-01-01");
    browser.click("#subject-form .primary");
    browser.sees("#subject-result", "Set");
    browser.sees("#subject-state", "(a customer), until 2200-01-02T00:00:00Z");
    browser.click("#do-delete");
    browser.click("#subject-form .primary");
    browser.sees("#subject-result", "Deleted");
    browser.sees("#subject-state", "5 of 5 used");
    browser.click("#subject-close");

    // So many that it is named for a while after the last one.
    gateway.statuses(&abuser, 50);

    // Ban, from the finding; it is on the clock from now on, and of all paths.
    let to_ban = "#findings button[data-action=ban][data-subject=\"192.0.2.66\"]";
    clicks_meanwhile(&browser, to_ban, denied);
    browser.fill("#subject-form input", "2x");
    browser.click("#subject-form .danger");
    browser.sees("#subject-result", "duration");
    browser.fill("#subject-form input", "30m");
    browser.fill("#subject-form [name=comment]", "scraper");
    browser.click("#subject-form .danger");
    browser.sees("#subject-result", "Banned by abusers for 30 min");
    browser.sees("#banned-rows", "192.0.2.66");
    browser.sees("#banned-rows", "set by 127.0.0.1: scraper");
    let team = get("/teams/red").with("x-forwarded-for", "192.0.2.66");
    assert_eq!(gateway.statuses(&team, 1), [429]);
    assert_eq!(gateway.statuses(&honest, 1), [200]);
    browser.click("#subject-close");

    // It is dealt with, so it is not named as an abuser any more.
    sees_meanwhile(
        &browser,
        "#findings .done",
        "192.0.2.66 is banned by abusers",
        || {
            gateway.statuses(&abuser, 1);
        },
    );

    // Lift, from the list.
    browser.fill("#ban-lookup-subject", "192.0.2.66");
    browser.click("#ban-lookup button");
    browser.sees("#subject-state", "banned for");
    browser.click("#subject-close");
    browser.click("#banned-rows button[data-subject=\"192.0.2.66\"]");
    browser.click("#subject-form .primary");
    browser.sees("#subject-state", "not banned");
    assert_eq!(gateway.statuses(&team, 1), [200]);
    // All of it is in the log.
    for (message, times) in [
        ("bucket reset", 1),
        ("bucket refunded", 1),
        ("ban set", 1),
        ("ban lifted", 1),
        ("override set", 1),
        ("override deleted", 1),
    ] {
        gateway.logs(message, times);
    }
    assert_eq!(browser.console().len(), 1, "the duration that was refused");
}

#[test]
fn the_page_never_says_that_there_are_more_bans_once_they_are_lifted() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let each = |method: &str| {
        for host in 1..=51 {
            let path = format!("/v1/bans/abusers/192.0.2.{host}");
            let response = gateway.admin(&request(method, &path).with("host", "localhost"));
            assert_eq!(response.status, 200, "{}", response.text());
        }
    };
    each("PUT");
    let browser = dashboard(&gateway);
    browser.sees("#no-banned", "The first 50 are shown");
    each("DELETE");
    browser.sees("#no-banned", "Nobody is banned.");
    assert_quiet(&browser);
}

/// The charts of a page began empty.
#[test]
fn a_page_that_is_opened_shows_what_was_counted_before_it() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let browser = dashboard(&gateway);
    gateway.statuses(&from("192.0.2.66"), 9);
    let drawn = "return document.querySelector('#decisions path.denied').getAttribute('d')";
    let is_drawn = || {
        let path = browser.run(drawn);
        path.as_str().is_some_and(|path| path.contains('L'))
    };
    let hour = "document.querySelector('input[name=span][value=hour]').click()";
    browser.run(hour);
    eventually("a point of the history", || is_drawn().then_some(()));
    browser.open(&page(&gateway));
    browser.sees("#decisions", "3 min ago");
    browser.sees("#connection", "live");
    eventually("the minutes before", || is_drawn().then_some(()));
    browser.run(hour);
    browser.sees("#decisions", "60 min ago");
    assert!(is_drawn());
    assert_quiet(&browser);
}

#[test]
fn overrides_of_operators_are_listed_with_who_set_them_and_undone() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    const ACME: &str = "/v1/overrides/Calls/192.0.2.9";
    let parameters =
        r#"{"burst": 8, "count": 9, "period": "1h", "comment": "incident 7", "for": "2h"}"#;
    let set = gateway.admin(&put(ACME, parameters).with("host", "localhost"));
    assert_eq!(set.status, 200, "{}", set.text());
    let browser = dashboard(&gateway);
    for told in [
        "192.0.2.9",
        "Calls",
        "8 at once, 9 each 1h",
        "127.0.0.1",
        "incident 7",
    ] {
        browser.sees("#override-rows", told);
    }
    browser.click("#override-rows button");
    browser.sees("#subject-state", "incident 7");
    let bucket = || {
        let bucket = gateway.admin(&get("/v1/buckets/Calls/192.0.2.9").with("host", "localhost"));
        bucket.json()["burst"].clone()
    };
    assert_eq!(bucket(), 8, "it is not confirmed");
    browser.click("#subject-form .primary");
    browser.sees("#subject-result", "Undone");
    assert_eq!(bucket(), 5);
    browser.wait("document.getElementById('overrides').hidden");
    assert_quiet(&browser);
}

#[test]
fn the_row_of_a_banned_client_says_so() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    gateway.statuses(&from("192.0.2.66"), 2);
    let browser = dashboard(&gateway);
    choose_hour(&browser);
    browser.sees("#subject-rows", "192.0.2.66");
    assert!(!browser.text("#subject-rows").contains("banned"));
    let ban = put("/v1/bans/abusers/192.0.2.66", r#"{"for": "20m"}"#);
    assert_eq!(gateway.admin(&ban.with("host", "localhost")).status, 200);
    browser.sees("#subject-rows", "banned");
    assert_quiet(&browser);
}

#[test]
fn an_override_of_a_subject_with_a_star_never_covers_other_subjects() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    assert_eq!(gateway.statuses(&get("/teams/red*"), 1), [200]);
    let browser = dashboard(&gateway);
    choose_hour(&browser);
    browser.sees("#subject-rows", "red*");
    browser.click(&button("Teams", "red*"));
    browser.sees("#subject-state", "1 of 5 used");
    browser.click("#do-override");
    browser.fill("#subject-form [name=burst]", "8");
    browser.click("#subject-form .primary");
    browser.sees("#subject-result", "Set");
    browser.sees("#subject-state", "of 8 used");
    let burst = |team: &str| {
        let path = format!("/v1/buckets/Teams/{team}");
        let bucket = gateway.admin(&get(&path).with("host", "localhost"));
        bucket.json()["burst"].clone()
    };
    assert_eq!((burst("red*"), burst("redder")), (json!(8), json!(5)));
    assert_quiet(&browser);
}

#[test]
fn a_request_is_explained_from_the_subject_that_it_is_about() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let browser = dashboard(&gateway);
    let explain = "#findings button[data-action=explain]";
    clicks_meanwhile(&browser, explain, || {
        gateway.statuses(&from("192.0.2.66"), 9);
    });
    browser.sees("#explanation", "GET / from 192.0.2.66");
    browser.sees("#explanation", "limit Calls: applies");
    browser.fill("#explain-path", "/teams/red");
    browser.fill("#explain-headers", "x-api-key: acme");
    browser.click("#explain-form button");
    browser.sees("#explanation", "captures team = red");
    browser.sees("#explanation", "named by the header x-api-key");
    assert_quiet(&browser);
}

#[test]
fn what_clients_send_stays_text() {
    let upstream = Upstream::start();
    let comment = json!(format!("comment {MARKUP}"));
    let gateway = setup(&upstream)
        .overrides(&format!(
            "- Calls: {{burst: 5, count: 1, period: 1000h, ids: [{{id: 192.0.2.9, comment: {comment}}}]}}"
        ))
        .start();
    let browser = dashboard(&gateway);
    browser.click("#tail-on");
    browser.sees("#tail-note", "Waiting");
    let encoded = "%3Cimg%20src=x%20onerror=window.hacked=1%3E";
    let attack = |path: &str| {
        get(path)
            .with("x-forwarded-for", "192.0.2.9")
            .with("x-api-key", MARKUP)
            .with("user-agent", MARKUP)
            .with("referer", MARKUP)
            .with("x-request-id", MARKUP)
            .with("accept", MARKUP)
    };
    eventually("a line of the tail", || {
        gateway.statuses(&attack(&format!("/teams/{encoded}")), 1);
        gateway.statuses(&attack(&format!("/other/\"{encoded}?{encoded}")), 1);
        let seen = browser.text("#tail-rows");
        (seen.contains("/teams/%3Cimg") && seen.contains(MARKUP)).then_some(())
    });
    // The subject is what the path says, decoded; the account is the header's value.
    choose_hour(&browser);
    browser.sees("#subject-rows", MARKUP);
    sees_meanwhile(&browser, "#findings", MARKUP, || {
        gateway.statuses(&attack(&format!("/teams/{encoded}")), 1);
    });
    browser.run(
        "[...document.querySelectorAll('#subject-rows button')]
            .find((button) => button.dataset.limit === 'Teams').click()",
    );
    browser.sees("#subject-title", MARKUP);
    browser.sees("#subject-state", "used");
    browser.click("#do-reset");
    browser.sees("#subject-form", MARKUP);
    browser.click("#subject-form .primary");
    browser.sees("#subject-result", "Reset: 5 left");
    browser.click("#subject-close");
    browser.run("document.querySelector('#lookup-limit').value = 'Calls'");
    browser.fill("#lookup-subject", "192.0.2.9");
    browser.click("#lookup button");
    browser.sees("#subject-state", &format!("comment {MARKUP}"));
    browser.click("#subject-close");
    browser.fill("#explain-path", &format!("/teams/{encoded}"));
    browser.fill("#explain-headers", &format!("x-api-key: {MARKUP}"));
    browser.click("#explain-form button");
    browser.sees("#explanation", MARKUP);
    let made = "return [window.hacked, document.querySelectorAll('img[src=x], [onerror]').length]";
    assert_eq!(browser.run(made), json!([null, 0]));
    // A script of ours that made markup of a text would fail.
    let unsafe_markup =
        "try { document.body.innerHTML = '<b>'; return 'set' } catch { return 'refused' }";
    assert_eq!(browser.run(unsafe_markup), "refused");
}

/// A page that does all that pages can do to a server of another origin.
fn attacking_page(target: &str) -> String {
    let bucket = format!("{target}v1/buckets/Calls/192.0.2.66");
    format!(
        "<!doctype html><title>evil</title>
        <iframe id=frame src=\"{target}\"></iframe>
        <form id=form method=post enctype=text/plain target=result action=\"{bucket}/refund\">
        <input name='{{\"cost\": 5, \"x' value='\": 1}}'></form><iframe name=result></iframe>
        <script>
        const tried = async () => {{
          const read = [];
          const attempt = async (method, url, options) => {{
            try {{
              const response = await fetch(url, {{method, ...options}});
              read.push([method, response.type === 'opaque' ? 'opaque' : await response.text()]);
            }} catch (error) {{ read.push([method, 'refused']); }}
          }};
          await attempt('POST', '{bucket}/refund', {{body: '{{\"cost\": 5}}', mode: 'no-cors'}});
          await attempt('POST', '{bucket}/refund', {{body: '{{\"cost\": 5}}', credentials: 'include'}});
          await attempt('DELETE', '{bucket}');
          await attempt('DELETE', '{bucket}', {{headers: {{authorization: 'Bearer {TOKEN}'}}}});
          await attempt('GET', '{bucket}');
          await attempt('GET', '{bucket}', {{mode: 'no-cors', credentials: 'include'}});
          await attempt('PUT', '{target}v1/bans/abusers/192.0.2.1', {{body: '{{}}'}});
          const events = new EventSource('{target}v1/events', {{withCredentials: true}});
          await new Promise((done) => {{ events.onerror = done; events.onmessage = done; }});
          events.close();
          document.getElementById('form').submit();
          return read;
        }};
        tried().then((read) => {{ window.tried = read; }});
        </script>"
    )
}

/// Another origin: another port of the same address, and another name of this machine.
#[test]
fn no_other_page_reads_or_changes_anything() {
    let upstream = Upstream::start();
    let with_token = setup(&upstream)
        .admin("dashboard: true, token: {file: admin.token}")
        .file("admin.token", TOKEN)
        .start();
    let without = setup(&upstream).start();
    let browser = Browser::start();
    for (gateway, wants_token) in [(&without, false), (&with_token, true)] {
        let abuser = from("192.0.2.66");
        assert_eq!(gateway.statuses(&abuser, 6), [200, 200, 200, 200, 200, 429]);
        let target = page(gateway);
        let evil = Upstream::answering(move |_| {
            let mut answer = upstream::text(&attacking_page(&target));
            let html = http::HeaderValue::from_static("text/html");
            answer.headers_mut().insert("content-type", html);
            answer
        });
        // Signed in, in another page of the same browser.
        browser.open(&page(gateway));
        if wants_token {
            browser.sees("#login", "Token");
            browser.fill("#token", TOKEN);
            browser.click("#login button");
        }
        browser.sees("#connection", "live");
        for host in ["127.0.0.1", "localhost"] {
            browser.open(&format!("http://{host}:{}/", evil.address().port()));
            browser.wait("window.tried");
            let read = browser.run("return window.tried");
            let read = read.as_array().unwrap();
            assert_eq!(read.len(), 7);
            for attempt in read {
                assert!(
                    attempt[1] == "refused" || attempt[1] == "opaque",
                    "{attempt}"
                );
            }
            // The form has been sent when its frame shows the answer, which is not of this origin.
            browser.wait(
                "(() => { try { return !window.frames.result.document } catch { return true } })()",
            );
            assert_eq!(
                browser.run("return document.getElementById('frame').contentDocument"),
                json!(null)
            );
        }
        assert_eq!(gateway.statuses(&abuser, 1), [429]);
        assert_eq!(gateway.statuses(&from("192.0.2.1"), 1), [200]);
        assert_eq!(gateway.times_logged("bucket re"), 0);
        assert_eq!(gateway.times_logged("ban set"), 0);
    }
}

#[test]
fn the_token_is_typed_and_kept_in_the_tab_until_its_user_signs_out() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream)
        .admin("dashboard: true, token: {file: admin.token}")
        .file("admin.token", TOKEN)
        .start();
    gateway.statuses(&from("192.0.2.66"), 9);
    let browser = Browser::start();
    browser.open(&page(&gateway));
    browser.sees("#login", "Token");
    assert_eq!(browser.text("#panels"), "");
    for wrong in ["0123456789abcdef0123456789abcdeF", "caf\u{e9} \u{4f60}"] {
        browser.fill("#token", wrong);
        browser.click("#login button");
        browser.sees("#login-error", "This is not the token.");
        assert_eq!(browser.text("#panels"), "");
    }
    browser.fill("#token", TOKEN);
    browser.click("#login button");
    browser.sees("#limit-rows", "5 allowed, 4 denied");
    assert_eq!(browser.run("return document.cookie"), "");
    browser.open(&page(&gateway));
    browser.sees("#limit-rows", "5 allowed, 4 denied");
    browser.click("#sign-out");
    browser.sees("#login", "Token");
    assert_eq!(browser.run("return sessionStorage.length"), 0);
    browser.open(&page(&gateway));
    browser.sees("#login", "Token");
}

#[test]
fn a_bucket_is_reset_by_the_keyboard_alone() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let abuser = from("192.0.2.66");
    assert_eq!(gateway.statuses(&abuser, 6)[4..], [200, 429]);
    let browser = dashboard(&gateway);
    choose_hour(&browser);
    browser.sees("#subject-rows", "192.0.2.66");
    let focus = |what: &str| {
        let is_there = format!("return document.activeElement.matches('{what}')");
        eventually(&format!("the focus on {what}"), || {
            browser.press(keys::TAB);
            (browser.run(&is_there) == true).then_some(())
        });
    };
    focus("#subject-rows button");
    browser.press(keys::ENTER);
    browser.sees("#subject-state", "5 of 5 used");
    focus("#do-reset");
    browser.press(keys::ENTER);
    // The focus is on the button that confirms.
    browser.wait("document.activeElement.closest('#subject-form')");
    browser.press(keys::ENTER);
    browser.sees("#subject-result", "Reset: 5 left");
    assert_eq!(gateway.statuses(&abuser, 1), [200]);
    browser.press(keys::ESCAPE);
    browser.wait("!document.getElementById('subject').open");
    // Rows were refreshed meanwhile, and the focus is where it was.
    browser.wait("document.activeElement.matches('#subject-rows button')");
    assert_quiet(&browser);
}

#[test]
fn the_page_fits_a_phone_and_both_colour_schemes() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let long = "/teams/a-team-with-a-name-that-is-much-too-long-for-any-phone-to-show-in-one-line";
    gateway.statuses(&get(long), 9);
    gateway.statuses(&from("192.0.2.66"), 9);
    let browser = dashboard(&gateway);
    browser.click("#tail-on");
    choose_hour(&browser);
    browser.sees("#subject-rows", "a-team-with");
    let is_too_wide = "return document.documentElement.scrollWidth > window.innerWidth";
    // On a tablet the buttons of subjects were cut off.
    let buttons_in_view = "return [...document.querySelectorAll('#subject-rows button')].every(
        (button) => button.getBoundingClientRect().right <= window.innerWidth)";
    for width in [320, 390, 768, 1024, 1440] {
        browser.screen(width, 800);
        assert_eq!(browser.run(is_too_wide), false, "{width}");
        assert_eq!(browser.run(buttons_in_view), true, "{width}");
    }
    browser.screen(390, 800);
    browser.click(&button("Calls", "192.0.2.66"));
    browser.sees("#subject-state", "5 of 5 used");
    assert_eq!(browser.run(is_too_wide), false);
    browser.click("#subject-close");
    let background = "return getComputedStyle(document.body).backgroundColor";
    browser.prefer("light");
    let light = browser.run(background);
    browser.prefer("dark");
    assert_ne!(browser.run(background), light);
    assert_quiet(&browser);
}

/// 502s were painted as allowed, the server was green, and all was well.
#[test]
fn the_page_never_says_that_all_is_well_while_the_app_is_dead() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let browser = dashboard(&gateway);
    browser.sees("#findings", "ALL IS WELL");
    let dead = upstream.die();
    let clients = Cell::new(0);
    // Each client sends one request, so that no limit denies it.
    let fail = || {
        let client = clients.replace(clients.get() + 1);
        let address = format!("198.51.{}.{}", client / 250, client % 250);
        assert!(gateway.statuses(&from(&address), 1)[0] >= 500);
    };
    let text = format!("1 of 1 fail: {dead} (it cannot be connected to)");
    sees_meanwhile(&browser, "#findings .bad", &text, fail);
    sees_meanwhile(&browser, "#findings", "requests of route all", fail);
    sees_meanwhile(&browser, "#upstream-rows .bad", "failing", fail);
    assert!(!browser.text("#findings").contains("ALL IS WELL"));
    let painted = "return document.querySelector('#decisions svg').getAttribute('aria-label')";
    eventually("requests that failed, and none that was allowed", || {
        fail();
        let painted = browser.run(painted).to_string();
        let is_failed = |rest: &str| rest.starts_with(|first: char| ('1'..='9').contains(&first));
        let (_, rest) = painted.split_once("Allowed 0, Failed (5xx) ")?;
        is_failed(rest).then_some(())
    });
}

/// It stayed green and "live" for as long as nothing closed its connection.
#[test]
fn the_page_never_looks_live_while_the_gateway_hangs() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let browser = dashboard(&gateway);
    browser.sees("#findings", "ALL IS WELL");
    gateway.signal("STOP");
    browser.sees("#connection.warn", "stale");
    browser.sees("#findings .bad", "The gateway has sent nothing for");
    assert!(!browser.text("#findings").contains("ALL IS WELL"));
    browser.sees("#connection.bad", "lost");
    // Who pauses the page does not make it live.
    browser.click("#pause");
    browser.sees("#connection.bad", "lost");
    browser.click("#pause");
    gateway.signal("CONT");
    browser.sees("#connection.good", "live");
    browser.sees("#findings", "ALL IS WELL");
}

#[test]
fn the_page_says_that_the_gateway_is_gone_and_goes_on_when_it_is_back() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    gateway.keep_ports();
    let browser = dashboard(&gateway);
    let successor = gateway.successor();
    gateway.signal("TERM");
    drop(gateway);
    successor.statuses(&from("192.0.2.66"), 9);
    browser.sees("#limit-rows", "5 allowed, 4 denied");
    browser.sees("#connection", "live");
}

/// It looked like the page of a gateway that has no others.
#[test]
fn a_page_that_is_opened_without_redis_never_hides_that_its_gateway_is_alone() {
    let mut server = RedisServer::start();
    let upstream = Upstream::start();
    let store = crate::redis::store(&server.url()).replace("deny", "local");
    let gateway = setup(&upstream).key(&store).start();
    server.kill();
    gateway.statuses(&from("203.0.113.77"), 9);
    let browser = dashboard(&gateway);
    browser.sees(
        "#gateways-note",
        "This gateway shows itself alone: the store",
    );
    browser.sees("#gateway-rows", &gateway.admin_address().to_string());
    browser.sees("#findings", "This gateway shows its own figures alone");
    browser.sees("#subjects-note", "This gateway alone");
}

#[test]
fn the_page_of_one_gateway_never_hides_what_others_of_its_redis_have_counted() {
    let server = RedisServer::start();
    let upstream = Upstream::start();
    let setup = setup(&upstream).key(&crate::redis::store(&server.url()));
    let all = [setup.start(), setup.start()];
    for gateway in &all {
        gateway.statuses(&from("203.0.113.77"), 9);
    }
    let browser = dashboard(&all[0]);
    choose_hour(&browser);
    // The figures of both are shown as soon as there are two gateways.
    browser.sees("#subject-rows td.number", "18");
    browser.sees("#subjects-note", "Of 2 gateways.");
    for gateway in &all {
        browser.sees("#gateway-rows", &gateway.admin_address().to_string());
    }
    browser.sees("#findings", "203.0.113.77");
    browser.run("document.querySelector('input[name=scope][value=gateway]').click()");
    browser.sees("#subject-rows td.number", "9");
    browser.run("document.querySelector('input[name=scope][value=fleet]').click()");
    browser.sees("#subject-rows td.number", "18");
    let markup = all[1].read("gateway.yaml");
    all[1].write("gateway.yaml", &markup.replace("count: 9", "count: 8"));
    all[1].reload();
    browser.sees("#gateway-rows", "differs");
    browser.sees("#findings", "no limit differs");
    assert_quiet(&browser);
}
