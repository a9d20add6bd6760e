//! An upstream's response becomes one that the client gets.

use http::header::VIA;
use http::{Response, StatusCode, Version};
use http_body_util::Full;

use super::body::ProxyBody;
use super::error::ProxyError;
use super::hop;
use super::request::via;
use super::upgrade::{self, Leaving};
use super::upstream::Answer;

/// Makes an upstream's answer fit to be sent to the client, which is told when the gateway is `leaving` if it has
/// changed the protocol.
pub(super) fn to_client(
    answer: Answer,
    leaving: &Leaving,
) -> Result<Response<ProxyBody>, ProxyError> {
    let Answer {
        mut response,
        mut download,
        upgrade,
        upstreamed,
    } = answer;
    set_fields(&mut response);
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let server = &upstreamed.server;
        let unasked = || ProxyError::Upgraded {
            server: server.clone(),
        };
        let (client, upstream) = upgrade
            .zip(download.into_connection())
            .ok_or_else(unasked)?;
        let headers = response.headers_mut();
        let tunnel = upgrade::begin(headers, client, upstream, leaving.clone());
        response.extensions_mut().insert(tunnel);
        response.extensions_mut().insert(upstreamed);
        return Ok(response.map(|()| ProxyBody::full(Full::default())));
    }
    response.extensions_mut().insert(upstreamed);
    Ok(response.map(|()| match download.whole() {
        Some(whole) => ProxyBody::full(Full::new(whole)),
        None => ProxyBody::upstream(download),
    }))
}

fn set_fields<B>(response: &mut Response<B>) {
    let came_by = response.version();
    *response.version_mut() = Version::HTTP_11;
    let headers = response.headers_mut();
    hop::strip(headers);
    headers.append(VIA, via(came_by));
}
