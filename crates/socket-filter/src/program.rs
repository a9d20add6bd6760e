//! Compiles a set of peers to a filter: a search tree over the source address.

use thiserror::Error;

use crate::assembler::{Assembler, Instruction, Target, Verdict, code};
use crate::peers::{PeerSet, Range};

/// How many instructions the kernel takes (`BPF_MAXINSNS`).
pub const MAX_INSTRUCTIONS: usize = 4096;

/// Where the header of IP is, in the offsets of loads (`SKF_NET_OFF`). The packet itself begins with
/// the header of TCP for a filter of a TCP socket.
const IP_HEADER: u32 = 0xfff0_0000;

/// Where the headers of both versions have the source address.
const V4_SOURCE: u32 = IP_HEADER + 12;
const V6_SOURCE: u32 = IP_HEADER + 8;

/// The byte of the flags in the header of TCP.
const TCP_FLAGS: u32 = 13;
const SYN: u32 = 0x02;
const SYN_OR_ACK: u32 = 0x12;

/// The first byte of a QUIC packet in a datagram, behind the header of UDP, and the bit by which it
/// has a long header (RFC 9000, section 17.2).
const PACKET_FLAGS: u32 = 8;
const LONG_HEADER: u32 = 0x80;

/// How many instructions go before those that look at the source, in a socket of UDP.
const BEFORE: usize = 3;

/// How many ranges are tried one after the other. A comparison in the tree costs an instruction or
/// two, and a few tries cost less time than a connection.
const LEAF: usize = 8;

/// The set of peers takes more instructions than the kernel allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the filter would have more than {MAX_INSTRUCTIONS} instructions")]
pub struct FilterTooLong;

/// A filter of a listening socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program(Box<[Instruction]>);

impl Program {
    /// Drops all segments of these peers, and lets all others pass. Sockets of IPv4, of IPv6 and of
    /// both can have it: a packet is looked at by its own version.
    ///
    /// # Errors
    /// If the kernel would not take it, as there are too many peers.
    pub fn dropping(peers: &PeerSet) -> Result<Self, FilterTooLong> {
        let mut assembler = Assembler::default();
        let mut compiler = Compiler(&mut assembler);
        let v6 = compiler.word(peers.v6(), 0, &V6_WORDS)?;
        let v4 = compiler.word(peers.v4(), 0, &V4_WORDS)?;
        let pass = Target::End(Verdict::Pass);
        let start = assembler.jump(code::JUMP_IF_EQUAL, 6, v6, pass);
        let start = assembler.jump(code::JUMP_IF_EQUAL, 4, v4, start);
        let start = assembler.then(code::SHIFT_RIGHT, 4, start);
        let start = assembler.then(code::LOAD_BYTE, IP_HEADER, start);
        Self::checked(assembler.finish(start))
    }

    /// Lets all segments pass.
    pub fn dropping_nobody() -> Self {
        let start = Target::End(Verdict::Pass);
        Self(Assembler::default().finish(start).into())
    }

    /// Drops the first segment of every new handshake, and lets those under way finish.
    pub fn refusing_handshakes() -> Self {
        let mut assembler = Assembler::default();
        let (drop, pass) = (Target::End(Verdict::Drop), Target::End(Verdict::Pass));
        let start = assembler.jump(code::JUMP_IF_EQUAL, SYN, drop, pass);
        let start = assembler.then(code::AND, SYN_OR_ACK, start);
        let start = assembler.then(code::LOAD_BYTE, TCP_FLAGS, start);
        Self(assembler.finish(start).into())
    }

    /// The same for a socket of UDP on which QUIC is spoken: drops the packets of handshakes alone,
    /// which have a long header, and lets those of connections pass. An empty datagram, which is
    /// nobody's, is dropped as well.
    #[must_use]
    pub fn of_long_headers(&self) -> Self {
        let before: [_; BEFORE] = [
            Instruction::new(code::LOAD_BYTE, PACKET_FLAGS),
            Instruction {
                if_true: 1,
                ..Instruction::new(code::JUMP_IF_AT_LEAST, LONG_HEADER)
            },
            Instruction::new(code::RETURN, Verdict::Pass.kept_bytes()),
        ];
        Self([&before[..], &*self.0].concat().into())
    }

    fn checked(instructions: Vec<Instruction>) -> Result<Self, FilterTooLong> {
        match instructions.len() <= MAX_INSTRUCTIONS - BEFORE {
            true => Ok(Self(instructions.into())),
            false => Err(FilterTooLong),
        }
    }

