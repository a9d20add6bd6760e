//! Regular expressions that have to match the whole of a text.
//!
//! An expression that matches anywhere would take `/internal/../public` for `/public`. Here,
//! `public` matches that word alone, as in Envoy and in the Gateway API; who wants more writes
//! `.*public.*`. Matching takes a time linear in the text, whatever the expression and the text
//! are.

use regex::{Regex, RegexBuilder};
use regex_syntax::hir::{Hir, HirKind};
use thiserror::Error;

/// Upper bound on a compiled expression. A reload of a thousand routes must not take the machine's
/// memory.
const MAX_COMPILED_BYTES: usize = 1 << 20;

/// A regular expression that matches a text from its beginning to its end.
#[derive(Clone, Debug)]
pub struct AnchoredRegex {
    regex: Regex,
    source: Box<str>,
}

/// Why an expression cannot be used, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RegexError {
    /// It is empty.
    #[error("the expression is empty; leave the key out, or write \".*\" for any text")]
    Empty,
    /// It is not one.
    #[error(
        "{0:?} is not a regular expression: {1}; the syntax is that of https://docs.rs/regex, \
         without look-around and back-references"
    )]
    Syntax(String, String),
    /// It takes too much memory.
    #[error(
        "the expression takes more than 1 MiB once it is compiled; repeat less, \
         or write [0-9A-Za-z_] for \\w and [0-9] for \\d"
    )]
    TooLarge,
}

impl AnchoredRegex {
    /// Compiles an expression, which looks at the case of letters unless `ignores_case`.
    ///
    /// # Errors
    /// The error says what to write instead.
    pub fn parse(text: &str, ignores_case: bool) -> Result<Self, RegexError> {
        if text.is_empty() {
            return Err(RegexError::Empty);
        }
        let compile = |expression: &str| {
            let mut builder = RegexBuilder::new(expression);
            builder.case_insensitive(ignores_case);
            builder.size_limit(MAX_COMPILED_BYTES);
            builder.dfa_size_limit(MAX_COMPILED_BYTES);
            builder
                .build()
                .map_err(|error| RegexError::from_regex(text, &error))
        };
        // By itself first: in a group, `a)|(b` would be an expression that is not anchored.
        compile(text)?;
        Ok(Self {
            regex: compile(&format!(r"\A(?:{text})\z"))?,
            source: text.into(),
        })
    }

    /// Whether it matches a text.
    pub fn is_match(&self, text: &str) -> bool {
        self.regex.is_match(text)
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.source
    }

    /// Whether a text can match that has nothing in the group of this name: the group takes no part,
    /// or is empty there.
    pub(super) fn may_lack(&self, group: &str) -> bool {
        let parsed = regex_syntax::parse(&self.source);
        parsed.map_or(true, |expression| !always_has(&expression, group))
    }

    pub(super) fn group_names(&self) -> impl Iterator<Item = &str> {
        self.regex.capture_names().flatten()
    }

    /// The ranges of its named groups in a text that it matches, in order. A group that takes no
    /// part has an empty one.
    pub(super) fn groups(
        &self,
        text: &str,
    ) -> Option<impl Iterator<Item = std::ops::Range<usize>>> {
        let found = self.regex.captures(text)?;
        let names = self.regex.capture_names().enumerate();
        let named = names.filter_map(|(index, name)| name.map(|_| index));
        Some(named.map(move |index| found.get(index).map_or(0..0, |group| group.range())))
    }
}

/// Whether each text that an expression matches has something in the group of this name.
fn always_has(expression: &Hir, group: &str) -> bool {
    match expression.kind() {
        HirKind::Capture(capture) if capture.name.as_deref() == Some(group) => {
            let least = capture.sub.properties().minimum_len();
            least.is_some_and(|least| least > 0)
        }
        HirKind::Capture(capture) => always_has(&capture.sub, group),
        HirKind::Repetition(repeated) => repeated.min > 0 && always_has(&repeated.sub, group),
        HirKind::Concat(parts) => parts.iter().any(|part| always_has(part, group)),
        HirKind::Alternation(ways) => ways.iter().all(|way| always_has(way, group)),
        HirKind::Empty | HirKind::Literal(_) | HirKind::Class(_) | HirKind::Look(_) => false,
    }
}

