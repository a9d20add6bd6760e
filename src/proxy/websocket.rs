//! Frames of WebSockets (RFC 6455 section 5.2), as far as a tunnel has to know where they end.
//!
//! Bytes pass through a tunnel unread, but for the lengths of frames on their way to the client: only
//! between two of them may a frame of ours go.

/// A Close frame that says that this end is going away (RFC 6455 section 7.4.1).
pub(super) const GOING_AWAY: [u8; 4] = [0x88, 2, 0x03, 0xe9];

/// The opcode of a Close frame, after which nothing may be sent.
const CLOSE: u8 = 8;

/// How long a frame's header can be: two bytes, a length in eight, and a mask.
const LONGEST_HEADER: usize = 14;

/// Where in a stream of frames its reader is.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// What has come of a header.
    header: [u8; LONGEST_HEADER],
    there: usize,
    /// What is to come of a payload.
    left: u64,
    has_closed: bool,
}

impl Frames {
    /// Whether a frame may be put in here.
    pub(super) fn is_between(&self) -> bool {
        self.there == 0 && self.left == 0 && !self.has_closed
    }

    /// Follows the stream through these bytes.
    pub(super) fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            bytes = self.step(bytes);
        }
    }

    /// Follows the stream through these bytes, to the end of the frame that they begin in at most.
    /// Returns how many bytes that were.
    pub(super) fn pass_to_end(&mut self, bytes: &[u8]) -> usize {
        let mut rest = bytes;
        while !rest.is_empty() && !self.is_between() {
            rest = self.step(rest);
        }
        bytes.len() - rest.len()
    }

    /// Passes the rest of a payload, or a byte of a header. Returns what comes after it.
    fn step<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        if self.left > 0 {
            let there = usize::try_from(self.left).map_or(bytes.len(), |it| it.min(bytes.len()));
            self.left -= there as u64;
            return bytes.get(there..).unwrap_or_default();
        }
        let Some((byte, rest)) = bytes.split_first() else {
            return bytes;
        };
        if let Some(place) = self.header.get_mut(self.there) {
            *place = *byte;
            self.there += 1;
        }
        self.end_header();
        rest
    }

    /// Goes on to the payload if the header is complete.
    fn end_header(&mut self) {
        let [first, second, long @ ..] = self.header;
        let length_bytes = match second & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let mask = if second & 0x80 == 0 { 0 } else { 4 };
        if self.there < 2 + length_bytes + mask {
            return;
        }
        let length = long.iter().take(length_bytes);
        self.left = match length_bytes {
            0 => u64::from(second & 0x7f),
            _ => length.fold(0, |length, byte| length << 8 | u64::from(*byte)),
        };
        self.has_closed |= first & 0x0f == CLOSE;
        self.there = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame with this opcode and a payload of as many bytes, which look like headers.
    fn frame(opcode: u8, length: usize, mask: Option<[u8; 4]>) -> Vec<u8> {
        let mut frame = vec![0x80 | opcode];
        let masked = if mask.is_some() { 0x80 } else { 0 };
        match length {
            0..126 => frame.push(masked | u8::try_from(length).unwrap()),
            126..65_536 => {
                frame.push(masked | 126);
                frame.extend(u16::try_from(length).unwrap().to_be_bytes());
            }
            _ => {
                frame.push(masked | 127);
                frame.extend((length as u64).to_be_bytes());
            }
        }
        frame.extend(mask.into_iter().flatten());
        frame.extend(std::iter::repeat_n(0x81, length));
        frame
    }

    #[test]
    fn a_frame_ends_where_its_length_says_however_it_arrives() {
        for length in [0, 1, 125, 126, 127, 65_535, 65_536, 100_000] {
            for mask in [None, Some([1, 2, 3, 4])] {
                let one = frame(2, length, mask);
                let mut frames = Frames::default();
                for byte in &one {
                    frames.pass(&[*byte]);
                }
                assert!(frames.is_between(), "{length}");
                frames.pass(&one[..one.len() - 1]);
                assert!(!frames.is_between(), "{length}");
                let next = frame(1, 9, None);
                let rest = [&one[one.len() - 1..], &next].concat();
                assert_eq!(frames.pass_to_end(&rest), 1, "{length}");
                assert!(frames.is_between());
                frames.pass(&next);
                assert!(frames.is_between());
            }
        }
    }

    #[test]
    fn no_frame_follows_a_close() {
        let mut frames = Frames::default();
        frames.pass(&frame(9, 3, None));
        assert!(frames.is_between(), "a ping is none");
        frames.pass(&GOING_AWAY);
        assert!(!frames.is_between());
        assert_eq!(frames.pass_to_end(&[0; 10]), 10);
    }

    #[test]
    fn nothing_but_whole_frames_lets_one_in_between() {
        let mut frames = Frames::default();
        let stream: Vec<u8> = [3, 0, 200, 70_000, 1]
            .iter()
            .flat_map(|length| frame(2, *length, None))
            .collect();
        let places = stream.iter().filter(|byte| {
            frames.pass(&[**byte]);
            frames.is_between()
        });
        assert_eq!(places.count(), 5);
    }
}