    pub(crate) fn instructions(&self) -> &[Instruction] {
        &self.0
    }
}

/// A word of an address: where it is in the packet, and how many bits of the address follow it.
type Word = (u32, u32);

const V4_WORDS: [Word; 1] = [(V4_SOURCE, 0)];

const V6_WORDS: [Word; 4] = [
    (V6_SOURCE, 96),
    (V6_SOURCE + 4, 64),
    (V6_SOURCE + 8, 32),
    (V6_SOURCE + 12, 0),
];

struct Compiler<'a>(&'a mut Assembler);

/// What holds for a range of values of a word.
#[derive(Debug)]
struct Item<T> {
    first: u32,
    last: u32,
    then: T,
}

impl Compiler<'_> {
    /// Compares an address with ranges from one of its words on. The ranges do not differ in the
    /// words before.
    fn word(
        &mut self,
        ranges: &[Range],
        index: usize,
        words: &[Word],
    ) -> Result<Target, FilterTooLong> {
        let Some(&(offset, rest)) = words.get(index).filter(|_| !ranges.is_empty()) else {
            return Ok(Target::End(Verdict::Pass));
        };
        let mut items = Vec::new();
        for Item { first, last, then } in split(ranges, rest) {
            let then = match then {
                None => Target::End(Verdict::Drop),
                Some(ranges) => self.word(&ranges, index + 1, words)?,
            };
            items.push(Item { first, last, then });
        }
        let found = self.search(&items)?;
        Ok(self.0.then(code::LOAD_WORD, offset, found))
    }

    fn search(&mut self, items: &[Item<Target>]) -> Result<Target, FilterTooLong> {
        // A set that is far too large need not be compiled to its end.
        if self.0.len() > MAX_INSTRUCTIONS - BEFORE {
            return Err(FilterTooLong);
        }
        let (left, right) = items.split_at(items.len() / 2);
        let pivot = right.first().filter(|_| items.len() > LEAF);
        let Some(pivot) = pivot else {
            let pass = Target::End(Verdict::Pass);
            let reversed = items.iter().rev();
            return Ok(reversed.fold(pass, |next, item| self.test(item, next)));
        };
        let (right, left) = (self.search(right)?, self.search(left)?);
        Ok((self.0).jump(code::JUMP_IF_AT_LEAST, pivot.first, right, left))
    }

    /// Tries one item. Lower values than its first are in no other, as those before were tried.
    fn test(&mut self, item: &Item<Target>, next: Target) -> Target {
        let Item { first, last, then } = *item;
        if first == last {
            return self.0.jump(code::JUMP_IF_EQUAL, first, then, next);
        }
        let within = match last {
            u32::MAX => then,
            last => self.0.jump(code::JUMP_IF_GREATER, last, next, then),
        };
        match first {
            0 => within,
            first => {
                let pass = Target::End(Verdict::Pass);
                self.0.jump(code::JUMP_IF_AT_LEAST, first, within, pass)
            }
        }
    }
}

/// The values of a word behind which `rest` bits follow: those of which all addresses are in the
/// ranges, and those with ranges in them.
fn split(ranges: &[Range], rest: u32) -> Vec<Item<Option<Vec<Range>>>> {
    let word = |address: u128| u32::try_from((address >> rest) & 0xffff_ffff).unwrap_or(0);
    let low = (1_u128 << rest) - 1;
    let mut items: Vec<Item<Option<Vec<Range>>>> = Vec::new();
    for &(from, to) in ranges {
        let (mut first, mut last) = (u64::from(word(from)), u64::from(word(to)));
        let (starts_within, ends_within) = (from & low != 0, to & low != low);
        if first == last && (starts_within || ends_within) {
            add_part(&mut items, word(from), (from, to));
            continue;
        }
        if starts_within {
            add_part(&mut items, word(from), (from, from | low));
            first += 1;
        }
        if ends_within {
            last -= 1;
        }
        if let (Ok(first), Ok(last)) = (u32::try_from(first), u32::try_from(last))
            && first <= last
        {
            items.push(Item {
                first,
                last,
                then: None,
            });
        }
        if ends_within {
            add_part(&mut items, word(to), (to & !low, to));
        }
    }
    items
}

fn add_part(items: &mut Vec<Item<Option<Vec<Range>>>>, value: u32, part: Range) {
    match items.last_mut() {
        Some(Item {
            first,
            then: Some(parts),
            ..
        }) if *first == value => parts.push(part),
        _ => items.push(Item {
            first: value,
            last: value,
            then: Some(vec![part]),
        }),
    }
}
