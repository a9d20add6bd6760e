//! Lines of text by a pattern in the syntax of nginx's `log_format`: `$remote_addr [$time_local]`.
//!
//! A variable ends where the text that follows it in the pattern begins; the last one reaches to
//! the end of the line. What stands behind a pattern that ends in text is skipped.

use std::borrow::Cow;
use std::sync::Arc;

use super::fields::{Field, Texts, VARIABLES};

/// What values with blanks stand in.
const ENCLOSING: [char; 6] = ['"', '\'', '[', '(', '{', '|'];

/// A pattern of the lines of a log.
#[derive(Debug)]
pub struct Pattern<'p> {
    /// The text before the first variable.
    start: &'p str,
    variables: Vec<Variable<'p>>,
    /// Whether lines have the query of a request that has one.
    pub tells_query: bool,
}

#[derive(Debug)]
struct Variable<'p> {
    /// None if nothing asks for it.
    field: Option<Field>,
    /// Whether it may hold blanks: it stands beside none, in quotes or brackets, or at the end.
    may_be_blank: bool,
    /// The text behind it.
    until: &'p str,
}

impl<'p> Pattern<'p> {
    /// Reads a pattern. Variables that no field is known for are skipped in lines.
    pub fn new(text: &'p str) -> Self {
        let mut parts = text.split('$');
        let start = parts.next().unwrap_or_default();
        let parts: Vec<(&str, &str)> = parts.map(name_and_rest).collect();
        let before = std::iter::once(start).chain(parts.iter().map(|(_, until)| *until));
        let variables = parts.iter().zip(before).map(|((name, until), before)| {
            let best = best(name).filter(|(field, rank)| {
                let mut others = parts.iter().filter_map(|(name, _)| best_of(name, *field));
                others.all(|other| other >= *rank)
            });
            Variable {
                field: best.map(|(field, _)| field),
                may_be_blank: until.is_empty()
                    || before.ends_with(ENCLOSING)
                    || !before.ends_with(' ') && !until.starts_with(' '),
                until,
            }
        });
        let variables = variables.collect();
        let mut fields = parts.iter().filter_map(|(name, _)| best(name));
        Self {
            start,
            variables,
            tells_query: fields.any(|(field, rank)| field.tells_query(rank)),
        }
    }

    /// The fields of a line; none if it does not have this pattern.
    pub fn fields<'l>(&self, line: &'l str) -> Option<Texts<'l>> {
        let mut rest = strip(line, self.start)?;
        let mut texts = Texts::default();
        for variable in &self.variables {
            let (value, behind) = match variable.until {
                "" => (rest, ""),
                until => split(rest, until)?,
            };
            if !variable.may_be_blank && value.contains(' ') {
                return None;
            }
            if let Some(field) = variable.field {
                texts.set(field, unescaped(value));
            }
            rest = behind;
        }
        Some(texts)
    }

    fn has(&self, field: Field) -> bool {
        let mut fields = self.variables.iter().filter_map(|variable| variable.field);
        fields.any(|known| known == field)
    }
}

/// Checks a pattern that an operator wrote.
///
/// # Errors
/// When it does not tell enough of requests, or not where a variable ends.
pub fn checked(text: &str) -> Result<Arc<str>, String> {
    let pattern = Pattern::new(text);
    let ends = pattern.variables.iter().rev().skip(1);
    if ends.clone().any(|variable| variable.until.is_empty()) {
        return Err(
            "two variables stand side by side, so nothing says where the first ends".into(),
        );
    }
    let names = |field: Field| {
        let known = VARIABLES.iter().filter(|(known, _)| *known == field);
        let names: Vec<String> = known
            .flat_map(|(_, names)| *names)
            .filter(|name| !name.starts_with('@'))
            .map(|name| format!("${name}"))
            .collect();
        names.join(", ")
    };
    let needs: [(&str, &[Field]); 3] = [
        (
            "client",
            &[Field::Client, Field::ClientWithPort, Field::Forwarded],
        ),
        ("time", &[Field::Ended, Field::Began]),
        ("request", &[Field::Request, Field::Method]),
    ];
    for (what, fields) in needs {
        if !fields.iter().any(|field| pattern.has(*field)) {
            let names: Vec<String> = fields.iter().map(|field| names(*field)).collect();
            return Err(format!(
                "the pattern has no {what}; write one of {}",
                names.join(", ")
            ));
        }
    }
    if pattern.has(Field::Method) && !pattern.has(Field::Target) && !pattern.has(Field::Request) {
        return Err(format!(
            "the pattern has no target; write one of {}",
            names(Field::Target)
        ));
    }
    Ok(text.into())
}

/// The name of a variable, in braces or not, and the text behind it.
fn name_and_rest(text: &str) -> (&str, &str) {
    if let Some((name, rest)) = text.strip_prefix('{').and_then(|text| text.split_once('}')) {
        return (name, rest);
    }
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let end = text.find(|letter| !is_name(letter)).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, ""))
}

