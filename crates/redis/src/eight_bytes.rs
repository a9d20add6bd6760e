//! Text of replies, eight bytes at a time. Its lines are short, so that what a search sets up first
//! costs more than what it saves; most of a reply is digits.
//!
//! Eight bytes are one integer, whose least byte is the first of the text.

/// This byte, eight times.
const fn each(byte: u8) -> u64 {
    u64::from_le_bytes([byte; 8])
}

/// The highest bit of each byte, in which what is found is marked.
const MARKS: u64 = each(0x80);

/// The index of the first mark; eight if there is none.
const fn first(marks: u64) -> usize {
    (marks.trailing_zeros() / 8) as usize
}

/// Where the first line ends.
pub(super) fn find_newline(text: &[u8]) -> Option<usize> {
    let (mut rest, mut at) = (text, 0);
    while let Some((chunk, after)) = rest.split_first_chunk() {
        let found = newline(*chunk);
        if found < 8 {
            return Some(at + found);
        }
        (rest, at) = (after, at + 8);
    }
    let found = rest.iter().position(|byte| *byte == b'\n')?;
    Some(at + found)
}

/// The index of the first newline of eight bytes; eight if there is none. Only a newline borrows
/// from the byte behind it, so the first mark is right.
const fn newline(chunk: [u8; 8]) -> usize {
    let others = u64::from_le_bytes(chunk) ^ each(b'\n');
    first(others.wrapping_sub(each(1)) & !others & MARKS)
}

/// The number that the digits at the beginning are, modulo 2^64, and what follows them.
pub(super) fn leading_digits(text: &[u8]) -> (u64, &[u8]) {
    let (mut number, mut rest) = (0_u64, text);
    while let Some(chunk) = rest.first_chunk() {
        let (count, value) = digits(*chunk);
        let shift = POWERS_OF_TEN.get(count).copied().unwrap_or_default();
        number = number.wrapping_mul(shift).wrapping_add(value);
        rest = rest.get(count..).unwrap_or_default();
        if count < 8 {
            return (number, rest);
        }
    }
    while let [byte @ b'0'..=b'9', after @ ..] = rest {
        let digit = u64::from(byte - b'0');
        number = number.wrapping_mul(10).wrapping_add(digit);
        rest = after;
    }
    (number, rest)
}

const POWERS_OF_TEN: [u64; 9] = [
    1,
    10,
    100,
    1_000,
    10_000,
    100_000,
    1_000_000,
    10_000_000,
    100_000_000,
];

/// How many digits eight bytes begin with, and the number that they are. Neighbours are added up:
/// digits to pairs, pairs to fours, and these to all eight.
const fn digits(chunk: [u8; 8]) -> (usize, u64) {
    let values = u64::from_le_bytes(chunk) ^ each(b'0');
    // A byte above nine carries into the next at most, so the first mark is right.
    let others = (values | values.wrapping_add(each(0x7f - 9))) & MARKS;
    let count = first(others);
    if count == 0 {
        return (0, 0);
    }
    // Zeros before the digits in place of what follows them.
    let values = values << (64 - 8 * count);
    let pairs = values.wrapping_mul(10).wrapping_add(values >> 8);
    const EVERY_FOURTH: u64 = 0xff_0000_00ff;
    let first = (pairs & EVERY_FOURTH).wrapping_mul(100 + (1_000_000 << 32));
    let second = (pairs >> 16 & EVERY_FOURTH).wrapping_mul(1 + (10_000 << 32));
    (count, first.wrapping_add(second) >> 32)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    proptest! {
        #[test]
        fn the_first_newline_is_found_behind_any_bytes(
            text in vec(prop_oneof![any::<u8>(), select(b"\x09\x0a\x0b\x8a".as_slice())], 0..40),
        ) {
            prop_assert_eq!(find_newline(&text), text.iter().position(|byte| *byte == b'\n'));
        }

        #[test]
        fn digits_end_at_the_first_byte_that_is_none(
            text in vec(prop_oneof![4 => select(b"0123456789".as_slice()), 1 => any::<u8>()], 0..40),
        ) {
            let count = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let (digits, after) = text.split_at(count);
            let number = digits.iter().fold(0_u64, |number, digit| {
                number.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'))
            });
            prop_assert_eq!(leading_digits(&text), (number, after));
        }
    }
}
