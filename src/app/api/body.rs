//! What a request asks for in its body.

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use serde::de::DeserializeOwned;

use super::refused::Refused;
use crate::server::RequestBody;

/// Nobody needs more to write a number or a duration.
const MAX_BYTES: usize = 1024;

/// The whole body, of which `form` is an example.
pub(super) async fn read(body: RequestBody, form: &'static str) -> Result<Bytes, Refused> {
    let body = Limited::new(body, MAX_BYTES).collect().await;
    let body = body.map_err(|cause| Refused::Body {
        form,
        cause: cause.to_string(),
    })?;
    Ok(body.to_bytes())
}

/// What the body says, of which `form` is an example.
pub(super) fn parse<T: DeserializeOwned>(body: &[u8], form: &'static str) -> Result<T, Refused> {
    serde_json::from_slice(body).map_err(|cause| Refused::Body {
        form,
        cause: cause.to_string(),
    })
}
