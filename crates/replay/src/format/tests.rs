//! A line of each form, in the shape in which its server wrote it, with other values.

use super::*;

/// What a line tells.
#[derive(Debug, Default, PartialEq)]
struct Told {
    client: &'static str,
    request: &'static str,
    status: Option<u16>,
    /// Milliseconds since 10:00 on 21 November 2026 in UTC.
    at: u64,
    took: u64,
    host: Option<&'static str>,
    user_agent: Option<&'static str>,
    user: Option<&'static str>,
}

const TEN: u64 = 1_795_255_200_000;

/// A request as nearly all the lines below have it.
const SHOP: Told = Told {
    client: "203.0.113.1",
    request: "GET /a?b=c%20d",
    status: Some(200),
    at: 0,
    took: 0,
    host: Some("shop.example:8080"),
    user_agent: Some("test/1.0 (x)"),
    user: None,
};

fn parsed(format: &Format, lines: &str, options: ParseOptions<'_>) -> Vec<Parsed> {
    let mut parser = format.parser(ParseOptions {
        detail_set: DetailSet::ALL,
        ..options
    });
    lines
        .lines()
        .map(|line| parser.parse(line.as_bytes()))
        .collect()
}

#[track_caller]
fn assert_tells(form: &str, lines: &str, told: &Told) {
    let format = Format::detect(lines.as_bytes(), None);
    let format = format.unwrap_or_else(|| panic!("no form: {lines}"));
    assert_eq!(format.to_string(), form, "{lines}");
    let mut all = parsed(&format, lines, ParseOptions::default());
    let Some(Parsed::Request(line)) = all.pop() else {
        panic!("not a request: {lines}");
    };
    assert_request(&line, told);
}

#[track_caller]
fn assert_request(line: &LogLine, told: &Told) {
    let details = line.details.clone().unwrap_or_default();
    let header = |name| {
        details
            .headers
            .get(name)
            .map(|value| value.to_str().unwrap())
    };
    let target = str::from_utf8(&line.target).unwrap();
    let millis = |time: Timestamp| time.as_nanos() / 1_000_000;
    assert_eq!(line.client.to_string(), told.client);
    assert_eq!(format!("{} {target}", line.method), told.request);
    assert_eq!(line.status.map(|status| status.as_u16()), told.status);
    assert_eq!(millis(line.at), TEN + told.at, "{line:?}");
    assert_eq!(millis(line.ended) - millis(line.at), told.took, "{line:?}");
    assert_eq!(header("host"), told.host);
    assert_eq!(header("user-agent"), told.user_agent);
    assert_eq!(details.account.as_deref(), told.user);
}

