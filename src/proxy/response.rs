//! An upstream's response becomes one that the client gets.

use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING, VIA};
use http::{HeaderMap, Response, StatusCode, Version};
use hyper::upgrade::OnUpgrade;

use super::body::ProxyBody;
use super::error::ProxyError;
use super::hop;
use super::request::via;
use super::upgrade;
use super::upstream::Answer;

/// Makes an upstream's answer fit to be sent to the client, who asked for `upgrade`.
pub(super) fn to_client(
    answer: Answer,
    upgrade: Option<OnUpgrade>,
) -> Result<Response<ProxyBody>, ProxyError> {
    let Answer {
        mut response,
        connection,
        upstreamed,
    } = answer;
    let tunnel = (response.status() == StatusCode::SWITCHING_PROTOCOLS)
        .then(|| hyper::upgrade::on(&mut response));
    set_fields(&mut response);
    match (tunnel, upgrade) {
        (None, _) => {}
        (Some(upstream), Some(client)) => upgrade::begin(response.headers_mut(), client, upstream),
        (Some(_), None) => {
            let server = upstreamed.server;
            return Err(ProxyError::Upgraded { server });
        }
    }
    response.extensions_mut().insert(upstreamed);
    Ok(response.map(|body| ProxyBody::upstream(body, connection)))
}

fn set_fields<B>(response: &mut Response<B>) {
    let came_by = response.version();
    *response.version_mut() = Version::HTTP_11;
    let headers = response.headers_mut();
    distrust_length(headers);
    hop::strip(headers);
    headers.append(VIA, via(came_by));
}

/// A response with both has the body that `Transfer-Encoding` says (RFC 9112 section 6.3), so its
/// `Content-Length` must not go further.
fn distrust_length(headers: &mut HeaderMap) {
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
    }
}
