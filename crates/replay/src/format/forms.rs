//! The forms of logs that are known, one entry each: how its lines are recognised and read, and
//! what one must know of it to believe a replay. The table of REPLAY.md is made of it.

use super::fields::{Field, FieldNames, VARIABLES};

/// A form of logs.
#[derive(Debug)]
pub struct Form {
    pub name: &'static str,
    /// How lines are read.
    pub shape: Shape,
    /// Whether the client is the one that trusted proxies named, so that the log needs no look at
    /// them.
    pub knows_client: bool,
    /// Whether lines have all headers of requests.
    pub has_headers: bool,
    /// Whether queries that requests had may be missing in lines, although those have a target.
    pub may_omit_queries: bool,
    pub notes: Notes,
}

/// What the table of the documentation says of a form.
#[derive(Debug)]
pub struct Notes {
    /// Who writes it, and what was tried.
    pub written_by: &'static str,
    /// Whether its time is that of the beginning or the end, and how exact it is.
    pub time: &'static str,
    pub host: &'static str,
    pub user_agent: &'static str,
    /// The client behind a proxy.
    pub proxied: &'static str,
    /// What becomes of a client that left before the response.
    pub left: &'static str,
}

/// How the lines of a form are read.
#[derive(Debug)]
pub enum Shape {
    Weir,
    Combined,
    Json(JsonForm),
    Text(TextForm),
    /// Columns that a line of `#Fields:` names.
    Columns,
    /// A pattern of the operator's.
    Own,
}

/// A form in JSON. A name with points is that of a field in an object.
#[derive(Debug)]
pub struct JsonForm {
    /// The fields of every line about a request.
    pub marks: &'static [Field],
    pub fields: FieldNames,
    /// The object with all headers.
    pub headers: Option<&'static str>,
}

/// A form by patterns, the first of which that a line has counts.
#[derive(Debug)]
pub struct TextForm {
    pub patterns: &'static [&'static str],
    /// The patterns of lines that another line repeats.
    pub repeated: &'static [&'static str],
    /// The patterns of lines that are not about requests.
    pub others: &'static [&'static str],
}

/// The form that an operator describes by a pattern.
pub static OWN: Form = Form {
    name: "pattern",
    shape: Shape::Own,
    knows_client: false,
    has_headers: false,
    may_omit_queries: false,
    notes: Notes {
        written_by: "`--format` with a pattern",
        time: "as its variables",
        host: "`$host`",
        user_agent: "`$http_user_agent`",
        proxied: "`$http_x_forwarded_for`",
        left: "as the server logs it",
    },
};

