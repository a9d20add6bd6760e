//! What clients' connections may do, and for how long.

use std::fmt::Display;
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;

use super::Lowering;
use crate::config::byte_size::ByteSize;
use crate::config::schema::Connections;
use crate::config::yaml::Placed;
use crate::server::HttpSettings;

/// hyper reads this much at once, and a greater head than the most is surely a slip.
const HEADER_BYTES: RangeInclusive<u64> = 8 * 1024..=1024 * 1024;

const HEADERS: RangeInclusive<u64> = 1..=1000;

const STREAMS: RangeInclusive<u64> = 1..=10_000;

impl Lowering<'_> {
    pub(super) fn connections(&mut self, written: Option<&Connections>) -> Option<HttpSettings> {
        let defaults = HttpSettings::default();
        let Some(written) = written else {
            return Some(defaults);
        };
        let most = self.max_connections(written.max_connections.as_ref());
        let bytes = self.header_bytes(written.max_header_bytes.as_ref(), &defaults);
        let headers = self.within(written.max_headers, HEADERS, defaults.max_headers as u64);
        let streams = self.within(written.max_streams, STREAMS, defaults.max_streams.into());
        let mut settings = defaults;
        for (setting, written) in [
            (&mut settings.header_timeout, written.header_timeout),
            (&mut settings.idle_timeout, written.idle_timeout),
            (&mut settings.stall_timeout, written.stall_timeout),
        ] {
            *setting = written.map_or(*setting, |it| self.positive(it));
        }
        settings.max_connections = most?;
        settings.max_header_bytes = usize::try_from(bytes?).ok()?;
        settings.max_headers = usize::try_from(headers?).ok()?;
        settings.max_streams = u32::try_from(streams?).ok()?;
        Some(settings)
    }

    /// None where the process's limit of file descriptors says it.
    fn max_connections(
        &mut self,
        written: Option<&Placed<String>>,
    ) -> Option<Option<NonZeroUsize>> {
        let Some(written) = written.filter(|it| it.value != "auto") else {
            return Some(None);
        };
        let number = written.value.parse().ok();
        if number.is_none() {
            let message = format!(
                "expected auto or a number from 1, found `{}`",
                written.value
            );
            self.error(written.place, message);
        }
        number.map(Some)
    }

    fn header_bytes(
        &mut self,
        written: Option<&Placed<String>>,
        defaults: &HttpSettings,
    ) -> Option<u64> {
        let Some(written) = written else {
            return Some(defaults.max_header_bytes as u64);
        };
        let ByteSize(bytes) = self.ok(written.place, written.value.parse())?;
        let size = Placed {
            value: bytes,
            place: written.place,
        };
        let (least, most) = (
            ByteSize(*HEADER_BYTES.start()),
            ByteSize(*HEADER_BYTES.end()),
        );
        self.in_range(size, HEADER_BYTES, (least, most))
    }

    fn within(
        &mut self,
        written: Option<Placed<u64>>,
        range: RangeInclusive<u64>,
        default: u64,
    ) -> Option<u64> {
        let Some(written) = written else {
            return Some(default);
        };
        let ends = (*range.start(), *range.end());
        self.in_range(written, range, ends)
    }

    fn in_range<E: Display>(
        &mut self,
        number: Placed<u64>,
        range: RangeInclusive<u64>,
        (least, most): (E, E),
    ) -> Option<u64> {
        let fits = range.contains(&number.value);
        if !fits {
            self.error(number.place, format!("it must be from {least} to {most}"))
                .remedy("leave it out for the default");
        }
        fits.then_some(number.value)
    }
}