impl RegexError {
    fn from_regex(text: &str, error: &regex::Error) -> Self {
        match error {
            regex::Error::CompiledTooBig(_) => Self::TooLarge,
            // The expression with a mark below it comes first, and the reason in the last line.
            other => {
                let told = other.to_string();
                let reason = told.lines().last().unwrap_or_default();
                let reason = reason.trim().trim_start_matches("error: ");
                Self::Syntax(text.to_owned(), reason.to_owned())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> AnchoredRegex {
        AnchoredRegex::parse(text, false).unwrap()
    }

    #[test]
    fn an_expression_matches_a_whole_text_and_no_part_of_one() {
        for text in ["xab", "abx", "xabx", "ab\n", "\nab", ""] {
            assert!(!parse("ab").is_match(text), "{text:?}");
        }
        assert!(parse("ab").is_match("ab") && parse("^ab$").is_match("ab"));
        // Each alternative is anchored, and the longer one is not hidden by the shorter.
        assert!(parse("a|ab").is_match("ab") && !parse("a|b").is_match("ax"));
        assert!(!AnchoredRegex::parse("AB", false).unwrap().is_match("ab"));
        assert!(AnchoredRegex::parse("AB", true).unwrap().is_match("ab"));
    }

    #[test]
    fn a_group_is_known_to_be_there_in_each_text_or_not_in_some() {
        for (text, may_lack) in [
            ("/users(/(?<id>[0-9]+))?", true),
            ("/users/(?<id>[0-9]*)", true),
            ("/users/(?<id>[0-9]*)(?<other>a)", true),
            ("/(a/(?<id>b)|c)", true),
            ("/(a|b(?<id>c))+", true),
            ("/(?<id>|a)", true),
            ("/(?<id>\\b)a", true),
            ("/((?<id>a)){0,3}", true),
            ("/a", true),
            ("/users/(?<id>[0-9]+)", false),
            ("(?i)/users(/(?<id>[0-9]+))", false),
            ("/(a/((?<id>b))|c/d/e(?<other>f)?/(?<ID>g))", true),
            ("/((?<id>a)x?){1,3}", false),
            ("/(?<id>(a|bc)x?)(/.*)?", false),
        ] {
            assert_eq!(parse(text).may_lack("id"), may_lack, "{text}");
        }
    }

    #[test]
    fn an_expression_cannot_leave_the_group_that_anchors_it() {
        for text in ["a)|(b", "a)|.*(", "(?x)a # "] {
            assert!(AnchoredRegex::parse(text, false).is_err(), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_compiled_is_told_with_its_reason() {
        let error = |text: &str| AnchoredRegex::parse(text, false).unwrap_err();
        assert_eq!(error(""), RegexError::Empty);
        for (text, reason) in [
            ("(", "unclosed group"),
            ("*", "repetition operator missing expression"),
            ("(?=a)", "look-around"),
            (r"(a)\1", "backreferences are not supported"),
            ("[z-a]", "invalid character class range"),
        ] {
            let told = error(text).to_string();
            assert!(told.contains(reason) && !told.contains('\n'), "{told}");
        }
        for large in [r"\w{1000}", "(((a{100}){100}){100}){100}"] {
            assert_eq!(error(large), RegexError::TooLarge, "{large}");
        }
    }

    /// `(a+)+$` takes exponential time where expressions are tried by going back.
    #[test]
    fn no_text_makes_an_expression_slow() {
        let text = "a".repeat(100_000) + "!";
        assert!(!parse("(a+)+").is_match(&text));
    }
}
