//! `BITFIELD`: integers of any width in a string, and what overflows.

use super::call::{Call, Done, Failure, NOT_INTEGER, SYNTAX};
use super::protocol::{MAX_WORD, integer};

/// What becomes of a number that does not fit.
#[derive(Clone, Copy)]
enum Overflow {
    Wrap,
    Saturate,
    Fail,
}

/// Where and how wide an integer is.
#[derive(Clone, Copy)]
struct Field {
    is_signed: bool,
    bits: u32,
    offset: u64,
}

enum Step {
    Get(Field),
    Set(Field, i64, Overflow),
    Increase(Field, i64, Overflow),
}

pub(super) fn bitfield(call: &mut Call<'_>) -> Done {
    let steps = parse(call)?;
    if steps.iter().all(|step| matches!(step, Step::Get(_))) {
        return read(call, &steps);
    }
    let end = steps.iter().filter_map(|step| match step {
        Step::Get(_) => None,
        Step::Set(field, ..) | Step::Increase(field, ..) => Some(field.end_byte()),
    });
    let end = end.max().unwrap_or_default();
    let string = call.string_mut()?;
    let is_grown = string.len() < end;
    if is_grown {
        string.resize(end, 0);
    }
    let mut changed = false;
    let results: Vec<Option<i128>> = steps
        .iter()
        .map(|step| {
            let (field, result, stored) = step.carry_out(string);
            if let Some(new) = stored {
                changed |= is_grown || new != field.get(string);
                field.set(string, new);
            }
            result
        })
        .collect();
    if changed {
        call.changed();
    }
    answer(call, &results);
    Ok(())
}

pub(super) fn bitfield_ro(call: &mut Call<'_>) -> Done {
    let steps = parse(call)?;
    if !steps.iter().all(|step| matches!(step, Step::Get(_))) {
        return Err("BITFIELD_RO only supports the GET subcommand".into());
    }
    read(call, &steps)
}

fn read(call: &mut Call<'_>, steps: &[Step]) -> Done {
    let string = call.string()?.cloned().unwrap_or_default();
    let results: Vec<_> = steps.iter().map(|step| step.carry_out(&string).1).collect();
    answer(call, &results);
    Ok(())
}

fn answer(call: &mut Call<'_>, results: &[Option<i128>]) {
    call.reply.array(results.len());
    for result in results {
        match result.and_then(|number| i64::try_from(number).ok()) {
            Some(number) => call.reply.int(number),
            None => call.reply.null(),
        }
    }
}

fn parse(call: &Call<'_>) -> Result<Vec<Step>, Failure> {
    let mut steps = Vec::new();
    let mut overflow = Overflow::Wrap;
    let mut words = call.words_from(2);
    while let [name, rest @ ..] = words {
        let name = name.to_ascii_lowercase();
        words = match (name.as_slice(), rest) {
            (b"overflow", [kind, rest @ ..]) => {
                overflow = match kind.to_ascii_lowercase().as_slice() {
                    b"wrap" => Overflow::Wrap,
                    b"sat" => Overflow::Saturate,
                    b"fail" => Overflow::Fail,
                    _ => return Err("Invalid OVERFLOW type specified".into()),
                };
                rest
            }
            (b"get", [kind, offset, rest @ ..]) => {
                steps.push(Step::Get(Field::parse(kind, offset)?));
                rest
            }
            (b"set", [kind, offset, number, rest @ ..]) => {
                let field = Field::parse(kind, offset)?;
                steps.push(Step::Set(field, operand(number)?, overflow));
                rest
            }
            (b"incrby", [kind, offset, number, rest @ ..]) => {
                let field = Field::parse(kind, offset)?;
                steps.push(Step::Increase(field, operand(number)?, overflow));
                rest
            }
            _ => return Err(SYNTAX.into()),
        };
    }
    Ok(steps)
}

fn operand(word: &[u8]) -> Result<i64, Failure> {
    integer(word).ok_or_else(|| NOT_INTEGER.into())
}

impl Step {
    /// The reply, and what is to be stored, unless that fails.
    fn carry_out(&self, string: &[u8]) -> (Field, Option<i128>, Option<i128>) {
        match *self {
            Self::Get(field) => (field, Some(field.get(string)), None),
            Self::Set(field, to, overflow) => {
                // Redis takes a negative number for an unsigned field as one of 64 bits.
                let to = match field.is_signed {
                    true => i128::from(to),
                    false => i128::from(to.cast_unsigned()),
                };
                let stored = field.fit(to, 0, overflow);
                (field, stored.map(|_| field.get(string)), stored)
            }
            Self::Increase(field, by, overflow) => {
                let stored = field.fit(field.get(string), by.into(), overflow);
                (field, stored, stored)
            }
        }
    }
}