/// All forms, in the order in which a log is held to them. nginx's names are common ones, so its
/// form comes last.
pub static FORMS: [Form; 18] = [
    Form {
        name: "weir",
        shape: Shape::Weir,
        knows_client: true,
        has_headers: false,
        may_omit_queries: true,
        notes: Notes {
            written_by: "Weir's [own log](LOGS.md#the-access-log) with `log.format: json`",
            time: "decision, ns",
            host: "yes",
            user_agent: "yes",
            proxied: "resolved",
            left: "499",
        },
    },
    Form {
        name: "combined",
        shape: Shape::Combined,
        knows_client: false,
        has_headers: false,
        may_omit_queries: false,
        notes: Notes {
            written_by: "nginx 1.22, Apache 2.4, lighttpd 1.4, ingress-nginx's format, Weir's \
                         `access_format: combined`, Traefik's text, gunicorn, h2o, Varnish, Tomcat, \
                         morgan, Squid's `combined`, HAProxy's `httplog clf`; the common log \
                         format; APISIX by its default configuration, not run",
            time: "end, s (Apache, Varnish, h2o, Traefik: begin); ms if `%t` has them",
            host: "`vhost_combined`, lighttpd, APISIX",
            user_agent: "yes; not in the common format, HAProxy's and Traefik's",
            proxied: "nginx's `main`: third text in quotes; or the list in place of the client",
            left: "499 (nginx, Traefik), 200 (Apache, lighttpd, h2o, gunicorn, HAProxy), 0 (Squid)",
        },
    },
    Form {
        name: "haproxy",
        shape: Shape::Text(TextForm {
            patterns: &[
                // `option httpslog` has the SNI behind the request.
                "$remote_addr_port [$time_begin] $_ $_/$_ $_/$_/$_/$_/$request_time_ms $status $_ \
                 $_ $_ $_ $_/$_/$_/$_/$_ $_/$_ \"$request\" $_/$_/$_/$_/$_ $host/$_/$_",
                "$remote_addr_port [$time_begin] $_ $_/$_ $_/$_/$_/$_/$request_time_ms $status $_ \
                 $_ $_ $_ $_/$_/$_/$_/$_ $_/$_ \"$request\"",
                // Captured headers, which lines do not name.
                "$remote_addr_port [$time_begin] $_ $_/$_ $_/$_/$_/$_/$request_time_ms $status $_ \
                 $_ $_ $_ $_/$_/$_/$_/$_ $_/$_ {$_} \"$request\"",
                "$remote_addr_port [$time_begin] $_ $_/$_ $_/$_/$_/$_/$request_time_ms $status $_ \
                 $_ $_ $_ $_/$_/$_/$_/$_ $_/$_ {$_} {$_} \"$request\"",
            ],
            repeated: &[],
            others: &["$remote_addr_port [$time_begin] $_/$_: $_"],
        }),
        knows_client: false,
        has_headers: false,
        may_omit_queries: false,
        notes: Notes {
            written_by: "HAProxy 2.6: `option httplog`, `option httpslog`",
            time: "begin, ms, no offset (read as UTC)",
            host: "HTTP/2, and the SNI of `httpslog`",
            user_agent: "no",
            proxied: "no",
            left: "200, or -1",
        },
    },
    Form {
        name: "envoy",
        shape: Shape::Text(TextForm {
            patterns: &[
                // Istio's.
                "[$time_begin] \"$request\" $status $_ $_ $_ \"$_\" $_ $_ $request_time_ms $_ \
                 \"$http_x_forwarded_for\" \"$http_user_agent\" \"$_\" \"$host\" \"$_\" $_ $_ $_ \
                 $remote_addr $_",
                "[$time_begin] \"$request\" $status $_ $_ $_ $request_time_ms $_ \
                 \"$http_x_forwarded_for\" \"$http_user_agent\" \"$_\" \"$host\" \"$_\"",
            ],
            repeated: &[],
            others: &[],
        }),
        knows_client: false,
        has_headers: false,
        may_omit_queries: false,
        notes: Notes {
            written_by: "Envoy 1.40's default text; Istio's default text by its documentation, not run",
            time: "begin, ms",
            host: "yes",
            user_agent: "yes",
            proxied: "X-Forwarded-For; Envoy's has no peer, Istio's has it with its port",
            left: "0",
        },
    },
    Form {
        name: "alb",
        shape: Shape::Text(TextForm {
            patterns: &[
                "$_ $time_iso8601 $_ $remote_addr_port $_ $_ $_ $_ $status $_ $_ $_ \"$request\" \
                 \"$http_user_agent\" $_ $_ $_ \"$_\" \"$host\" \"$_\" $_ $time_begin \"$_\"",
            ],
            repeated: &[],
            others: &[],
        }),
        knows_client: false,
        has_headers: false,
        may_omit_queries: false,
        notes: Notes {
            written_by: "AWS Application Load Balancer; by its documentation, not run",
            time: "begin, and when the response was made; µs, UTC",
            host: "yes",
            user_agent: "yes",
            proxied: "no: the proxy is the client",
            left: "460",
        },
    },
    Form {
        name: "squid",
        shape: Shape::Text(TextForm {
            patterns: &[
                "$msec $request_time_ms $remote_addr $_/$status $_ $request_method $request_uri $_ \
                 $_/$_ $_",
            ],
            repeated: &[],
            others: &[],
        }),
        knows_client: false,
        has_headers: false,
        may_omit_queries: true,
        notes: Notes {
            written_by: "Squid 5.7, native",
            time: "end, ms, with duration",
            host: "yes",
            user_agent: "no",
            proxied: "no",
            left: "000",
        },
    },
    Form {
        name: "hypercorn",
        shape: Shape::Text(TextForm {
            patterns: &[
                "[$_] [$_] [$_] $remote_addr_port - - [$time_local] \"$request\" $status $_ \
                 \"$http_referer\" \"$http_user_agent\"",
            ],
            // Clients that left have a second line, with a status.
            repeated: &["[$_] [$_] [$_] $_ - - [$_] \"$_\" - - "],
            others: &["[$_] [$_] [$_] $_"],
        }),
        knows_client: false,
        has_headers: false,
        may_omit_queries: true,
        notes: Notes {
            written_by: "hypercorn 0.18 (queries are not logged)",
            time: "end, s",
            host: "no",
            user_agent: "yes",
            proxied: "no",
            left: "a line without a status, which is left out, and one with 200",
        },
    },
    Form {
        name: "granian",
        shape: Shape::Text(TextForm {
            patterns: &["[$time_begin] $remote_addr - \"$request\" $status $request_time_ms"],
            repeated: &[],
            others: &["[INFO] $_", "[WARNING] $_", "[ERROR] $_"],
        }),
        knows_client: false,
        has_headers: false,
        may_omit_queries: true,
        notes: Notes {
            written_by: "granian 2.8 (queries are not logged)",
            time: "begin, s, with duration",
            host: "no",
            user_agent: "no",
            proxied: "no",
            left: "200",
        },
    },
    Form {
        name: "uvicorn",
        shape: Shape::Text(TextForm {
            patterns: &["INFO: $remote_addr_port - \"$request\" $status $_"],
            repeated: &[],
            others: &["INFO: $_", "WARNING: $_", "ERROR: $_"],
        }),
        knows_client: false,
        has_headers: false,
        may_omit_queries: false,
        notes: Notes {
            written_by: "uvicorn 0.54, behind a prefix that has a time",
            time: "that of the prefix",
            host: "no",
            user_agent: "no",
            proxied: "believed from 127.0.0.1",
            left: "no line",
        },
    },
    Form {
        name: "w3c",
        shape: Shape::Columns,
        knows_client: false,
        has_headers: false,
        may_omit_queries: false,
        notes: Notes {
            written_by: "IIS, AWS CloudFront: columns that `#Fields:` names; by their documentation, \
                         not run",
            time: "s, UTC, with duration; CloudFront: end; IIS: its documentation does not say, \
                   and it is taken for the end",
            host: "`cs-host`, CloudFront: `x-host-header`",
            user_agent: "`cs(User-Agent)`",
            proxied: "`x-forwarded-for`, which IIS has as a field of one's own",
            left: "CloudFront: 000 before the response; IIS: not documented",
        },
    },
    Form {
        name: "caddy",
        shape: Shape::Json(JsonForm {
            marks: &[Field::Ended, Field::Target],
            fields: &[
                (Field::Ended, &["ts"]),
                (Field::TookSeconds, &["duration"]),
                (
                    Field::Client,
                    // Before 2.5 there was an address with its port alone.
                    &[
                        "request.client_ip",
                        "request.remote_ip",
                        "request.remote_addr",
                    ],
                ),
                (Field::Method, &["request.method"]),
                (Field::Target, &["request.uri"]),
                (Field::Host, &["request.host"]),
                (Field::Status, &["status"]),
                (Field::User, &["user_id"]),
            ],
            headers: Some("request.headers"),
        }),
        knows_client: true,
        has_headers: true,
        may_omit_queries: false,
        notes: Notes {
            written_by: "Caddy 2.11, JSON; it has all headers but secret ones",
            time: "end, ns, with duration",
            host: "yes",
            user_agent: "yes",
            proxied: "resolved (`client_ip`)",
            left: "499",
        },
    },
    Form {
        name: "traefik",
        shape: Shape::Json(JsonForm {
            marks: &[Field::Method],
            fields: &[
                (Field::Began, &["StartUTC", "StartLocal"]),
                (Field::TookNanos, &["Duration"]),
                (Field::Client, &["ClientHost", "ClientAddr"]),
                (Field::Forwarded, &["request_X-Forwarded-For"]),
                (Field::Method, &["RequestMethod"]),
                (Field::Target, &["RequestPath"]),
                (Field::Host, &["RequestHost"]),
                (Field::Status, &["DownstreamStatus"]),
                (Field::UserAgent, &["request_User-Agent"]),
                (Field::Referer, &["request_Referer"]),
                (Field::User, &["ClientUsername"]),
            ],
            headers: None,
        }),
        knows_client: false,
        has_headers: false,
        may_omit_queries: false,
        notes: Notes {
            written_by: "Traefik 3.7, JSON",
            time: "begin, ns, with duration",
            host: "yes",
            user_agent: "if the log keeps it (`fields.headers`)",
            proxied: "X-Forwarded-For, if the log keeps it",
            left: "499",
        },
    },
    Form {
        name: "envoy-json",
        shape: Shape::Json(JsonForm {
            marks: &[Field::Began, Field::Status],
            fields: &[
                (Field::Began, &["start_time"]),
                (Field::TookMillis, &["duration"]),
                (
                    Field::Client,
                    &[
                        "downstream_remote_address",
                        "downstream_remote_address_without_port",
                    ],
                ),
                (Field::Forwarded, &["x_forwarded_for"]),
                (Field::Method, &["method"]),
                (Field::Target, &["path"]),
                (Field::Host, &["authority"]),
                (Field::Status, &["response_code"]),
                (Field::UserAgent, &["user_agent"]),
            ],
            headers: None,
        }),
        knows_client: false,
        has_headers: false,
        may_omit_queries: false,
        notes: Notes {
            written_by: "Envoy 1.40, JSON with the names of its documentation",
            time: "begin, ms, with duration",
            host: "yes",
            user_agent: "yes",
            proxied: "X-Forwarded-For",
            left: "0",
        },
    },
    Form {
        name: "pino",
        shape: Shape::Json(JsonForm {
            marks: &[Field::Ended, Field::Method],
            fields: &[
                (Field::Ended, &["time"]),
                (Field::TookMillis, &["responseTime"]),
                (Field::Client, &["req.remoteAddress"]),
                (Field::Forwarded, &["req.headers.x-forwarded-for"]),
                (Field::Method, &["req.method"]),
                (Field::Target, &["req.url"]),
                (Field::Host, &["req.headers.host", "req.host"]),
                (Field::Status, &["res.statusCode"]),
            ],
            headers: Some("req.headers"),
        }),
        knows_client: false,
        has_headers: false,
        may_omit_queries: false,
        notes: Notes {
            written_by: "pino-http 11.0 and Fastify 5.12, JSON",
            time: "end, ms, with duration; Fastify: begin, ms, without",
            host: "yes",
            user_agent: "pino-http, with all headers; Fastify: no",
            proxied: "pino-http: X-Forwarded-For",
            left: "null; Fastify: no status is read, since another line has it",
        },
    },
    Form {
        name: "kong",
        shape: Shape::Json(JsonForm {
            marks: &[Field::Began, Field::Method],
            fields: &[
                (Field::Began, &["started_at"]),
                (Field::TookMillis, &["latencies.request"]),
                (Field::Client, &["client_ip"]),
                (Field::Method, &["request.method"]),
                (Field::Target, &["request.uri"]),
                (Field::Host, &["request.headers.host"]),
                (Field::Status, &["response.status"]),
                (Field::User, &["consumer.username"]),
            ],
            headers: Some("request.headers"),
        }),
        knows_client: true,
        has_headers: true,
        may_omit_queries: false,
        notes: Notes {
            written_by: "Kong's `file-log` and `http-log`, an object a line; by its source, not run",
            time: "begin, ms, with duration",
            host: "yes",
            user_agent: "yes, with all headers",
            proxied: "resolved (`trusted_ips`)",
            left: "as nginx, in which it runs: 499",
        },
    },
    Form {
        name: "google",
        shape: Shape::Json(JsonForm {
            marks: &[Field::Began, Field::Method],
            fields: &[
                (Field::Began, &["timestamp"]),
                (Field::TookSeconds, &["httpRequest.latency"]),
                (Field::Client, &["httpRequest.remoteIp"]),
                (Field::Method, &["httpRequest.requestMethod"]),
                (Field::Target, &["httpRequest.requestUrl"]),
                (Field::Status, &["httpRequest.status"]),
                (Field::UserAgent, &["httpRequest.userAgent"]),
                (Field::Referer, &["httpRequest.referer"]),
            ],
            headers: None,
        }),
        knows_client: false,
        has_headers: false,
        may_omit_queries: false,
        notes: Notes {
            written_by: "Google Cloud's external Application Load Balancers, an entry a line; by \
                         their documentation, not run",
            time: "begin, with duration, UTC",
            host: "yes",
            user_agent: "yes",
            proxied: "no: the proxy is the client",
            left: "0",
        },
    },
    Form {
        name: "cloudflare",
        shape: Shape::Json(JsonForm {
            marks: &[Field::Method],
            fields: &[
                (Field::Began, &["EdgeStartTimestamp"]),
                (Field::Ended, &["EdgeEndTimestamp"]),
                (Field::Client, &["ClientIP"]),
                (Field::Method, &["ClientRequestMethod"]),
                (Field::Target, &["ClientRequestURI", "ClientRequestPath"]),
                (Field::Host, &["ClientRequestHost"]),
                (Field::Status, &["EdgeResponseStatus"]),
                (Field::UserAgent, &["ClientRequestUserAgent"]),
                (Field::Referer, &["ClientRequestReferer"]),
            ],
            headers: None,
        }),
        knows_client: false,
        has_headers: false,
        may_omit_queries: false,
        notes: Notes {
            written_by: "Cloudflare Logpush, `http_requests` as `ndjson`; by its documentation, not \
                         run; subrequests of Workers count",
            time: "begin and end, UTC; `timestamp_format: unixnano`: ns, `unix`: s",
            host: "yes",
            user_agent: "yes",
            proxied: "no: what connects to Cloudflare is the client",
            left: "499",
        },
    },
    Form {
        name: "nginx-json",
        shape: Shape::Json(JsonForm {
            marks: &[],
            fields: VARIABLES,
            headers: None,
        }),
        knows_client: false,
        has_headers: false,
        may_omit_queries: false,
        notes: Notes {
            written_by: "nginx 1.22, JSON of its variables, by their names or other common ones",
            time: "end; `msec`: ms, `time_iso8601`: s; with `request_time`",
            host: "`host`",
            user_agent: "`http_user_agent`",
            proxied: "`http_x_forwarded_for`",
            left: "499",
        },
    },
];

/// The table of all forms, as REPLAY.md has it.
pub fn forms_table() -> String {
    let head = [
        "| form | written by | time | host | user agent | client behind a proxy | client that left |",
        "|---|---|---|---|---|---|---|",
    ];
    let row = |form: &Form| {
        let notes = &form.notes;
        format!(
            "| `{}` | {} | {} | {} | {} | {} | {} |",
            form.name,
            notes.written_by,
            notes.time,
            notes.host,
            notes.user_agent,
            notes.proxied,
            notes.left
        )
    };
    let rows = FORMS.iter().chain([&OWN]).map(row);
    let lines = head.map(str::to_owned).into_iter().chain(rows);
    lines.map(|line| line + "\n").collect()
}
