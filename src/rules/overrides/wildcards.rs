//! Texts with a `*`, found by what is around it.
//!
//! A text is looked up once for each shape that occurs (so many bytes before the `*`, so many
//! after it), and not once for each wildcard: ten thousand of the form `*.example.com` have a few
//! dozen shapes.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

/// A text with one `*`, which stands for any text, the empty one too.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(in crate::rules) struct Wildcard {
    /// What is around the `*`, without it.
    around: Arc<str>,
    /// How many bytes of that are before it.
    before: usize,
}

impl Wildcard {
    pub(in crate::rules) fn new(before: &str, after: &str) -> Self {
        Self {
            around: format!("{before}{after}").into(),
            before: before.len(),
        }
    }

    fn after(&self) -> usize {
        self.around.len() - self.before
    }
}

impl fmt::Debug for Wildcard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (before, after) = self
            .around
            .split_at_checked(self.before)
            .unwrap_or_default();
        write!(f, "{before}*{after}")
    }
}

/// Values by wildcards.
#[derive(Clone, Debug)]
pub(in crate::rules) struct Wildcards<V> {
    /// The longest first; of equally long ones, the one with more before the `*`.
    shapes: Vec<Shape<V>>,
}

#[derive(Clone, Debug)]
struct Shape<V> {
    before: usize,
    after: usize,
    by_text: HashMap<Box<[u8]>, (Wildcard, V)>,
}

impl<V> Default for Wildcards<V> {
    fn default() -> Self {
        Self { shapes: Vec::new() }
    }
}

impl<V: Default> Wildcards<V> {
    /// The value of a wildcard, which is made if there is none.
    pub(in crate::rules) fn entry(&mut self, wildcard: Wildcard) -> &mut V {
        let shape = self.shape(wildcard.before, wildcard.after());
        let key = wildcard.around.as_bytes().into();
        let entry = shape.by_text.entry(key);
        &mut entry.or_insert_with(|| (wildcard, V::default())).1
    }

    fn shape(&mut self, before: usize, after: usize) -> &mut Shape<V> {
        let rank = |before: usize, after: usize| Reverse((before + after, before));
        let sought = rank(before, after);
        let found = self
            .shapes
            .binary_search_by_key(&sought, |it| rank(it.before, it.after));
        let at = found.unwrap_or_else(|at| {
            let by_text = HashMap::new();
            let shape = Shape {
                before,
                after,
                by_text,
            };
            self.shapes.insert(at, shape);
            at
        });
        #[expect(clippy::indexing_slicing, reason = "it was found there, or put there")]
        &mut self.shapes[at]
    }
}

impl<V> Wildcards<V> {
    pub(in crate::rules) fn is_empty(&self) -> bool {
        self.shapes.is_empty()
    }

    /// The wildcards that match a text, the best first.
    pub(in crate::rules) fn matching<'w, 'x>(
        &'w self,
        text: &'x [u8],
    ) -> impl Iterator<Item = (&'w Wildcard, &'w V)> + use<'w, 'x, V> {
        let found = move |shape: &'w Shape<V>| shape.by_text.get(&*shape.ends_of(text)?);
        let found = self.shapes.iter().filter_map(found);
        found.map(|(wildcard, value)| (wildcard, value))
    }

    /// The value of a wildcard.
    pub(in crate::rules) fn get(&self, wildcard: &Wildcard) -> Option<&V> {
        let ends = (wildcard.before, wildcard.after());
        let mut shapes = self.shapes.iter();
        let shape = shapes.find(|it| (it.before, it.after) == ends)?;
        let found = shape.by_text.get(wildcard.around.as_bytes())?;
        Some(&found.1)
    }

    /// All wildcards.
    pub(in crate::rules) fn iter(&self) -> impl Iterator<Item = (&Wildcard, &V)> {
        let all = self.shapes.iter().flat_map(|shape| shape.by_text.values());
        all.map(|(wildcard, value)| (wildcard, value))
    }
}

impl<V> Shape<V> {
    /// Start and end of a text, joined; none when it is too short to have both.
    fn ends_of(&self, text: &[u8]) -> Option<SmallVec<[u8; 64]>> {
        let between = text.len().checked_sub(self.before + self.after)?;
        let mut ends = SmallVec::from_slice(text.get(..self.before)?);
        ends.extend_from_slice(text.get(self.before + between..)?);
        Some(ends)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(texts: &[&str]) -> Wildcards<()> {
        let mut table = Wildcards::default();
        for text in texts {
            let (before, after) = text.split_once('*').unwrap();
            *table.entry(Wildcard::new(before, after)) = ();
        }
        table
    }

    fn matching(texts: &[&str], text: &str) -> Vec<String> {
        let table = table(texts);
        let found = table.matching(text.as_bytes());
        found
            .map(|(wildcard, ())| format!("{wildcard:?}"))
            .collect()
    }

    #[test]
    fn the_longest_wildcard_is_first_and_then_the_one_with_more_before() {
        let all = ["*", "a*", "*c", "ab*", "*bc", "a*c"];
        let best_first = ["ab*", "a*c", "*bc", "a*", "*c", "*"];
        assert_eq!(matching(&all, "abbc"), best_first);
    }

    #[test]
    fn start_and_end_do_not_overlap() {
        assert_eq!(matching(&["ab*bc"], "abc"), Vec::<String>::new());
        assert_eq!(matching(&["ab*bc"], "abbc"), ["ab*bc"]);
        assert_eq!(matching(&["*.example.com"], "example.com").len(), 0);
    }

    #[test]
    fn wildcards_of_the_same_letters_are_told_apart() {
        assert_eq!(matching(&["a*b", "ab*"], "ab1"), ["ab*"]);
        let table = table(&["a*b", "*ab"]);
        assert!(table.get(&Wildcard::new("a", "b")).is_some());
        assert!(table.get(&Wildcard::new("ab", "")).is_none());
    }

    #[test]
    fn many_wildcards_of_one_form_take_few_lookups() {
        let texts: Vec<String> = (0..10_000)
            .map(|it| format!("*.site{it}.example"))
            .collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let table = table(&texts);
        assert_eq!(table.iter().count(), 10_000);
        assert_eq!(table.shapes.len(), 4);
        assert_eq!(table.matching(b"www.site4321.example").count(), 1);
    }
}
