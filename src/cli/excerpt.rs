//! The line of a file that a diagnostic is about, for people at a terminal.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use weir_telemetry::is_deceptive;
use weir_yaml::{Diagnostic, Diagnostics};

/// How many characters of a line are shown.
const MAX_WIDTH: usize = 100;

/// How many of them stand before the column that the caret points to.
const MAX_BEFORE: usize = 60;

/// Configuration files, read once each.
#[derive(Debug, Default)]
pub(super) struct SourceFiles(HashMap<String, Option<String>>);

/// The report with excerpts of the files.
pub(super) fn with_excerpts(diagnostics: &Diagnostics) -> String {
    let mut sources = SourceFiles::default();
    diagnostics.report(|diagnostic| {
        let excerpt = sources.excerpt(diagnostic);
        diagnostic.with_excerpt(excerpt.as_deref())
    })
}

impl SourceFiles {
    /// The line that a diagnostic is about, with a caret below its column. What may be a secret is not
    /// shown: terminals are shared and recorded.
    pub(super) fn excerpt(&mut self, diagnostic: &Diagnostic) -> Option<String> {
        let location = &diagnostic.location;
        let (line, column) = location.position?;
        let source = self
            .text(&location.file)?
            .lines()
            .nth(line.checked_sub(1)?)?;
        let shown = weir_yaml::shown_part(&location.path, source)?;
        Some(pointed_out(line, column, shown))
    }

    fn text(&mut self, file: &str) -> Option<&str> {
        let read = || {
            let bytes = match weir_yaml::standard_input() {
                Some(bytes) if file == weir_yaml::display_name(Path::new("-")) => bytes.to_vec(),
                _ => fs::read(file).ok()?,
            };
            let text = String::from_utf8(bytes).ok()?;
            // Columns of the first line are counted without the byte order mark.
            Some(text.trim_start_matches('\u{feff}').to_owned())
        };
        let text = self.0.entry(file.to_owned()).or_insert_with(read);
        text.as_deref()
    }
}

fn pointed_out(line: usize, column: usize, source: &str) -> String {
    let before = column.saturating_sub(1);
    let start = match before > MAX_BEFORE && source.chars().count() > MAX_WIDTH {
        true => before - MAX_BEFORE,
        false => 0,
    };
    // What a terminal would take for a command stays out of it.
    let printable = |char: char| if is_deceptive(char) { ' ' } else { char };
    let shown: String = source
        .chars()
        .skip(start)
        .take(MAX_WIDTH)
        .map(printable)
        .collect();
    let number = line.to_string();
    let (margin, indent) = (" ".repeat(number.len()), " ".repeat(before - start));
    format!("  {number} | {}\n  {margin} | {indent}^", shown.trim_end())
}

#[cfg(test)]
mod tests {
    use weir_config::testing::Folder;

    use super::*;

    const GATEWAY: &str = r#"upstreams:
  app: {servers: ["http://127.0.0.1:3000"]}
store: {redis: {url: "redis://:open-sesame@127.0.0.1:6379", timout: 1s}}
hash_key: open sesame
routes:
  - match: {path: "/*"}
    upstream: ap
    limits: []
"#;

    #[test]
    fn a_caret_points_to_the_column_and_no_secret_is_shown() {
        let folder = Folder::with(&[("gateway.yaml", GATEWAY)]);
        let found = weir_config::check(&folder.gateway()).unwrap_err();
        let shown = folder.relative(&with_excerpts(&found));
        assert!(!shown.contains("sesame"), "{shown}");
        insta::assert_snapshot!(shown, @r#"
        gateway.yaml:3:61: store.redis.timout: unknown key "timout"
          did you mean "timeout"?
        gateway.yaml:4:11: hash_key: a secret is not written into the configuration
          write {file: PATH} or {env: NAME}
        gateway.yaml:7:15: routes[0].upstream: unknown upstream "ap"
          7 |     upstream: ap
            |               ^
          did you mean "app"?
        gateway.yaml:2:3: warning: upstreams.app: nothing uses this upstream
          2 |   app: {servers: ["http://127.0.0.1:3000"]}
            |   ^
        3 errors, 1 warning
        "#);
    }

    #[test]
    fn a_long_line_is_cut_around_its_column_and_controls_do_not_reach_the_terminal() {
        let source = format!("{}\u{1b}[2Jx{}", "a".repeat(200), "b".repeat(200));
        let shown = pointed_out(7, 205, &source);
        let lines: Vec<&str> = shown.lines().collect();
        assert!(!shown.contains('\u{1b}'), "{shown:?}");
        assert_eq!(lines[0].chars().count(), "  7 | ".len() + MAX_WIDTH);
        let caret = lines[1].find('^').unwrap();
        assert_eq!(lines[0].chars().nth(caret), Some('x'), "{shown}");
    }
}