impl Field {
    fn parse(kind: &[u8], offset: &[u8]) -> Result<Self, Failure> {
        let invalid = "Invalid bitfield type. Use something like i16 u8. Note that u64 is not \
                       supported but i64 is.";
        let (is_signed, max) = match kind.first() {
            Some(b'i') => (true, 64),
            Some(b'u') => (false, 63),
            _ => return Err(invalid.into()),
        };
        let bits = integer(kind.get(1..).unwrap_or_default());
        let bits = bits.and_then(|bits| u32::try_from(bits).ok());
        let bits = bits
            .filter(|bits| (1..=max).contains(bits))
            .ok_or(invalid)?;
        let (digits, unit) = match offset.strip_prefix(b"#") {
            Some(digits) => (digits, i64::from(bits)),
            None => (offset, 1),
        };
        let offset = integer(digits).and_then(|offset| offset.checked_mul(unit));
        let offset = offset.and_then(|offset| u64::try_from(offset).ok());
        let offset = offset.filter(|offset| offset / 8 < MAX_WORD.cast_unsigned());
        Ok(Self {
            is_signed,
            bits,
            offset: offset.ok_or("bit offset is not an integer or out of range")?,
        })
    }

    /// How long a string is that holds all of the field.
    fn end_byte(self) -> usize {
        let end = (self.offset + u64::from(self.bits)).div_ceil(8);
        usize::try_from(end).unwrap_or(usize::MAX)
    }

    fn first_byte(self) -> usize {
        usize::try_from(self.offset / 8).unwrap_or(usize::MAX)
    }

    /// How many bits the field is away from the end of sixteen bytes that begin with its first.
    fn shift(self) -> u64 {
        128 - self.offset % 8 - u64::from(self.bits)
    }

    /// Sixteen bytes from the first one of the field on, as far as the string goes.
    fn window(self, string: &[u8]) -> u128 {
        let bytes = string.get(self.first_byte()..).unwrap_or_default();
        let mut window = [0; 16];
        for (to, from) in window.iter_mut().zip(bytes) {
            *to = *from;
        }
        u128::from_be_bytes(window)
    }

    fn mask(self) -> u128 {
        (1 << self.bits) - 1
    }

    fn get(self, string: &[u8]) -> i128 {
        let number = (self.window(string) >> self.shift() & self.mask()).cast_signed();
        match self.is_signed && number > self.max() {
            true => number - (1 << self.bits),
            false => number,
        }
    }

    fn set(self, string: &mut [u8], number: i128) {
        let others = self.window(string) & !(self.mask() << self.shift());
        let own = (number.cast_unsigned() & self.mask()) << self.shift();
        let window = (others | own).to_be_bytes();
        let bytes = string.iter_mut().skip(self.first_byte());
        for (to, from) in bytes.zip(window) {
            *to = from;
        }
    }

    fn max(self) -> i128 {
        let bits = self.bits - u32::from(self.is_signed);
        (1 << bits) - 1
    }

    fn min(self) -> i128 {
        match self.is_signed {
            true => -(1 << (self.bits - 1)),
            false => 0,
        }
    }

    /// The number as it is stored, and increased by another.
    fn fit(self, number: i128, by: i128, overflow: Overflow) -> Option<i128> {
        // Redis computes what there is room for in 64 bits, and takes what is far below the least
        // for what is above the greatest.
        let room = self.max() - number;
        let wraps = room > i128::from(i64::MAX) && by > room - (1 << 64);
        let is_taken_for_greater = self.is_signed && self.bits < 64 && wraps;
        let number = number + by;
        if (self.min()..=self.max()).contains(&number) {
            return Some(number);
        }
        match overflow {
            Overflow::Saturate if is_taken_for_greater => Some(self.max()),
            Overflow::Saturate => Some(number.clamp(self.min(), self.max())),
            Overflow::Fail => None,
            Overflow::Wrap => {
                let wrapped = number.rem_euclid(1 << self.bits);
                match wrapped > self.max() {
                    true => Some(wrapped - (1 << self.bits)),
                    false => Some(wrapped),
                }
            }
        }
    }
}
