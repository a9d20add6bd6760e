//! Assembles a program of classic BPF from its end to its start. All jumps lead forward, so when an
//! instruction is added, its targets have their places already.

/// How far a conditional jump leads. The byte for it has room for a little more, so that there is
/// room for what is added between a jump and its target.
const MAX_JUMP: usize = 250;

/// An instruction, as the kernel has it (`struct sock_filter`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instruction {
    pub(crate) code: u16,
    pub(crate) if_true: u8,
    pub(crate) if_false: u8,
    pub(crate) operand: u32,
}

impl Instruction {
    /// One that does not jump.
    pub(crate) const fn new(code: u16, operand: u32) -> Self {
        Self {
            code,
            if_true: 0,
            if_false: 0,
            operand,
        }
    }
}

/// Codes of instructions (`linux/bpf_common.h`).
pub(crate) mod code {
    pub(crate) const LOAD_WORD: u16 = 0x20;
    pub(crate) const LOAD_BYTE: u16 = 0x30;
    pub(crate) const AND: u16 = 0x54;
    pub(crate) const SHIFT_RIGHT: u16 = 0x74;
    pub(crate) const JUMP: u16 = 0x05;
    pub(crate) const JUMP_IF_EQUAL: u16 = 0x15;
    pub(crate) const JUMP_IF_GREATER: u16 = 0x25;
    pub(crate) const JUMP_IF_AT_LEAST: u16 = 0x35;
    pub(crate) const RETURN: u16 = 0x06;
}

/// The end of a program: how many bytes of the packet are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Drop = 0,
    Pass = 1,
}

impl Verdict {
    pub(crate) const fn kept_bytes(self) -> u32 {
        match self {
            Self::Drop => 0,
            Self::Pass => u32::MAX,
        }
    }
}

/// Where a program goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    End(Verdict),
    /// At an instruction, counted from the end of the program.
    At(usize),
}

#[derive(Default)]
pub(crate) struct Assembler {
    reversed: Vec<Instruction>,
    /// The latest return for each verdict.
    returns: [Option<usize>; 2],
}

impl Assembler {
    pub(crate) fn len(&self) -> usize {
        self.reversed.len()
    }

    /// The program, which begins at `start`.
    pub(crate) fn finish(mut self, start: Target) -> Vec<Instruction> {
        self.fall_into(start);
        self.reversed.reverse();
        self.reversed
    }

    /// Adds an instruction after which the program goes on at `next`.
    pub(crate) fn then(&mut self, code: u16, operand: u32, next: Target) -> Target {
        self.fall_into(next);
        self.push(code, operand, 0, 0)
    }

    /// Adds a comparison of what was loaded with `operand`.
    pub(crate) fn jump(
        &mut self,
        code: u16,
        operand: u32,
        if_true: Target,
        if_false: Target,
    ) -> Target {
        let (if_true, if_false) = (self.near(if_true), self.near(if_false));
        let (if_true, if_false) = (self.distance(if_true), self.distance(if_false));
        // `MAX_JUMP` keeps both within a byte.
        let byte = |distance: usize| u8::try_from(distance).unwrap_or(u8::MAX);
        self.push(code, operand, byte(if_true), byte(if_false))
    }

    /// An instruction that a conditional jump reaches and that leads to the target.
    fn near(&mut self, target: Target) -> usize {
        let place = match target {
            Target::At(place) => Some(place),
            Target::End(verdict) => self.last_return(verdict),
        };
        match place.filter(|place| self.distance(*place) <= MAX_JUMP) {
            Some(place) => place,
            None => self.lead_to(target),
        }
    }

    /// Makes the target come next.
    fn fall_into(&mut self, target: Target) {
        let place = match target {
            Target::At(place) => Some(place),
            Target::End(verdict) => self.last_return(verdict),
        };
        if place.is_none_or(|place| self.distance(place) > 0) {
            self.lead_to(target);
        }
    }

    fn last_return(&self, verdict: Verdict) -> Option<usize> {
        let [dropped, passed] = self.returns;
        match verdict {
            Verdict::Drop => dropped,
            Verdict::Pass => passed,
        }
    }

    /// Adds an instruction that does nothing but lead to the target, however far it is.
    fn lead_to(&mut self, target: Target) -> usize {
        let place = self.reversed.len();
        match target {
            Target::At(target) => {
                let distance = u32::try_from(self.distance(target)).unwrap_or(u32::MAX);
                self.push(code::JUMP, distance, 0, 0);
            }
            Target::End(verdict) => {
                self.push(code::RETURN, verdict.kept_bytes(), 0, 0);
                let [dropped, passed] = &mut self.returns;
                *match verdict {
                    Verdict::Drop => dropped,
                    Verdict::Pass => passed,
                } = Some(place);
            }
        }
        place
    }

    /// How many instructions a jump that is added next skips.
    fn distance(&self, place: usize) -> usize {
        self.reversed.len() - place - 1
    }

    fn push(&mut self, code: u16, operand: u32, if_true: u8, if_false: u8) -> Target {
        self.reversed.push(Instruction {
            code,
            if_true,
            if_false,
            operand,
        });
        Target::At(self.reversed.len() - 1)
    }
}
