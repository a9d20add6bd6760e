//! Values by networks and by wildcards.
//!
//! An address or a text is looked up once for each shape that occurs (a prefix length; the numbers
//! of bytes before and after the `*`), and not once for each entry: ten thousand wildcards of the
//! form `*.example.com` have a few dozen shapes.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use smallvec::SmallVec;

#[derive(Clone, Debug)]
pub(super) struct NetworkMap<V> {
    /// The longest prefix first.
    lengths: Vec<PrefixLength<V>>,
}

#[derive(Clone, Debug)]
struct PrefixLength<V> {
    prefix: u8,
    is_ipv4: bool,
    by_address: HashMap<IpAddr, V>,
}

impl<V> Default for NetworkMap<V> {
    fn default() -> Self {
        Self {
            lengths: Vec::new(),
        }
    }
}

impl<V: Default> NetworkMap<V> {
    /// The value of a network, which is made if there is none.
    pub(super) fn entry(&mut self, network: IpNet) -> &mut V {
        let length = self.length(network.prefix_len(), network.addr().is_ipv4());
        let entry = length.by_address.entry(network.network());
        entry.or_default()
    }

    fn length(&mut self, prefix: u8, is_ipv4: bool) -> &mut PrefixLength<V> {
        let sought = Reverse((prefix, is_ipv4));
        let found = self
            .lengths
            .binary_search_by_key(&sought, |length| Reverse((length.prefix, length.is_ipv4)));
        let at = found.unwrap_or_else(|at| {
            let by_address = HashMap::new();
            let length = PrefixLength {
                prefix,
                is_ipv4,
                by_address,
            };
            self.lengths.insert(at, length);
            at
        });
        #[expect(clippy::indexing_slicing, reason = "it was found there, or put there")]
        &mut self.lengths[at]
    }
}

impl<V> NetworkMap<V> {
    pub(super) fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }

    /// The values of the networks that an address is in, that of the longest prefix first.
    pub(super) fn around(&self, address: IpAddr) -> impl Iterator<Item = &V> {
        let of_family = self
            .lengths
            .iter()
            .filter(move |length| length.is_ipv4 == address.is_ipv4());
        of_family.filter_map(move |length| {
            let network = IpNet::new(address, length.prefix).ok()?;
            length.by_address.get(&network.network())
        })
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.lengths
            .iter()
            .flat_map(|length| length.by_address.values())
    }
}

/// A text with one `*`, which stands for any text, the empty one too.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Wildcard {
    /// The text without the `*`.
    around: Arc<str>,
    /// Its bytes before the `*`.
    before: usize,
}

impl Wildcard {
    pub fn new(before: &str, after: &str) -> Self {
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
pub struct WildcardMap<V> {
    /// The longest first; of equally long ones, the one with more before the `*`.
    shapes: Vec<Shape<V>>,
}

#[derive(Clone, Debug)]
struct Shape<V> {
    before: usize,
    after: usize,
    by_text: HashMap<Box<[u8]>, (Wildcard, V)>,
}

impl<V> Default for WildcardMap<V> {
    fn default() -> Self {
        Self { shapes: Vec::new() }
    }
}

impl<V: Default> WildcardMap<V> {
    /// The value of a wildcard, which is made if there is none.
    pub fn entry(&mut self, wildcard: Wildcard) -> &mut V {
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
            .binary_search_by_key(&sought, |shape| rank(shape.before, shape.after));
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

impl<V> WildcardMap<V> {
    pub fn is_empty(&self) -> bool {
        self.shapes.is_empty()
    }

    /// The wildcards that match a text, the best first.
    pub fn matching<'w, 'x>(
        &'w self,
        text: &'x [u8],
    ) -> impl Iterator<Item = (&'w Wildcard, &'w V)> + use<'w, 'x, V> {
        let found = move |shape: &'w Shape<V>| shape.by_text.get(&*shape.ends_of(text)?);
        let found = self.shapes.iter().filter_map(found);
        found.map(|(wildcard, value)| (wildcard, value))
    }

    /// The value of a wildcard.
    pub fn get(&self, wildcard: &Wildcard) -> Option<&V> {
        let ends = (wildcard.before, wildcard.after());
        let mut shapes = self.shapes.iter();
        let shape = shapes.find(|shape| (shape.before, shape.after) == ends)?;
        let found = shape.by_text.get(wildcard.around.as_bytes())?;
        Some(&found.1)
    }

    /// All wildcards.
    pub fn iter(&self) -> impl Iterator<Item = (&Wildcard, &V)> {
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

    fn around(networks: &[&str], address: &str) -> Vec<String> {
        let mut table = NetworkMap::<String>::default();
        for network in networks {
            *table.entry(network.parse().unwrap()) = (*network).to_owned();
        }
        let found = table.around(address.parse().unwrap());
        found.cloned().collect()
    }

    #[test]
    fn the_longest_prefix_is_first_and_families_are_kept_apart() {
        let all = [
            "::/0",
            "10.0.0.0/8",
            "10.1.0.0/16",
            "10.2.0.0/16",
            "0.0.0.0/0",
            "2001:db8::/32",
        ];
        assert_eq!(
            around(&all, "10.1.2.3"),
            ["10.1.0.0/16", "10.0.0.0/8", "0.0.0.0/0"]
        );
        assert_eq!(around(&all, "192.0.2.1"), ["0.0.0.0/0"]);
        assert_eq!(around(&all, "2001:db8::1"), ["2001:db8::/32", "::/0"]);
        assert_eq!(around(&all, "2001:db9::1"), ["::/0"]);
    }

    fn table(texts: &[&str]) -> WildcardMap<()> {
        let mut table = WildcardMap::default();
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
            .map(|index| format!("*.site{index}.example"))
            .collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let table = table(&texts);
        assert_eq!(table.iter().count(), 10_000);
        assert_eq!(table.shapes.len(), 4);
        assert_eq!(table.matching(b"www.site4321.example").count(), 1);
    }
}
