//! Regular expressions that have to match the whole of a text.
//!
//! An expression that matches anywhere would take `/internal/../public` for `/public`. Here,
//! `public` matches that word alone, as in Envoy and in the Gateway API; who wants more writes
//! `.*public.*`. Matching takes a time linear in the text, whatever the expression and the text
//! are.

#![forbid(unsafe_code)]

#[cfg(test)]
mod tests;

use std::ops::Range;

use regex::{Regex, RegexBuilder};
use regex_syntax::hir::{Hir, HirKind};
use thiserror::Error;
use weir_rules::{AnchoredRegex, Expression};

/// Upper bound on a compiled expression. A reload of a thousand routes must not take the machine's
/// memory.
const MAX_COMPILED_BYTES: usize = 1 << 20;

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

/// Compiles an expression, which looks at the case of letters unless `ignores_case`.
///
/// # Errors
/// The error says what to write instead.
pub fn anchored(text: &str, ignores_case: bool) -> Result<AnchoredRegex, RegexError> {
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
    Ok(AnchoredRegex::new(Compiled {
        regex: compile(&format!(r"\A(?:{text})\z"))?,
        source: text.into(),
    }))
}

#[derive(Debug)]
struct Compiled {
    regex: Regex,
    source: Box<str>,
}

impl Expression for Compiled {
    fn is_match(&self, text: &str) -> bool {
        self.regex.is_match(text)
    }

    fn as_str(&self) -> &str {
        &self.source
    }

    fn group_names(&self) -> Vec<&str> {
        self.regex.capture_names().flatten().collect()
    }

    fn groups(&self, text: &str, found: &mut dyn FnMut(Range<usize>)) -> bool {
        let Some(captures) = self.regex.captures(text) else {
            return false;
        };
        let names = self.regex.capture_names().enumerate();
        for (index, _) in names.filter(|(_, name)| name.is_some()) {
            found(captures.get(index).map_or(0..0, |group| group.range()));
        }
        true
    }

    fn may_lack(&self, group: &str) -> bool {
        let parsed = regex_syntax::parse(&self.source);
        parsed.map_or(true, |expression| !always_has(&expression, group))
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