#[test]
fn the_combined_format_of_every_server_is_read() {
    const NO_HOST: Told = Told { host: None, ..SHOP };
    for (line, told) in [
        (
            r#"203.0.113.1 - me [21/Nov/2026:10:00:00 +0000] "GET /a?b=c%20d HTTP/1.1" 200 5 "-" "test/1.0 (x)""#,
            Told {
                user: Some("me"),
                ..NO_HOST
            },
        ),
        (
            r#"203.0.113.1 - - [21/Nov/2026:11:00:00 +0100] "GET /a?b=c%20d HTTP/1.1" 200 5"#,
            Told {
                user_agent: None,
                ..NO_HOST
            },
        ),
        // Apache's vhost_combined, lighttpd and APISIX.
        (
            r#"shop.example:8080 203.0.113.1 - me [21/Nov/2026:10:00:00 +0000] "GET /a?b=c%20d HTTP/1.1" 200 5 "-" "test/1.0 (x)""#,
            Told {
                user: Some("me"),
                ..SHOP
            },
        ),
        (
            r#"203.0.113.1 shop.example:8080 - [21/Nov/2026:10:00:00 +0000] "GET /a?b=c%20d HTTP/1.1" 200 5 "-" "test/1.0 (x)""#,
            SHOP,
        ),
        (
            r#"203.0.113.1 - - [21/Nov/2026:10:00:00 +0000] shop.example:8080 "GET /a?b=c%20d HTTP/1.1" 200 5 0.001 "-" "test/1.0 (x)" 203.0.113.9:80 200 0.001 "http://shop.example/a""#,
            SHOP,
        ),
        // Apache with milliseconds, and a time in ISO 8601.
        (
            r#"203.0.113.1 - - [21/Nov/2026:10:00:00.123 +0000] "GET /a?b=c%20d HTTP/1.1" 200 5 "-" "test/1.0 (x)""#,
            Told { at: 123, ..NO_HOST },
        ),
        (
            r#"203.0.113.1 - - [2026-11-21T10:00:00.5Z] "GET /a?b=c%20d HTTP/1.1" 200 5 "-" "test/1.0 (x)""#,
            Told { at: 500, ..NO_HOST },
        ),
        // A client with its port, one that left, escapes, and an absolute target.
        (
            r#"[2001:db8::1]:4711 - - [21/Nov/2026:10:00:00 +0000] "GET /a?b=c%20d HTTP/1.1" 499 0 "-" "te\"s\x22t""#,
            Told {
                client: "2001:db8::1",
                status: None,
                user_agent: Some("te\"s\"t"),
                ..NO_HOST
            },
        ),
        (
            r#"203.0.113.1:4711 - - [21/Nov/2026:10:00:00 +0000] "GET http://shop.example:8080/a?b=c%20d HTTP/1.1" - - "-" "test/1.0 (x)""#,
            Told {
                status: None,
                ..SHOP
            },
        ),
    ] {
        assert_tells("combined", line, &told);
        let marked = format!("\u{feff}{line}\r");
        assert_tells("combined", marked.trim_end(), &told);
    }
}

