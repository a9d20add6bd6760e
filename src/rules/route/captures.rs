//! Captured segments of a path.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

/// The names that a pattern captures by, in order.
pub(super) type Names = Arc<[Box<str>]>;

/// Where the captured segments stand in a path, in order.
pub(super) type Spans = SmallVec<[Range<usize>; 4]>;

/// Captured segments of a path, by name.
///
/// Their values are in normal form: percent-decoded, but for what would mean something else (such
/// as `%2F`). A segment is never empty. Without captures nothing is allocated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Captures(Option<Captured>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Captured {
    names: Names,
    path: Box<str>,
    spans: Spans,
}

impl Captures {
    pub(super) fn new(names: &Names, path: &str, spans: Spans) -> Self {
        let captured = (!spans.is_empty()).then(|| Captured {
            names: Arc::clone(names),
            path: path.into(),
            spans,
        });
        Self(captured)
    }

    /// The segment that was captured as `name`.
    pub fn get(&self, name: &str) -> Option<&str> {
        let mut all = self.iter();
        all.find_map(|(known, segment)| (known == name).then_some(segment))
    }

    /// All captured segments by name, in the order of the path.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().flat_map(Captured::iter)
    }
}

impl Captured {
    fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let names = self.names.iter().map(|name| &**name);
        let segments = self
            .spans
            .iter()
            .filter_map(|span| self.path.get(span.clone()));
        names.zip(segments)
    }
}

/// Captures made up of names and segments, for those who have no path.
impl<'a> FromIterator<(&'a str, &'a str)> for Captures {
    fn from_iter<T: IntoIterator<Item = (&'a str, &'a str)>>(pairs: T) -> Self {
        let (mut names, mut path, mut spans) = (Vec::new(), String::new(), Spans::new());
        for (name, segment) in pairs {
            names.push(name.into());
            spans.push(path.len()..path.len() + segment.len());
            path.push_str(segment);
        }
        Self::new(&names.into(), &path, spans)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_found_by_name() {
        let captures = Captures::from_iter([("team", "red"), ("id", "7")]);
        assert_eq!(captures.get("id"), Some("7"));
        assert_eq!(captures.get("x"), None);
        assert_eq!(captures.iter().count(), 2);
        assert_eq!(Captures::default().get("id"), None);
    }
}
