//! Bodies packed by gzip as the app packs its own.
//!
//! Any client can read the ten bytes of a member's head (RFC 1952, section 2.3). Some apps write the
//! time there, and each library its own mark of the system and of how hard it tried. So a decoy's
//! head is like that of the first real body that was seen.

use std::io::Write;
use std::sync::Arc;

use bytes::Bytes;
use flate2::write::DeflateEncoder;
use flate2::{Compression, Crc};
use http::header::CONTENT_ENCODING;
use http::{HeaderMap, HeaderValue};
use http_body::Frame;
use jiff::Timestamp;
use smallvec::SmallVec;

use super::Shadow;
use crate::backend::PendingTasks;
use crate::response_body::BodyReader;

const HEAD_BYTES: usize = 10;

/// Upper bound on the difference of the app's clock and ours, in seconds. A time that is further
/// away is that of a file, and stays.
const MAX_CLOCK_DIFFERENCE: i64 = 60;

/// The first bytes of a packed body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GzipHead {
    bytes: [u8; HEAD_BYTES],
    /// How many seconds its time is ahead of ours, if it moves with the clock.
    ahead: Option<i64>,
}

/// That of zlib on Unix at its own level, as most servers have it: no name, no time.
impl Default for GzipHead {
    fn default() -> Self {
        Self {
            bytes: [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3],
            ahead: None,
        }
    }
}

impl GzipHead {
    /// Reads the head of a real body. There is none if a name or a comment follows the head, which
    /// decoys lack.
    fn parse(body: &[u8], now: Timestamp) -> Option<Self> {
        let bytes: [u8; HEAD_BYTES] = *body.first_chunk()?;
        let [0x1f, 0x8b, 8, 0, time @ .., _, _] = bytes else {
            return None;
        };
        let ahead = i64::from(u32::from_le_bytes(time)) - now.as_second();
        Some(Self {
            bytes,
            ahead: (ahead.abs() <= MAX_CLOCK_DIFFERENCE).then_some(ahead),
        })
    }

    fn at(mut self, now: Timestamp) -> [u8; HEAD_BYTES] {
        if let Some(ahead) = self.ahead
            && let Ok(time) = u32::try_from(now.as_second() + ahead)
        {
            let [_, _, _, _, place @ .., _, _] = &mut self.bytes;
            *place = time.to_le_bytes();
        }
        self.bytes
    }

    /// The body as zlib packs it, sent `now`. The implementation here finds what zlib finds at level
    /// 6 only at its best level; at level 6 it packs a short text otherwise, which tells.
    pub(super) fn pack(self, body: &[u8], now: Timestamp) -> Bytes {
        let mut encoder = DeflateEncoder::new(self.at(now).to_vec(), Compression::best());
        // Writing to a vector never fails.
        let _ = encoder.write_all(body);
        let mut packed = encoder.finish().unwrap_or_default();
        let mut crc = Crc::new();
        crc.update(body);
        packed.extend_from_slice(&crc.sum().to_le_bytes());
        packed.extend_from_slice(&crc.amount().to_le_bytes());
        packed.into()
    }
}

/// Reads the head of a real body as it passes.
pub(crate) struct GzipHeadReader {
    shadows: SmallVec<[Arc<Shadow>; 1]>,
    head: SmallVec<[u8; HEAD_BYTES]>,
}

impl GzipHeadReader {
    /// A reader for the decoys that do not know the head yet; none if all do, or the body has none.
    pub(crate) fn new(shadows: &[Arc<Shadow>], headers: &HeaderMap) -> Option<Box<Self>> {
        let mut shadows = shadows.iter().filter(|shadow| shadow.gzip.get().is_none());
        let first = shadows.next()?;
        let gzip = HeaderValue::from_static("gzip");
        headers.get(CONTENT_ENCODING).filter(|it| **it == gzip)?;
        Some(Box::new(Self {
            shadows: [first].into_iter().chain(shadows).cloned().collect(),
            head: SmallVec::new(),
        }))
    }
}

