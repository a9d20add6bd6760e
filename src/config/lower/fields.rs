//! Status codes, header fields and methods that an operator writes.

use http::header::{
    CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING, UPGRADE,
};
use http::{Method, StatusCode};

use super::{Lowered, Lowering};
use crate::config::yaml::{Entries, Spanned};

/// Fields that say how a message is framed, which the server itself decides.
const FRAMING: [HeaderName; 4] = [CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING, UPGRADE];

impl Lowering<'_> {
    /// A status that ends an exchange; `default` when there is none.
    pub(super) fn status(
        &mut self,
        written: Option<Spanned<u16>>,
        default: StatusCode,
    ) -> Lowered<StatusCode> {
        let Some(written) = written else {
            return Ok(default);
        };
        let status = StatusCode::from_u16(written.value).ok();
        let status = status.filter(|it| (200..600).contains(&it.as_u16()));
        status.ok_or_else(|| {
            let message = format!("{} is no status of an answer", written.value);
            self.error(written.span, message)
                .help("a status is a number from 200 to 599")
        })
    }

    /// Refuses a body with a status whose answers have none (RFC 9110, section 6.4.1): a client would
    /// take it for the beginning of the next answer, or hang waiting for it.
    pub(super) fn no_body_without_room(&mut self, status: Option<Spanned<u16>>, help: &str) {
        if let Some(status) = status.filter(|status| matches!(status.value, 204 | 205 | 304)) {
            let message = format!("an answer of status {} has no body", status.value);
            self.error(status.span, message).help(help);
        }
    }

    /// The fields of an answer.
    pub(super) fn answer_fields(
        &mut self,
        written: Option<&Entries<Spanned<String>>>,
    ) -> Lowered<HeaderMap> {
        let fields = self.fields(written);
        for (name, _) in written.into_iter().flat_map(|it| &it.0) {
            if FRAMING
                .iter()
                .any(|it| name.value.eq_ignore_ascii_case(it.as_str()))
            {
                self.error(
                    name.span,
                    format!("`{}` is set by the server itself", name.value),
                )
                .help("leave it out");
            }
        }
        Ok(fields?.into_iter().collect())
    }

    /// Names and values, in order.
    pub(super) fn fields(
        &mut self,
        written: Option<&Entries<Spanned<String>>>,
    ) -> Lowered<Vec<(HeaderName, HeaderValue)>> {
        let fields = written.into_iter().flat_map(|it| &it.0);
        let fields: Vec<_> = fields
            .map(|(name, value)| {
                let (name, value) = (self.header_name(name), self.header_value(value));
                Ok((name?, value?))
            })
            .collect();
        fields.into_iter().collect()
    }

    pub(super) fn header_value(&mut self, value: &Spanned<String>) -> Lowered<HeaderValue> {
        self.parse(
            value,
            "the value of a header: control characters are not allowed",
        )
    }

    pub(super) fn method(&mut self, method: &Spanned<String>) -> Lowered<Method> {
        let upper = method.value.to_ascii_uppercase();
        if upper != method.value {
            let message = format!("methods are case-sensitive: `{}`", method.value);
            let complaint = self.error(method.span, message);
            return Err(complaint.help(format!("did you mean \"{upper}\"?")));
        }
        self.parse(method, "a method")
    }
}
