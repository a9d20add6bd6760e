//! Runs programs in user space, so that tests can compare them with what they were made of, and the
//! kernel with both.

use std::net::IpAddr;

use crate::Program;
use crate::assembler::{Verdict, code};

/// Where offsets of the header of IP begin.
const IP_HEADER: u32 = 0xfff0_0000;

/// A header of IP with this source.
pub(crate) fn header(source: IpAddr) -> Vec<u8> {
    let (mut header, at, source) = match source {
        IpAddr::V4(source) => (vec![0x45; 20], 12, source.octets().to_vec()),
        IpAddr::V6(source) => (vec![0x60; 40], 8, source.octets().to_vec()),
    };
    header[at..at + source.len()].copy_from_slice(&source);
    header
}

/// What the program does with a segment that has these headers.
pub(crate) fn evaluate(program: &Program, ip: &[u8], tcp: &[u8]) -> Verdict {
    let instructions = program.instructions();
    let (mut accumulator, mut at) = (0_u32, 0);
    loop {
        let it = instructions[at];
        let load = |length: usize| {
            let (bytes, offset) = match it.operand >= IP_HEADER {
                true => (ip, it.operand - IP_HEADER),
                false => (tcp, it.operand),
            };
            let start = offset as usize;
            bytes[start..start + length]
                .iter()
                .fold(0, |word, byte| word << 8 | u32::from(*byte))
        };
        let jump = |is_true: bool| usize::from(if is_true { it.if_true } else { it.if_false });
        at += 1;
        match it.code {
            code::LOAD_WORD => accumulator = load(4),
            code::LOAD_BYTE => accumulator = load(1),
            code::AND => accumulator &= it.operand,
            code::SHIFT_RIGHT => accumulator >>= it.operand,
            code::JUMP => at += it.operand as usize,
            code::JUMP_IF_EQUAL => at += jump(accumulator == it.operand),
            code::JUMP_IF_GREATER => at += jump(accumulator > it.operand),
            code::JUMP_IF_AT_LEAST => at += jump(accumulator >= it.operand),
            code::RETURN if it.operand == 0 => return Verdict::Drop,
            code::RETURN => return Verdict::Pass,
            other => panic!("no filter has {other:#x}"),
        }
    }
}
