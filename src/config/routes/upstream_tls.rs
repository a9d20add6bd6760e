//! TLS to the servers of an upstream.

use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::sign::CertifiedKey;

use super::schema;
use crate::config::certificates::{authorities, identity};
use crate::config::diagnostics::Lowered;
use crate::config::lowering::Lowering;
use crate::config::yaml::Spanned;
use crate::proxy::{Server, TlsSettings, UpstreamTls};

/// The servers, with TLS where their URI asks for it.
pub(super) fn tls(
    cx: &mut Lowering<'_>,
    servers: Vec<Server>,
    upstream: &Spanned<schema::Upstream>,
) -> Lowered<Vec<Server>> {
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
    let tls = UpstreamTls::new(settings);
    let tls = tls.map_err(|error| format!("TLS to the upstream {error}"));
    let tls = cx.ok(span, tls)?;
    let secured = servers.into_iter().map(|server| server.with_tls(&tls));
    Ok(secured.collect())
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
