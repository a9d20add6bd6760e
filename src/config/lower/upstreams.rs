//! The apps behind the gateway.

use std::collections::HashMap;
use std::time::Duration;

use http::Uri;

use super::{Lowered, Lowering, Reported};
use crate::config::duration::HumanDuration;
use crate::config::schema;
use crate::config::settings::Upstream;
use crate::config::yaml::{Entries, Span, Spanned};
use crate::proxy::{HostHeader, Server, UpstreamSettings};

/// All upstreams, in the order in which they are written; none in the place of one in error.
pub(super) struct Upstreams<'w> {
    written: &'w Spanned<Entries<Spanned<schema::Upstream>>>,
    lowered: Vec<Lowered<Upstream>>,
    by_name: HashMap<&'w str, usize>,
}

impl Upstreams<'_> {
    pub(super) fn into_settings(self) -> Lowered<Vec<Upstream>> {
        self.lowered.into_iter().collect()
    }
}

impl Lowering<'_> {
    pub(super) fn upstreams<'w>(
        &mut self,
        written: &'w Spanned<Entries<Spanned<schema::Upstream>>>,
    ) -> Upstreams<'w> {
        let upstreams = written.0.iter();
        let names = upstreams.clone().map(|(name, _)| name.as_str());
        let lowered = upstreams
            .map(|(name, upstream)| self.upstream(name, upstream))
            .collect();
        Upstreams {
            written,
            lowered,
            by_name: names.zip(0..).collect(),
        }
    }

    /// The place of an upstream in the settings, by its name.
    pub(super) fn find_upstream(
        &mut self,
        name: &Spanned<String>,
        upstreams: &Upstreams<'_>,
    ) -> Lowered<usize> {
        let found = upstreams.by_name.get(name.as_str()).copied();
        let span = upstreams.written.span;
        found.ok_or_else(|| self.unknown("upstream", name, Some(span), ""))
    }

    fn upstream(
        &mut self,
        name: &Spanned<String>,
        upstream: &Spanned<schema::Upstream>,
    ) -> Lowered<Upstream> {
        let servers = match (&upstream.servers, upstream.builtin) {
            (Some(servers), None) => Some(self.servers(servers)?),
            (None, Some(schema::Builtin::Echo)) => None,
            _ => return Err(self.neither_nor(upstream.span)),
        };
        let echo = servers.is_none();
        let mut settings = UpstreamSettings::new(name.value.as_str(), servers.unwrap_or_default());
        self.times(&mut settings, upstream);
        if let Some(host) = &upstream.host {
            settings.host = self.host(host)?;
        }
        Ok(Upstream { settings, echo })
    }

    fn neither_nor(&mut self, upstream: Span) -> Reported {
        let in_error = self.sources.key_in_error(upstream, &["servers", "builtin"]);
        in_error.unwrap_or_else(|| {
            self.error(upstream, "an upstream has either `servers` or `builtin`")
                .help("say `servers: [\"http://127.0.0.1:3000\"]`, or `builtin: echo`")
        })
    }

    fn servers(&mut self, servers: &Spanned<Vec<Spanned<String>>>) -> Lowered<Vec<Server>> {
        let servers = self.filled(
            servers,
            "an upstream needs at least one server",
            "say `servers: [\"http://127.0.0.1:3000\"]`",
        )?;
        let servers: Vec<_> = servers.iter().map(|it| self.server(it)).collect();
        servers.into_iter().collect()
    }

    fn server(&mut self, text: &Spanned<String>) -> Lowered<Server> {
        let with_scheme = format!("http://{}", text.value);
        let lacks_scheme = !text.value.contains("://");
        if lacks_scheme
            && with_scheme
                .parse()
                .is_ok_and(|uri| Server::try_from(&uri).is_ok())
        {
            let message = format!("`{}` lacks its scheme", text.value);
            let complaint = self.error(text.span, message);
            return Err(complaint.help(format!("write `\"{with_scheme}\"`")));
        }
        let uri: Uri = self.parse(text, "the URI of a server, such as http://127.0.0.1:3000")?;
        Server::try_from(&uri).map_err(|error| {
            self.error(text.span, format!("`{}`: {error}", text.value))
                .help("write it like http://127.0.0.1:3000")
        })
    }

    fn times(&mut self, settings: &mut UpstreamSettings, written: &schema::Upstream) {
        let times = [
            (&mut settings.connect_timeout, written.connect_timeout),
            (&mut settings.response_timeout, written.response_timeout),
            (&mut settings.idle_timeout, written.idle_timeout),
        ];
        for (setting, written) in times {
            *setting = written.map_or(*setting, |it| self.positive(it));
        }
    }

    /// A time within which something must be possible.
    pub(super) fn positive(&mut self, span: Spanned<HumanDuration>) -> Duration {
        if span.value.0.is_zero() {
            self.error(span.span, "a time of zero leaves no time at all")
                .help("leave it out for the default");
        }
        span.value.0
    }

    fn host(&mut self, host: &Spanned<String>) -> Lowered<HostHeader> {
        match host.value.as_str() {
            "preserve" => Ok(HostHeader::Preserve),
            "upstream" => Ok(HostHeader::Upstream),
            _ => {
                // It is what would name a server.
                let uri: Result<Uri, _> = format!("http://{}", host.value).parse();
                let named = uri
                    .ok()
                    .filter(|uri| Server::try_from(uri).is_ok() && uri.path() == "/");
                if named.is_none() {
                    let message =
                        format!("`{}` is not preserve, upstream, or a host name", host.value);
                    let complaint = self.error(host.span, message);
                    return Err(complaint.help("write it like app.internal, or app.internal:8080"));
                }
                self.header_value(host).map(HostHeader::Fixed)
            }
        }
    }
}
