//! Where traces and metrics are sent.

use std::time::Duration;

use http::Uri;
use http::header::{HeaderName, HeaderValue};
use serde::Deserialize;
use weir_proxy::{Server, TlsSettings, UpstreamTls};
use weir_yaml::{
    Entries, FieldName, Lowered, Lowering, PositiveDuration, Secret, Spanned, WordOr, all,
};

use crate::certificates::authorities;
use crate::secret::secret;

const MILLION: u32 = 1_000_000;

const DEFAULT_SERVICE_NAME: &str = "weir";

/// How often metrics are sent; the default of OpenTelemetry.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Telemetry {
    /// The collector.
    pub(crate) otlp: Spanned<Otlp>,
}

/// A collector of OpenTelemetry.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Otlp {
    /// `http://` or `https://`; `/v1/traces` and `/v1/metrics` are added. Type: URL.
    pub(crate) endpoint: Spanned<String>,
    /// Headers of each request to it; a value may be a [secret](#how-values-are-written). Type: names and
    /// values.
    pub(crate) headers: Option<Entries<Spanned<WordOr<Secret>>, FieldName>>,
    /// A PEM file of the certificates to trust in their place. Type: path. Default: public
    /// authorities.
    pub(crate) ca: Option<Spanned<String>>,
    /// How many of the traces that begin here are sent; also of those that other clients than
    /// trusted proxies began. Type: percentage. Default: `100%`.
    pub(crate) sample: Option<Spanned<String>>,
    /// The name of the service. Default: `weir`.
    pub(crate) service_name: Option<String>,
    /// How often metrics are sent; traces are sent each second. Default: `60s`.
    pub(crate) interval: Option<PositiveDuration>,
}

/// Where traces and metrics are sent by OTLP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpSettings {
    /// The URL of the collector, without the path of a signal.
    pub endpoint: String,
    /// The server of the URL.
    pub server: Server,
    /// Headers of each request to it.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// How many of a million traces that begin here are sampled.
    pub sample: u32,
    /// The name of the service in traces and metrics.
    pub service_name: String,
    /// How often metrics are sent.
    pub interval: Duration,
}

/// Where telemetry is sent by OTLP, if it is.
pub(super) fn otlp(
    cx: &mut Lowering<'_>,
    written: Option<&Telemetry>,
) -> Lowered<Option<OtlpSettings>> {
    let Some(written) = written.map(|telemetry| &telemetry.otlp) else {
        return Ok(None);
    };
    if !cfg!(feature = "otlp") {
        let message = "this build of weir has no OTLP";
        let help =
            "build it with `cargo install --path . --features otlp`, or leave `telemetry` out";
        return Err(cx.error(written.span, message).help(help));
    }
    let server = server(cx, written);
    let headers = written.headers.iter().flat_map(|headers| &headers.0);
    let headers = all(headers.map(|(name, written)| {
        let text = header_text(cx, written)?;
        let mut value = cx.ok(written.span, HeaderValue::try_from(text))?;
        value.set_sensitive(true);
        Ok((name.0.clone(), value))
    }));
    let sample = written.sample.as_ref().map(|sample| share(cx, sample));
    let service_name = written.service_name.clone();
    Ok(Some(OtlpSettings {
        endpoint: written.endpoint.value.clone(),
        server: server?,
        headers: headers?,
        sample: sample.transpose()?.unwrap_or(MILLION),
        service_name: service_name.unwrap_or_else(|| DEFAULT_SERVICE_NAME.to_owned()),
        interval: written.interval.map_or(DEFAULT_INTERVAL, |time| time.0),
    }))
}

fn server(cx: &mut Lowering<'_>, written: &Otlp) -> Lowered<Server> {
    let text = &written.endpoint.value;
    let uri = text.parse::<Uri>().ok();
    let scheme = uri.as_ref().and_then(Uri::scheme_str);
    let authority = uri.as_ref().and_then(Uri::authority);
    let is_plain = uri.as_ref().is_some_and(|uri| uri.query().is_none());
    let (Some(scheme @ ("http" | "https")), Some(authority), true) = (scheme, authority, is_plain)
    else {
        let message = format!("`{text}` is not the URL of a collector");
        let help = "write it as `http://localhost:4318`; `/v1/traces` and `/v1/metrics` are added";
        return Err(cx.error(written.endpoint.span, message).help(help));
    };
    let server = format!("{scheme}://{authority}").parse::<Server>();
    let server = cx.ok(written.endpoint.span, server)?;
    let authorities = written.ca.as_ref().map(|file| authorities(cx, file));
    if let (Some(ca), "http") = (&written.ca, scheme) {
        let error = cx.error(ca.span, "a collector with `http://` shows no certificate");
        return Err(error.help("write `https://`, or leave `ca` out"));
    }
    let tls = TlsSettings {
        authorities: authorities.transpose()?,
        ..TlsSettings::default()
    };
    let tls = UpstreamTls::new(tls).map_err(|error| format!("TLS to {text} {error}"));
    Ok(server.with_tls(&cx.ok(written.endpoint.span, tls)?))
}

/// A header's value, which may be a secret.
fn header_text(cx: &mut Lowering<'_>, written: &Spanned<WordOr<Secret>>) -> Lowered<String> {
    match &written.value {
        WordOr::Word(text) => Ok(text.clone()),
        WordOr::More(written_secret) => secret(cx, written_secret, written.span),
    }
}

/// A percentage, in millionths.
fn share(cx: &mut Lowering<'_>, written: &Spanned<String>) -> Lowered<u32> {
    let text = &written.value;
    let percent = text.strip_suffix('%');
    let (whole, decimals) = percent.map_or(("", ""), |percent| {
        percent.split_once('.').unwrap_or((percent, ""))
    });
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let is_written_well = !whole.is_empty() && is_number(whole) && is_number(decimals);
    let millionths = (is_written_well && whole.len() <= 3 && decimals.len() <= 4)
        .then(|| format!("{whole}{decimals:0<4}").parse::<u32>().ok())
        .flatten();
    millionths
        .filter(|millionths| *millionths <= MILLION)
        .ok_or_else(|| {
            let message = format!("`{text}` is not a share of traces");
            let help = "write a percentage from 0% to 100%, such as 5% or 0.1%";
            cx.error(written.span, message).help(help)
        })
}
