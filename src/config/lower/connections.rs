//! What clients' connections may do, and for how long.

use std::fmt::Display;
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;

use super::{Lowered, Lowering};
use crate::config::byte_size::ByteSize;
use crate::config::schema::Connections;
use crate::config::yaml::Spanned;
use crate::server::HttpSettings;

/// hyper reads this much at once, and a greater head than the most is surely a slip.
const HEADER_BYTES: RangeInclusive<u64> = 8 * 1024..=1024 * 1024;

const HEADERS: RangeInclusive<u64> = 1..=1000;

const STREAMS: RangeInclusive<u64> = 1..=10_000;

impl Lowering<'_> {
    pub(super) fn connections(&mut self, written: Option<&Connections>) -> Lowered<HttpSettings> {
        let mut settings = HttpSettings::default();
        let Some(written) = written else {
            return Ok(settings);
        };
        let most = self.max_connections(written.max_connections.as_ref());
        let bytes = self.header_bytes(written.max_header_bytes.as_ref());
        let headers = self.within(written.max_headers, HEADERS);
        let streams = self.within(written.max_streams, STREAMS);
        for (setting, written) in [
            (&mut settings.header_timeout, written.header_timeout),
            (&mut settings.idle_timeout, written.idle_timeout),
            (&mut settings.stall_timeout, written.stall_timeout),
        ] {
            *setting = written.map_or(*setting, |it| self.positive(it));
        }
        settings.max_connections = most?;
        // All of these are within bounds that fit.
        let size = |number: Option<u64>| number.and_then(|it| usize::try_from(it).ok());
        settings.max_header_bytes = size(bytes?).unwrap_or(settings.max_header_bytes);
        settings.max_headers = size(headers?).unwrap_or(settings.max_headers);
        let streams = streams?.and_then(|it| u32::try_from(it).ok());
        settings.max_streams = streams.unwrap_or(settings.max_streams);
        Ok(settings)
    }

    /// None where the process's limit of file descriptors says it.
    fn max_connections(
        &mut self,
        written: Option<&Spanned<String>>,
    ) -> Lowered<Option<NonZeroUsize>> {
        let Some(written) = written.filter(|it| it.value != "auto") else {
            return Ok(None);
        };
        written.value.parse().map(Some).map_err(|_| {
            let found = &written.value;
            let message = format!("expected auto or a number from 1, found `{found}`");
            self.error(written.span, message).into()
        })
    }

    fn header_bytes(&mut self, written: Option<&Spanned<String>>) -> Lowered<Option<u64>> {
        let Some(written) = written else {
            return Ok(None);
        };
        let ByteSize(bytes) = self.ok(written.span, written.value.parse())?;
        let size = Spanned {
            value: bytes,
            span: written.span,
        };
        let (least, most) = HEADER_BYTES.into_inner();
        self.in_range(size, HEADER_BYTES, (ByteSize(least), ByteSize(most)))
    }

    fn within(
        &mut self,
        written: Option<Spanned<u64>>,
        range: RangeInclusive<u64>,
    ) -> Lowered<Option<u64>> {
        let ends = range.clone().into_inner();
        written.map_or(Ok(None), |it| self.in_range(it, range, ends))
    }

    fn in_range<E: Display>(
        &mut self,
        number: Spanned<u64>,
        range: RangeInclusive<u64>,
        (least, most): (E, E),
    ) -> Lowered<Option<u64>> {
        if range.contains(&number.value) {
            return Ok(Some(number.value));
        }
        let message = format!("it must be from {least} to {most}");
        let complaint = self.error(number.span, message);
        Err(complaint.help("leave it out for the default"))
    }
}
