//! Finds pseudo-header fields that make a request malformed and that h3 lets pass: repeated ones,
//! those behind other fields, and those in trailers (RFC 9114, section 4.3).
//!
//! The lines are looked at as QPACK has them (RFC 9204, section 4.5). There is no dynamic table, so
//! a pseudo-header field has its name from the static one; one that spells its name out is taken
//! for malformed as well. What cannot be read is left to h3, which refuses it.

/// The pseudo-header fields of a request, by the first and the last of their places in the static
/// table (RFC 9204, appendix A).
const PSEUDO: [(u64, u64); 4] = [(0, 0), (1, 1), (15, 21), (22, 23)];

/// `:status`, which no request has.
const STATUS: [(u64, u64); 2] = [(24, 28), (63, 71)];

/// A colon as QPACK's Huffman code has it: seven bits (RFC 7541, appendix B).
const HUFFMAN_COLON: u8 = 0b101_1100;

enum Line {
    /// A pseudo-header field, by its place in [`PSEUDO`].
    Pseudo(usize),
    Wrong,
    Other,
}

/// Whether the pseudo-header fields of a section are in order.
pub(crate) fn are_in_order(section: &[u8], is_trailers: bool) -> bool {
    let mut rest = Rest(section);
    // The required insert count, and the base.
    if rest.number(8).and_then(|_| rest.number(7)).is_none() {
        return true;
    }
    let mut seen = [is_trailers; PSEUDO.len()];
    while let Some(line) = rest.line() {
        match line {
            Line::Wrong => return false,
            // None may follow.
            Line::Other => seen = [true; PSEUDO.len()],
            Line::Pseudo(place) => match seen.get_mut(place) {
                Some(seen) if !*seen => *seen = true,
                _ => return false,
            },
        }
    }
    true
}

/// What is left of a section.
struct Rest<'s>(&'s [u8]);

impl Rest<'_> {
    /// The next line; none at the end, or where the rest cannot be read.
    fn line(&mut self) -> Option<Line> {
        let first = *self.0.first()?;
        if first & 0x80 != 0 {
            let index = self.number(6)?;
            return (first & 0x40 != 0).then(|| of_static(index));
        }
        let line = if first & 0x40 != 0 {
            let index = self.number(4)?;
            (first & 0x10 != 0).then(|| of_static(index))?
        } else if first & 0x20 != 0 {
            let is_coded = first & 0x08 != 0;
            let length = self.number(3)?;
            of_spelt(self.take(length)?, is_coded)
        } else {
            return None;
        };
        let length = self.number(7)?;
        self.take(length)?;
        Some(line)
    }

    /// A number behind the other bits of its first byte (RFC 7541, section 5.1).
    fn number(&mut self, bits: u32) -> Option<u64> {
        let (first, mut rest) = self.0.split_first()?;
        let most = (1_u64 << bits) - 1;
        let mut number = u64::from(*first) & most;
        if number == most {
            let mut shift = 0;
            loop {
                let (byte, more) = rest.split_first()?;
                rest = more;
                number = number.checked_add(u64::from(byte & 0x7f).checked_shl(shift)?)?;
                shift += 7;
                if byte & 0x80 == 0 {
                    break;
                }
            }
        }
        self.0 = rest;
        Some(number)
    }

    fn take(&mut self, length: u64) -> Option<&[u8]> {
        let length = usize::try_from(length).ok()?;
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }
}

fn of_static(index: u64) -> Line {
    let holds = |(first, last): &(u64, u64)| (*first..=*last).contains(&index);
    match PSEUDO.iter().position(holds) {
        Some(place) => Line::Pseudo(place),
        None if STATUS.iter().any(holds) => Line::Wrong,
        None => Line::Other,
    }
}

fn of_spelt(name: &[u8], is_coded: bool) -> Line {
    let is_pseudo = match (name.first(), is_coded) {
        (Some(first), true) => first >> 1 == HUFFMAN_COLON,
        (first, _) => first == Some(&b':'),
    };
    match is_pseudo {
        true => Line::Wrong,
        false => Line::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const METHOD: &[u8] = &[0xd1];
    const SCHEME: &[u8] = &[0xd7];
    const PATH: &[u8] = &[0xc1];
    /// With a value of its own.
    const AUTHORITY: &[u8] = &[0x50, 1, b'a'];
    /// `accept: */*`, `x: y`, and the latter coded.
    const OTHERS: [&[u8]; 3] = [&[0xdd], &[0x21, b'x', 1, b'y'], &[0x29, 0xf3, 1, b'y']];

    fn passes(lines: &[&[u8]], is_trailers: bool) -> bool {
        let section = [&[&[0, 0][..]], lines].concat().concat();
        are_in_order(&section, is_trailers)
    }

    #[test]
    fn each_pseudo_header_field_comes_once_and_before_the_others() {
        let whole = [METHOD, SCHEME, PATH, AUTHORITY];
        assert!(passes(&whole, false));
        for other in OTHERS {
            assert!(passes(&[&whole[..], &[other, other]].concat(), false));
            assert!(passes(&[other, other], true));
            assert!(!passes(&[&[other][..], &whole].concat(), false));
        }
        for again in whole {
            assert!(!passes(&[&whole[..], &[again]].concat(), false));
            assert!(!passes(&[again], true));
        }
        // `:status`, and names that are spelt out, the last one coded.
        let coded: &[u8] = &[0x29, 0xb9, 1, b'y'];
        for wrong in [&[0xd9][..], &[0x22, b':', b'x', 1, b'y'], coded] {
            assert!(!passes(&[METHOD, wrong], false), "{wrong:?}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_left_to_h3() {
        for section in [
            &[][..],
            &[0],
            &[0, 0, 0x80],
            &[0, 0, 0x50, 9, b'a'],
            &[0, 0, 0xff],
        ] {
            assert!(are_in_order(section, false), "{section:?}");
        }
        let endless = [&[0, 0, 0xff][..], &[0xff; 20]].concat();
        assert!(are_in_order(&endless, false));
    }
}