/// The field of a variable, and its rank among the names of that field.
fn best(name: &str) -> Option<(Field, usize)> {
    VARIABLES.iter().find_map(|(field, names)| {
        let rank = names.iter().position(|known| *known == name)?;
        Some((*field, rank))
    })
}

fn best_of(name: &str, field: Field) -> Option<usize> {
    let (found, rank) = best(name)?;
    (found == field).then_some(rank)
}

/// The line behind a text of the pattern. Servers pad columns, so one blank stands for several.
fn strip<'l>(line: &'l str, text: &str) -> Option<&'l str> {
    let rest = line.strip_prefix(text)?;
    Some(match text.ends_with(' ') {
        true => rest.trim_start_matches(' '),
        false => rest,
    })
}

/// The value before a text of the pattern, and what stands behind that. A quote that is escaped
/// ends no value.
fn split<'l>(line: &'l str, until: &str) -> Option<(&'l str, &'l str)> {
    let mut from = 0;
    loop {
        let found = from + memchr::memmem::find(line.as_bytes().get(from..)?, until.as_bytes())?;
        let (value, rest) = line.split_at_checked(found)?;
        let escapes = value
            .bytes()
            .rev()
            .take_while(|byte| *byte == b'\\')
            .count();
        if until.starts_with('"') && escapes % 2 == 1 {
            from = found + 1;
            continue;
        }
        return Some((value, strip(rest, until)?));
    }
}

/// A text with `\x22`, `\"` and `\\` as the characters that they stand for. What is no character
/// then stays as it is.
pub(super) fn unescaped(text: &str) -> Cow<'_, str> {
    if memchr::memchr(b'\\', text.as_bytes()).is_none() {
        return Cow::Borrowed(text);
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let hex = || {
            let digits = str::from_utf8(behind.strip_prefix(b"x")?.get(..2)?).ok()?;
            u8::from_str_radix(digits, 16).ok()
        };
        let (byte, taken) = match (first, behind.first()) {
            (b'\\', Some(b'x')) => hex().map_or((b'\\', 1), |byte| (byte, 4)),
            (b'\\', Some(quoted @ (b'"' | b'\\'))) => (*quoted, 2),
            _ => (*first, 1),
        };
        bytes.push(byte);
        rest = rest.get(taken..).unwrap_or_default();
    }
    String::from_utf8(bytes).map_or(Cow::Borrowed(text), Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_a_line_are_those_that_the_pattern_names() {
        let pattern = Pattern::new(
            "$remote_addr:$remote_port [$time_local] $_ \"$request\" ${status} \"$http_user_agent\"",
        );
        let line = "203.0.113.1:80 [21/Nov/2026:10:00:00 +0000]   x \"GET /\\x22 HTTP/1.1\" 200 \
                    \"a \\\" b\" and more";
        let fields = pattern.fields(line).expect("the fields");
        assert_eq!(fields.get(Field::Client), Some("203.0.113.1"));
        assert_eq!(fields.get(Field::Request), Some("GET /\" HTTP/1.1"));
        assert_eq!(fields.get(Field::Status), Some("200"));
        assert_eq!(fields.get(Field::UserAgent), Some("a \" b"));
        assert!(pattern.fields("203.0.113.1:80 no time").is_none());
    }

    #[test]
    fn the_most_exact_of_two_times_counts() {
        let pattern = Pattern::new("$time_local|$msec|$remote_addr|$request");
        let fields = pattern.fields("a|1795223139.25|203.0.113.1|GET /");
        let fields = fields.expect("the fields");
        assert_eq!(fields.get(Field::Ended), Some("1795223139.25"));
        assert_eq!(fields.get(Field::Request), Some("GET /"));
    }

    #[test]
    fn a_pattern_that_tells_too_little_says_what_it_lacks() {
        for (pattern, said) in [
            (
                "$time_local $request",
                "no client; write one of $remote_addr",
            ),
            ("$remote_adr $time_local $request", "no client"),
            ("$remote_addr $request", "no time; write one of $msec"),
            (
                "$remote_addr $time_local",
                "no request; write one of $request",
            ),
            ("$remote_addr $time_local $request_method", "no target"),
            ("$remote_addr$time_local $request", "side by side"),
        ] {
            let error = checked(pattern).unwrap_err();
            assert!(error.contains(said), "{pattern}: {error}");
        }
        assert!(checked("$remote_addr - [$time_local] \"$request\"").is_ok());
    }

    #[test]
    fn escapes_are_read_and_anything_else_stays() {
        for (text, read) in [
            ("plain", "plain"),
            (r#"a\"b"#, "a\"b"),
            (r"a\x22b\x5C", "a\"b\\"),
            (r"\xC3\xA9", "é"),
            // Half a character is none.
            (r"\xC3", r"\xC3"),
            (r"\xZZ\y\", r"\xZZ\y\"),
        ] {
            assert_eq!(unescaped(text), read, "{text}");
        }
    }
}