#[test]
fn a_list_in_place_of_the_client_is_never_taken_for_a_host() {
    let line = |names: &str| {
        format!(r#"{names} - - [21/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 5 "-" "x""#)
    };
    let told = |host, client| Told {
        client,
        host,
        request: "GET /",
        user_agent: Some("x"),
        ..SHOP
    };
    for (names, told) in [
        ("203.0.113.1, 10.0.0.1", told(None, "203.0.113.1")),
        ("203.0.113.1,10.0.0.1", told(None, "203.0.113.1")),
        ("203.0.113.1, 10.0.0.2, 10.0.0.1", told(None, "203.0.113.1")),
        ("2001:db8::1, 10.0.0.1", told(None, "2001:db8::1")),
        ("[2001:db8::1]:80, 10.0.0.1", told(None, "2001:db8::1")),
        ("203.0.113.1:80, 10.0.0.1", told(None, "203.0.113.1")),
        (
            "a.example:443 203.0.113.1, 10.0.0.1",
            told(Some("a.example:443"), "203.0.113.1"),
        ),
        (
            "192.0.2.9:443 203.0.113.1",
            told(Some("192.0.2.9:443"), "203.0.113.1"),
        ),
    ] {
        assert_tells("combined", &line(names), &told);
    }
    let format: Format = "combined".parse().unwrap();
    for names in ["unknown, 10.0.0.1", "-", "unknown", "x, y", "-, 10.0.0.1"] {
        let parsed = parsed(&format, &line(names), ParseOptions::default());
        assert!(
            matches!(parsed[0], Parsed::Malformed(_)),
            "{names}: {parsed:?}"
        );
    }
}

#[test]
fn the_text_of_haproxy_and_envoy_is_read() {
    const HAPROXY: Told = Told {
        host: None,
        user_agent: None,
        took: 1505,
        ..SHOP
    };
    for (line, told) in [
        (
            r#"203.0.113.1:57530 [21/Nov/2026:10:00:00.150] plain app/a 0/0/0/1500/1505 200 103 - - ---- 1/1/0/0/0 0/0 "GET /a?b=c%20d HTTP/1.1""#,
            Told { at: 150, ..HAPROXY },
        ),
        (
            r#"2001:db8::1:8080 [21/Nov/2026:10:00:00.150] plain app/a 0/0/0/0/+1505 200 103 - - ---- 1/1/0/0/0 0/0 {shop.example|te#22st/1.0 (x)} {|x} "GET /a?b=c%20d HTTP/1.1""#,
            Told {
                at: 150,
                client: "2001:db8::1",
                ..HAPROXY
            },
        ),
        (
            r#"203.0.113.1:42632 [21/Nov/2026:10:00:00.150] s~ app/a 0/0/0/1/1505 200 103 - - ---- 3/1/2/2/0 0/0 "GET https://shop.example:8080/a?b=c%20d HTTP/2.0" 0/0000000000000000/0/0/0 shop.example/TLSv1.3/TLS_AES_256_GCM_SHA384"#,
            Told {
                at: 150,
                host: SHOP.host,
                ..HAPROXY
            },
        ),
        (
            r#"203.0.113.1:42632 [21/Nov/2026:10:00:00.150] s~ app/a 0/0/0/1/1505 200 103 - - ---- 3/1/2/2/0 0/0 "GET /a?b=c%20d HTTP/1.1" 0/0000000000000000/0/0/0 shop.example/TLSv1.3/TLS_AES_256_GCM_SHA384"#,
            Told {
                at: 150,
                host: Some("shop.example"),
                ..HAPROXY
            },
        ),
    ] {
        assert_tells("haproxy", line, &told);
    }
    assert_tells(
        "envoy",
        r#"[2026-11-21T10:00:00.249Z] "GET /a?b=c%20d HTTP/1.1" 200 - 0 2 33 32 "203.0.113.1" "test/1.0 (x)" "31e059db-7538" "shop.example:8080" "192.0.2.4:18404""#,
        &Told {
            at: 249,
            took: 33,
            ..SHOP
        },
    );
    assert_tells(
        "envoy",
        r#"[2026-11-21T10:00:00.249Z] "GET /a?b=c%20d HTTP/1.1" 200 - via_upstream - "-" 0 2 33 32 "-" "test/1.0 (x)" "31e059db-7538" "shop.example:8080" "192.0.2.4:80" outbound|80||a 192.0.2.5:1 192.0.2.6:80 203.0.113.1:4711 - default"#,
        &Told {
            at: 249,
            took: 33,
            ..SHOP
        },
    );
    assert_tells(
        "envoy-json",
        r#"{"authority":"shop.example:8080","bytes_sent":2,"downstream_remote_address":"203.0.113.1:49678","duration":33,"method":"GET","path":"/a?b=c%20d","protocol":"HTTP/1.1","response_code":200,"response_flags":"-","start_time":"2026-11-21T10:00:00.249Z","user_agent":"test/1.0 (x)","x_forwarded_for":"203.0.113.1"}"#,
        &Told {
            at: 249,
            took: 33,
            ..SHOP
        },
    );
}

#[test]
fn the_logs_of_clouds_are_read() {
    assert_tells(
        "alb",
        r#"h2 2026-11-21T10:00:00.250000Z app/my-alb/50dc6c495c0c9188 203.0.113.1:2817 192.0.2.1:80 0.000 0.249 0.001 200 200 34 366 "GET https://shop.example:8080/a?b=c%20d HTTP/2.0" "test/1.0 (x)" ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 arn:aws:elasticloadbalancing:us-east-2:123456789012:targetgroup/t/73e2d6bc24d8a067 "Root=1-58337364-23a8c76965a2ef7629b185e3" "shop.example" "arn:aws:acm:us-east-2:123456789012:certificate/1" 0 2026-11-21T10:00:00.000000Z "forward" "-" "-" "192.0.2.1:80" "200" "-" "-""#,
        &Told { took: 250, ..SHOP },
    );
    assert_tells(
        "w3c",
        "#Version: 1.0\n#Fields: date time x-edge-location sc-bytes c-ip cs-method cs(Host) \
         cs-uri-stem sc-status cs(Referer) cs(User-Agent) cs-uri-query cs(Cookie) \
         x-edge-result-type x-edge-request-id x-host-header cs-protocol cs-bytes time-taken\n\
         2026-11-21\t10:00:00\tFRA56-C1\t1045\t203.0.113.1\tGET\td111.cloudfront.example\t/a\t200\t-\t\
         test/1.0%20(x)\tb=c%20d\t-\tHit\tSOX4xw==\tshop.example:8080\thttps\t23\t0.000",
        &SHOP,
    );
    assert_tells(
        "w3c",
        "#Software: Microsoft Internet Information Services 10.0\n#Version: 1.0\n\
         #Date: 2026-11-21 10:00:00\n#Fields: date time s-ip cs-method cs-uri-stem cs-uri-query \
         s-port cs-username c-ip cs(User-Agent) cs(Referer) cs-host sc-status sc-substatus \
         sc-win32-status time-taken\n\
         2026-11-21 10:00:01 192.0.2.1 GET /a b=c%20d 443 me 203.0.113.1 test/1.0+(x) - \
         shop.example:8080 200 0 0 1000",
        &Told {
            took: 1000,
            user: Some("me"),
            ..SHOP
        },
    );
    assert_tells(
        "google",
        r#"{"httpRequest":{"latency":"0.250000s","protocol":"HTTP/1.1","remoteIp":"203.0.113.1:4711","requestMethod":"GET","requestUrl":"https://shop.example:8080/a?b=c%20d","responseSize":"5","serverIp":"192.0.2.1","status":200,"userAgent":"test/1.0 (x)"},"insertId":"1","receiveTimestamp":"2026-11-21T10:00:01.2Z","severity":"INFO","timestamp":"2026-11-21T10:00:00.000000Z"}"#,
        &Told { took: 250, ..SHOP },
    );
    for (began, ended) in [
        ("1795255200000000000", "1795255200250000000"),
        ("\"2026-11-21T10:00:00Z\"", "\"2026-11-21T10:00:00.25Z\""),
    ] {
        let line = format!(
            r#"{{"ClientIP":"203.0.113.1","ClientRequestHost":"shop.example:8080","ClientRequestMethod":"GET","ClientRequestURI":"/a?b=c%20d","ClientRequestUserAgent":"test/1.0 (x)","EdgeEndTimestamp":{ended},"EdgeResponseStatus":200,"EdgeStartTimestamp":{began},"RayID":"3a6050bcbe121a87"}}"#
        );
        assert_tells("cloudflare", &line, &Told { took: 250, ..SHOP });
    }
}

#[test]
fn a_client_that_left_has_no_status_in_the_logs_of_clouds() {
    const LEFT: Told = Told {
        request: "GET /a",
        status: None,
        ..SHOP
    };
    assert_tells(
        "alb",
        r#"https 2026-11-21T10:00:00.250000Z app/a/1 203.0.113.1:2817 192.0.2.1:80 0.000 -1 -1 460 - 34 0 "GET https://shop.example:8080/a HTTP/1.1" "test/1.0 (x)" - - arn:x "Root=1" "-" "-" 1 2026-11-21T10:00:00.000000Z "forward" "-" "-" "192.0.2.1:80" "-" "-" "-" TID_1 "-" "-" "-""#,
        &Told { took: 250, ..LEFT },
    );
    assert_tells(
        "w3c",
        "#Fields: date time c-ip cs-method cs-uri-stem sc-status cs(User-Agent) x-edge-location \
         x-host-header\n2026-11-21\t10:00:00\t203.0.113.1\tGET\t/a\t000\ttest/1.0%20(x)\tFRA56\t\
         shop.example:8080",
        &LEFT,
    );
    for status in ["\"status\":0,", ""] {
        let line = format!(
            r#"{{"httpRequest":{{"remoteIp":"203.0.113.1","requestMethod":"GET",{status}"requestUrl":"http://shop.example:8080/a","userAgent":"test/1.0 (x)"}},"timestamp":"2026-11-21T10:00:00Z"}}"#
        );
        assert_tells("google", &line, &LEFT);
    }
}

/// CloudFront encodes the percent sign as well, and `cs(Host)` is the name of the distribution.
#[test]
fn a_target_of_cloudfront_is_the_one_that_was_sent_and_its_distribution_is_no_host() {
    assert_tells(
        "w3c",
        "#Fields: date time x-edge-location c-ip cs-method cs(Host) cs-uri-stem sc-status \
         cs(User-Agent) cs-uri-query time-taken\n2026-11-21\t10:00:01\tFRA56\t203.0.113.1\tGET\t\
         d111.cloudfront.example\t/%7Ea%2520b%2\t200\ttest/1.0%20(x)\tc%5B%5D=%27%20\t1.000",
        &Told {
            request: "GET /~a%20b%2?c[]='%20",
            host: None,
            took: 1000,
            ..SHOP
        },
    );
}

#[test]
fn the_best_name_of_a_field_counts_wherever_it_stands() {
    for line in [
        r#"{"client":"192.0.2.9","remote_addr":"203.0.113.1","msec":1795255200.000,"time":"x","method":"PUT","request_method":"GET","uri":"/a","request_uri":"/a?b=c%20d","status":200,"host":"shop.example:8080","user_agent":"test/1.0 (x)"}"#,
        r#"{"remote_addr":"203.0.113.1","client":"192.0.2.9","time":"x","msec":"1795255200.000","request_method":"GET","method":"PUT","request_uri":"/a?b=c%20d","uri":"/a","status":"200","http_host":"b","host":"shop.example:8080","http_user_agent":"test/1.0 (x)","user_agent":"","more":{"remote_addr":"192.0.2.7","list":[{"host":"c"}]}}"#,
    ] {
        assert_tells("nginx-json", line, &SHOP);
    }
    // Neither is a request, nor is it malformed.
    let caddy: Format = "caddy".parse().unwrap();
    let parsed = parsed(
        &caddy,
        "{\"ts\":1,\"request\":\"x\"}\n{\"ts\":1,\"request\":[{\"uri\":\"/\"}]}\n[1]\n{\"ts\":1}x",
        ParseOptions::default(),
    );
    assert!(matches!(
        parsed[..],
        [
            Parsed::Other,
            Parsed::Other,
            Parsed::Malformed(_),
            Parsed::Malformed(_)
        ]
    ));
}

#[test]
fn the_logs_of_app_servers_and_gateways_are_read() {
    assert_tells(
        "squid",
        "1795255200.250    250 203.0.113.1 TCP_MISS/200 185 GET http://shop.example:8080/a?b=c%20d - \
         HIER_DIRECT/192.0.2.1 -",
        &Told {
            took: 250,
            user_agent: None,
            ..SHOP
        },
    );
    const NO_QUERY: Told = Told {
        request: "GET /a",
        host: None,
        ..SHOP
    };
    assert_tells(
        "hypercorn",
        r#"[2026-11-21 10:00:00 +0000] [4813] [INFO] 203.0.113.1:43978 - - [21/Nov/2026:10:00:00 +0000] "GET /a 1.1" 200 2 "-" "test/1.0 (x)""#,
        &NO_QUERY,
    );
    assert_tells(
        "granian",
        "[INFO] Listening at: http://127.0.0.1:18402\n\
         [2026-11-21 10:00:00 +0000] 203.0.113.1 - \"GET /a HTTP/1.1\" 200 1501.883",
        &Told {
            took: 1501,
            user_agent: None,
            ..NO_QUERY
        },
    );
    assert_tells(
        "uvicorn, behind the prefix of CRI",
        "2026-11-21T10:00:00.5Z stderr F INFO:     Application startup complete.\n\
         2026-11-21T10:00:00.5Z stdout F INFO:     203.0.113.1:43864 - \"GET /a?b=c%20d HTTP/1.1\" 200 OK",
        &Told {
            at: 500,
            host: None,
            user_agent: None,
            ..SHOP
        },
    );
    assert_tells(
        "pino",
        r#"{"level":30,"time":1795255200029,"pid":1,"hostname":"vm","req":{"id":1,"method":"GET","url":"/a?b=c%20d","headers":{"host":"shop.example:8080","user-agent":"test/1.0 (x)"},"remoteAddress":"::ffff:203.0.113.1","remotePort":47402},"res":{"statusCode":200,"headers":{}},"responseTime":29,"msg":"request completed"}"#,
        &Told { took: 29, ..SHOP },
    );
    assert_tells(
        "pino",
        "{\"level\":30,\"time\":1795255199000,\"msg\":\"Server listening\"}\n\
         {\"level\":30,\"time\":1795255200000,\"reqId\":\"req-1\",\"req\":{\"method\":\"GET\",\
         \"url\":\"/a?b=c%20d\",\"host\":\"shop.example:8080\",\"remoteAddress\":\"203.0.113.1\"},\
         \"msg\":\"incoming request\"}",
        &Told {
            status: None,
            user_agent: None,
            ..SHOP
        },
    );
    // Both lines of Fastify in one, as the command of the documentation joins them.
    assert_tells(
        "pino",
        r#"{"level":30,"time":1795255200003,"pid":1,"reqId":"req-1","req":{"method":"GET","url":"/a?b=c%20d","host":"shop.example:8080","remoteAddress":"203.0.113.1","remotePort":34672},"msg":"request completed","res":{"statusCode":401},"responseTime":2.559373999999991}"#,
        &Told {
            status: Some(401),
            user_agent: None,
            took: 3,
            ..SHOP
        },
    );
    assert_tells(
        "kong",
        r#"{"response":{"size":9982,"headers":{"server":"x"},"status":200},"latencies":{"request":25,"kong":1,"proxy":24},"client_ip":"203.0.113.1","request":{"id":"2f69","method":"GET","uri":"/a?b=c%20d","url":"http://shop.example:8080/a?b=c%20d","size":101,"querystring":{"b":"c d"},"headers":{"host":"shop.example:8080","user-agent":"test/1.0 (x)"}},"started_at":1795255200000,"upstream_uri":"/a"}"#,
        &Told { took: 25, ..SHOP },
    );
    assert_tells(
        "caddy",
        r#"{"level":"info","ts":1795255200.25,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"192.0.2.1","remote_port":"1","client_ip":"203.0.113.1","proto":"HTTP/1.1","method":"GET","host":"shop.example:8080","uri":"/a?b=c%20d","headers":{"User-Agent":["test/1.0 (x)"]}},"user_id":"me","duration":0.25,"size":5,"status":200}"#,
        &Told {
            took: 250,
            user: Some("me"),
            ..SHOP
        },
    );
    assert_tells(
        "traefik",
        r#"{"ClientHost":"203.0.113.1","ClientUsername":"-","DownstreamStatus":200,"Duration":250000000,"RequestHost":"shop.example:8080","RequestMethod":"GET","RequestPath":"/a?b=c%20d","StartUTC":"2026-11-21T10:00:00Z","request_User-Agent":"test/1.0 (x)","time":"2026-11-21T10:00:00Z"}"#,
        &Told { took: 250, ..SHOP },
    );
    assert_tells(
        "nginx-json",
        r#"{"msec":"1795255200.250","remote_addr":"203.0.113.1","request_method":"GET","request_uri":"/a?b=c%20d","host":"shop.example:8080","status":"200","request_time":"0.250","http_user_agent":"test/1.0 (x)"}"#,
        &Told { took: 250, ..SHOP },
    );
}

#[test]
fn a_form_of_ones_own_is_read_by_its_pattern() {
    let pattern =
        "$time_iso8601|$remote_addr|$host|$request|$status|$request_time|$http_user_agent";
    let line = "2026-11-21T10:00:00.25Z|203.0.113.1|shop.example:8080|GET /a?b=c%20d \
                HTTP/1.1|200|0.250|test/1.0 (x)";
    let format: Format = pattern.parse().unwrap();
    let told = Told { took: 250, ..SHOP };
    for (prefix, name) in [
        ("", "pattern"),
        ("web-1  | ", "pattern, behind the prefix of compose"),
    ] {
        let lines = format!("{prefix}{line}");
        let format = Format::detect(lines.as_bytes(), Some(&format)).unwrap();
        assert_eq!(format.to_string(), name);
        let mut all = parsed(&format, &lines, ParseOptions::default());
        let Some(Parsed::Request(line)) = all.pop() else {
            panic!("not a request: {lines}");
        };
        assert_request(&line, &told);
    }
}

/// A request line that HTTP does not allow was "malformed" in JSON alone.
#[test]
fn what_was_no_request_of_http_is_malformed_in_no_form() {
    for (form, line) in [
        (
            "combined",
            r#"203.0.113.1 - - [21/Nov/2026:10:00:00 +0000] "REQUEST" 400 5 "-" "-""#,
        ),
        (
            "nginx-json",
            r#"{"msec":"1795255200.250","remote_addr":"203.0.113.1","request":"REQUEST","status":"400"}"#,
        ),
        (
            "haproxy",
            r#"203.0.113.1:1 [21/Nov/2026:10:00:00.150] a a/<NOSRV> -1/-1/-1/-1/0 400 0 - - PR-- 1/1/0/0/0 0/0 "REQUEST""#,
        ),
        (
            "envoy",
            r#"[2026-11-21T10:00:00.606Z] "REQUEST" 400 DPE 0 11 0 - "-" "-" "-" "-" "-""#,
        ),
        (
            "squid",
            "1795255200.250 0 203.0.113.1 NONE_NONE/400 3562 NONE error:invalid-request - HIER_NONE/- -",
        ),
    ] {
        let format: Format = form.parse().unwrap();
        for request in [
            "GARBAGE",
            "",
            "GET /a b HTTP/1.1",
            "GET /a b",
            "\\x16\\x03\\x01",
        ] {
            let line = match line.contains('{') {
                true => line.replace("REQUEST", &request.replace('\\', "\\\\")),
                false => line.replace("REQUEST", request),
            };
            let parsed = parsed(&format, &line, ParseOptions::default());
            assert!(
                matches!(parsed[0], Parsed::Other),
                "{form}: {line}: {parsed:?}"
            );
        }
    }
    // Weir's documented form for nginx has the method and the target apart.
    let format: Format = "nginx-json".parse().unwrap();
    for (method, target) in [("", ""), ("GET", "/a b"), ("-", "-")] {
        let line = format!(
            r#"{{"msec":"1795255200.250","remote_addr":"203.0.113.1","request_method":"{method}","request_uri":"{target}","status":"400"}}"#
        );
        let parsed = parsed(&format, &line, ParseOptions::default());
        assert!(matches!(parsed[0], Parsed::Other), "{line}: {parsed:?}");
    }
}

/// One process may write two forms into one log, the rarer of which comes first here.
#[test]
fn the_form_of_a_log_is_that_of_most_of_its_lines() {
    let clf = r#"203.0.113.1 - - [21/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 5 "" """#;
    let haproxy = r#"203.0.113.1:57530 [21/Nov/2026:10:00:00.150] plain app/a 0/0/0/1/5 200 103 - - ---- 1/1/0/0/0 0/0 "GET / HTTP/1.1""#;
    for (lines, form) in [
        (format!("{clf}\n{haproxy}\n{haproxy}\n{haproxy}"), "haproxy"),
        (format!("{haproxy}\n{clf}\n{clf}\n{clf}"), "combined"),
    ] {
        let format = Format::detect(lines.as_bytes(), None).unwrap();
        assert_eq!(format.to_string(), form);
    }
}

#[test]
fn messages_beside_requests_are_not_malformed() {
    for (form, line) in [
        (
            "haproxy",
            "203.0.113.1:1 [21/Nov/2026:10:00:00.150] s/1: SSL handshake failure",
        ),
        (
            "hypercorn",
            "[2026-11-28 11:53:08 +0000] [4813] [INFO] Running on http://127.0.0.1:1",
        ),
        // The second line of a client that left has a status.
        (
            "hypercorn",
            r#"[2026-11-28 11:53:13 +0000] [4813] [INFO] 203.0.113.1:1 - - [28/Nov/2026:11:53:13 +0000] "GET /slow 1.1" - - "-" "curl""#,
        ),
        ("granian", "[INFO] Started worker-1"),
        ("uvicorn", "WARNING:  Invalid HTTP request received."),
        (
            "pino",
            r#"{"level":30,"time":1795255200000,"reqId":"req-1","res":{"statusCode":200}}"#,
        ),
        (
            "caddy",
            r#"{"level":"info","ts":1795255200.25,"msg":"serving initial configuration"}"#,
        ),
        ("w3c", "#Date: 2026-11-21 10:00:00"),
    ] {
        let format: Format = form.parse().unwrap();
        let parsed = parsed(&format, line, ParseOptions::default());
        assert!(
            matches!(parsed[0], Parsed::Other),
            "{form}: {line}: {parsed:?}"
        );
    }
}

#[test]
fn a_trusted_proxy_is_never_the_client_where_the_line_says_who_was_behind_it() {
    let trusted = ["10.0.0.0/8".parse().unwrap()];
    let rules = ClientRules::new(trusted, weir_rules::AddressHeader::XForwardedFor);
    let options = ParseOptions {
        clients: Some(&rules),
        ..ParseOptions::default()
    };
    for (form, line) in [
        (
            "combined",
            r#"10.0.0.1 - - [21/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 5 "-" "x" "LIST""#,
        ),
        (
            "combined",
            r#"LIST, 10.0.0.1 - - [21/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 5 "-" "x""#,
        ),
        (
            "nginx-json",
            r#"{"msec":"1795255200.250","remote_addr":"10.0.0.1","request":"GET / HTTP/1.1","status":"200","http_x_forwarded_for":"LIST"}"#,
        ),
        (
            "traefik",
            r#"{"ClientHost":"10.0.0.1","DownstreamStatus":200,"RequestMethod":"GET","RequestPath":"/","StartUTC":"2026-11-21T10:00:00Z","request_X-Forwarded-For":"LIST"}"#,
        ),
        (
            "envoy",
            r#"[2026-11-21T10:00:00.249Z] "GET / HTTP/1.1" 200 - 0 2 33 32 "LIST,10.0.0.1" "x" "-" "a" "-""#,
        ),
    ] {
        let format: Format = form.parse().unwrap();
        for (list, client) in [
            ("203.0.113.1", "203.0.113.1"),
            ("198.51.100.9, 203.0.113.1", "203.0.113.1"),
            ("203.0.113.1, 10.0.0.7", "203.0.113.1"),
            ("unknown, 10.0.0.7", "10.0.0.7"),
        ] {
            let line = line.replace("LIST", list);
            let mut parsed = parsed(&format, &line, options);
            let Some(Parsed::Request(line)) = parsed.pop() else {
                panic!("not a request: {line}");
            };
            assert_eq!(line.client.to_string(), client, "{form}: {list}");
        }
    }
}

const BEGIN: &str = "<!-- forms -->\n";
const END: &str = "<!-- end -->";

/// `UPDATE_REFERENCE=1` writes it anew.
#[test]
fn the_tables_of_forms_in_the_documentation_are_those_that_are_read() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/REPLAY.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (_, behind) = rest.split_once(END).unwrap();
    let derived = [before, BEGIN, &forms_table(), END, behind].concat();
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        std::fs::write(path, &derived).unwrap();
    }
    assert!(
        text == derived,
        "{path} is not up to date: set UPDATE_REFERENCE=1"
    );
}
