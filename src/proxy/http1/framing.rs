//! Where the body of a response ends, and whether its connection serves another request.

use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderName, HeaderValue, Method, Response, StatusCode, Version};

use super::{Decoder, Malformed};
use crate::proxy::hop;

/// What the fields say of where the body ends, noted as they pass by.
#[derive(Default)]
pub(super) struct Framing {
    length: Option<u64>,
    lengths: usize,
    codings: usize,
    chunked: bool,
    connection: bool,
}

impl Framing {
    /// Takes note of a field.
    pub(super) fn take_note(
        &mut self,
        name: &HeaderName,
        value: &HeaderValue,
    ) -> Result<(), Malformed> {
        match *name {
            CONTENT_LENGTH => {
                let length = number(value.as_bytes()).ok_or(Malformed::ContentLength)?;
                if self.length.is_some_and(|told| told != length) {
                    return Err(Malformed::ContentLength);
                }
                self.length = Some(length);
                self.lengths += 1;
            }
            TRANSFER_ENCODING => {
                self.chunked = value.as_bytes().eq_ignore_ascii_case(b"chunked");
                self.codings += 1;
            }
            CONNECTION => self.connection = true,
            _ => {}
        }
        Ok(())
    }

    /// How the body ends. A length that does not count is taken away, so that nobody further on
    /// counts by it.
    pub(super) fn body(
        &self,
        response: &mut Response<()>,
        method: &Method,
    ) -> Result<Decoder, Malformed> {
        let chunked = self.is_chunked(response.version())?;
        let headers = response.headers_mut();
        match self.length {
            Some(_) if chunked => drop(headers.remove(CONTENT_LENGTH)),
            Some(length) if self.lengths > 1 => {
                headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
            }
            _ => {}
        }
        let status = response.status();
        let none = method == Method::HEAD
            || status.is_informational()
            || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        Ok(match self.length {
            // What follows is no HTTP any more.
            _ if status == StatusCode::SWITCHING_PROTOCOLS => Decoder::CloseDelimited,
            _ if none => Decoder::Length(0),
            _ if chunked => Decoder::chunked(),
            Some(length) => Decoder::Length(length),
            None => Decoder::CloseDelimited,
        })
    }

    /// No other coding was asked for, so none but chunked may come.
    fn is_chunked(&self, version: Version) -> Result<bool, Malformed> {
        match self.codings {
            0 => Ok(false),
            1 if self.chunked && version == Version::HTTP_11 => Ok(true),
            _ => Err(Malformed::TransferEncoding),
        }
    }

    /// Whether the server keeps the connection open (RFC 9112 section 9.3).
    pub(super) fn persists(&self, response: &Response<()>) -> bool {
        let says = |token| self.connection && hop::lists(response.headers(), CONNECTION, token);
        // Two ways to tell the body's end are one too many to trust what follows (section 6.3).
        let is_doubtful = self.codings > 0 && self.lengths > 0;
        match response.version() {
            _ if is_doubtful => false,
            Version::HTTP_11 => !says("close"),
            _ => says("keep-alive") && !says("close"),
        }
    }
}

/// Digits and nothing else, as opposed to what `parse` takes for a number.
pub(in crate::proxy) fn number(text: &[u8]) -> Option<u64> {
    let digits = text.iter().all(u8::is_ascii_digit);
    str::from_utf8(text).ok().filter(|_| digits)?.parse().ok()
}
