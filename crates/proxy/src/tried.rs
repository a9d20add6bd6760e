//! The servers that a request has tried.

/// A set of servers by their index. Asking it takes the same time however many there are, and an
/// empty one has no memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Tried {
    bits: Vec<u64>,
    count: usize,
}

impl Tried {
    pub(super) fn insert(&mut self, index: usize) {
        if self.contains(index) {
            return;
        }
        let word = index / 64;
        if word >= self.bits.len() {
            self.bits.resize(word + 1, 0);
        }
        if let Some(bits) = self.bits.get_mut(word) {
            *bits |= 1 << (index % 64);
            self.count += 1;
        }
    }

    pub(super) fn contains(&self, index: usize) -> bool {
        let bits = self.bits.get(index / 64);
        bits.is_some_and(|bits| bits >> (index % 64) & 1 == 1)
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_counts_once_and_no_other_is_taken_for_it() {
        let mut tried = Tried::default();
        for index in [200, 0, 63, 64, 200] {
            tried.insert(index);
        }
        let found: Vec<_> = (0..1000).filter(|index| tried.contains(*index)).collect();
        assert_eq!((found, tried.len()), (vec![0, 63, 64, 200], 4));
        assert!(!tried.is_empty() && Tried::default().is_empty());
    }
}