impl BodyReader for GzipHeadReader {
    fn read(&mut self, frame: &mut Frame<Bytes>) {
        let missing = HEAD_BYTES - self.head.len();
        let Some(data) = frame.data_ref().filter(|_| missing > 0) else {
            return;
        };
        let next = data.get(..missing).unwrap_or(data);
        self.head.extend_from_slice(next);
        if let Some(head) = GzipHead::parse(&self.head, Timestamp::now()) {
            for shadow in &self.shadows {
                shadow.gzip.get_or_init(|| head);
            }
        }
    }

    fn end(self: Box<Self>) -> PendingTasks {
        PendingTasks::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts, and what zlib packs them to.
    const ZLIB: &[(&str, &str)] = &[
        ("ok", "1f8b0800000000000003cbcf060047dddc7902000000"),
        (
            "{\"status\":\"ok\",\"id\":3499211612}",
            "1f8b0800000000000003ab562a2e492c292d56b252cacf56d251ca4c51b23236b1b434323434\
             3334aa0500859e032e1f000000",
        ),
        (
            "{\"message\":\"Your invitation was sent\",\"to\":\"u7@example.org\"}",
            "1f8b0800000000000003ab56ca4d2d2e4e4c4f55b2528acc2f2d52c8cc2bcb2c492cc9cccf53\
             284f2c56284ecd2b51d2512ac907ca979a3ba45624e616e4a4eae517a52bd502008475ac703c\
             000000",
        ),
        (
            "{\"id\":\"8c5f0d3e-93ab-4000-8000-1b2c3d4e5f60\",\"state\":\"queued\"}",
            "1f8b0800000000000003ab56ca4c51b252b248364d3348314ed5b5344e4cd235313030d0b500\
             11864946c9c62926a9a66966064a3a4ac5258925a940e585a5a9a5a9294ab500114684703e00\
             0000",
        ),
        (
            "<html><body><h1>Thanks</h1><p>Thanks for your message. Thanks for your patience.</p></body></html>",
            "1f8b0800000000000003b3c928c9cdb1b349ca4fa9b4b3c930b40bc948cccb2eb6d107326d0a\
             a03c85b4fc2285cafcd22285dcd4e2e2c4f4543d05748982c492ccd4bce4543d1bfd023b1b7d\
             8871fa60b3012591e1fe62000000",
        ),
        (
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            "1f8b08000000000000034b4c241f000029bd981f3c000000",
        ),
    ];

    fn hex(packed: &[u8]) -> String {
        packed.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// What Python's zlib makes of these, by level 6. A short text came as it is, in a stored
    /// block, which zlib never makes of it.
    #[test]
    fn gzip_has_the_bytes_that_zlib_makes() {
        for (text, expected) in ZLIB {
            let packed = GzipHead::default().pack(text.as_bytes(), Timestamp::now());
            assert_eq!(&hex(&packed), expected, "{text}");
        }
    }

    /// The head of a text that Python's gzip module packs at a time, and Java's and Go's.
    #[test]
    fn a_time_in_a_head_moves_with_the_clock_if_it_is_the_present_and_stays_if_it_is_a_files() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let seen = 0x6000_0000;
        for (head, later) in [
            ("1f8b08000000006002ff", "1f8b08000a00006002ff"),
            ("1f8b0800feffff5f00ff", "1f8b08000800006000ff"),
            ("1f8b08000000000000ff", "1f8b08000000000000ff"),
            ("1f8b08000000004002ff", "1f8b08000000004002ff"),
        ] {
            let bytes: Vec<u8> = (0..10)
                .map(|at| u8::from_str_radix(&head[2 * at..2 * at + 2], 16).unwrap())
                .collect();
            let known = GzipHead::parse(&bytes, at(seen)).unwrap();
            assert_eq!(hex(&known.at(at(seen))), head);
            assert_eq!(hex(&known.at(at(seen + 10))), later);
        }
        for other in [
            &b"\x1f\x8b\x08\x08\0\0\0\0\0\x03"[..],
            b"\x1f\x8b\x08\0\0\0\0\0\0",
            b"plain text",
        ] {
            assert_eq!(GzipHead::parse(other, at(seen)), None);
        }
    }
}
