//! TLS to the servers of an upstream, and the protocol that is spoken to them.

use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::sign::CertifiedKey;
use weir_proxy::{Protocol, ProxyProtocol, Server, TlsSettings, UpstreamTls};
use weir_yaml::{Lowered, Lowering, Spanned};

use super::schema;
use crate::certificates::{authorities, identity};

/// The servers, with TLS where their URI asks for it.
pub(super) fn tls(
    cx: &mut Lowering<'_>,
    servers: Vec<Server>,
    upstream: &Spanned<schema::Upstream>,
) -> Lowered<Vec<Server>> {
    let protocol = protocol(cx, &servers, upstream)?;
    let proxy_protocol = proxy_protocol(cx, &servers, protocol, upstream)?;
    let servers = servers.into_iter();
    let servers: Vec<_> = servers
        .map(|server| {
            server
                .with_protocol(protocol)
                .with_proxy_protocol(proxy_protocol)
        })
        .collect();
    let is_secure = servers.iter().any(Server::is_secure);
    let (settings, span) = match &upstream.tls {
        Some(written) if is_secure => (settings(cx, written)?, written.span),
        None if is_secure => (TlsSettings::default(), upstream.span),
        None => return Ok(servers),
        Some(written) => {
            let error = cx.error(written.span, "no server of this upstream is reached by TLS");
            return Err(error.help("write its URI like https://app.internal, or leave `tls` out"));
        }
    };
    let tls = UpstreamTls::new(TlsSettings {
        protocol,
        ..settings
    });
    let tls = tls.map_err(|error| format!("TLS to the upstream {error}"));
    let tls = cx.ok(span, tls)?;
    let secured = servers.into_iter().map(|server| server.with_tls(&tls));
    Ok(secured.collect())
}

/// A connection whose header names one client cannot carry requests of others, as those of HTTP/2 do.
fn proxy_protocol(
    cx: &mut Lowering<'_>,
    servers: &[Server],
    protocol: Protocol,
    upstream: &schema::Upstream,
) -> Lowered<Option<ProxyProtocol>> {
    let Some(written) = upstream.proxy_protocol else {
        return Ok(None);
    };
    if servers.is_empty() {
        let error = cx.error(written.span, "the built-in upstream reads no PROXY header");
        return Err(error.help("leave `proxy_protocol` out"));
    }
    if protocol != Protocol::Http1 {
        let message = "a connection of HTTP/2 carries requests of many clients";
        let error = cx.error(written.span, message);
        return Err(error.help("write `protocol: http1`, or leave `proxy_protocol` out"));
    }
    Ok(Some(written.value.0))
}

/// Only a handshake of TLS can tell what a server speaks.
fn protocol(
    cx: &mut Lowering<'_>,
    servers: &[Server],
    upstream: &Spanned<schema::Upstream>,
) -> Lowered<Protocol> {
    let Some(written) = &upstream.protocol else {
        return Ok(Protocol::default());
    };
    if servers.is_empty() {
        let error = cx.error(written.span, "the built-in upstream speaks HTTP/1.1");
        return Err(error.help("leave `protocol` out"));
    }
    let protocol = written.value.0;
    if protocol == Protocol::Auto && !servers.iter().all(Server::is_secure) {
        let message = "a server without TLS does not tell what it speaks";
        let error = cx.error(written.span, message);
        return Err(error.help("write `protocol: http2` or `protocol: http1`"));
    }
    Ok(protocol)
}

fn settings(cx: &mut Lowering<'_>, written: &Spanned<schema::UpstreamTls>) -> Lowered<TlsSettings> {
    let authorities = written.ca.as_ref().map(|file| authorities(cx, file));
    let server_name = written.server_name.as_ref();
    let server_name = server_name.map(|name| self::server_name(cx, name));
    let identity = client_identity(cx, written);
    Ok(TlsSettings {
        authorities: authorities.transpose()?,
        server_name: server_name.transpose()?,
        identity: identity?,
        protocol: Protocol::default(),
    })
}

fn server_name(cx: &mut Lowering<'_>, name: &Spanned<String>) -> Lowered<ServerName<'static>> {
    ServerName::try_from(name.value.clone()).map_err(|_| {
        let message = format!("`{}` is not a host name or an IP address", name.value);
        let error = cx.error(name.span, message);
        error.help("write the name that the servers' certificate is valid for, without a port")
    })
}

/// The certificate that the gateway shows, if there is one.
fn client_identity(
    cx: &mut Lowering<'_>,
    written: &Spanned<schema::UpstreamTls>,
) -> Lowered<Option<Arc<CertifiedKey>>> {
    let pair = match (&written.certificate, &written.key) {
        (None, None) => return Ok(None),
        (Some(certificate), Some(key)) => identity(cx, certificate, key),
        _ => {
            let keys = &["certificate", "key"];
            let message = "a certificate and its key belong together";
            return Err(cx.lacking(written.span, keys, message, "name both files, or neither"));
        }
    };
    pair.map(|identity| Some(identity.certified_key()))
}
