//! Texts on lines of a terminal.

use ratatui::text::Span;

/// The cells that a text takes.
pub(super) fn cells_of(text: &str) -> usize {
    Span::raw(text).width()
}

/// As much of a text as fits in so many cells, with an ellipsis if that is not all: the beginning
/// of an address is another address.
pub(super) fn fitted(text: &str, cells: usize) -> String {
    if cells_of(text) <= cells {
        return text.to_owned();
    }
    let mut kept = String::new();
    for char in text.chars() {
        kept.push(char);
        if cells_of(&kept) >= cells {
            kept.pop();
            break;
        }
    }
    kept.push('\u{2026}');
    kept
}

/// The lines of a text, which ends between words where it is too long. A word that is longer than a
/// line is cut.
pub(super) fn wrapped(text: &str, cells: usize) -> Vec<String> {
    let (mut lines, last) = lines(text.split(' '), cells);
    lines.push(last);
    lines.iter().map(|line| fitted(line, cells)).collect()
}

/// The lines of a command, which a shell takes for one. None if a word is longer than a line.
pub(super) fn continued(command: &str, cells: usize) -> Option<Vec<String>> {
    const NEXT: &str = " \\";
    if cells_of(command) <= cells {
        return Some(vec![command.to_owned()]);
    }
    let (lines, last) = lines(words(command), cells.checked_sub(NEXT.len())?);
    let mut lines: Vec<String> = lines.into_iter().map(|line| line + NEXT).collect();
    lines.push(last);
    let mut all = lines.iter();
    all.all(|line| cells_of(line) <= cells).then_some(lines)
}

/// As many words on each line as fit, and the last line.
fn lines<'t>(words: impl Iterator<Item = &'t str>, cells: usize) -> (Vec<String>, String) {
    let (mut lines, mut line) = (Vec::new(), String::new());
    for word in words {
        let longer = match line.is_empty() {
            true => word.to_owned(),
            false => format!("{line} {word}"),
        };
        if cells_of(&longer) <= cells || line.is_empty() {
            line = longer;
        } else {
            lines.push(std::mem::replace(&mut line, word.to_owned()));
        }
    }
    (lines, line)
}

/// The words of a command, each with the blanks that stand in quotes.
fn words(command: &str) -> impl Iterator<Item = &str> {
    let mut quote = None;
    command.split(move |letter| {
        match (quote, letter) {
            (None, '\'' | '"') => quote = Some(letter),
            (Some(open), letter) if open == letter => quote = None,
            _ => {}
        }
        letter == ' ' && quote.is_none()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_words_alone() {
        let text = "203.0.113.14 goes on although L denies 90% of it";
        assert_eq!(
            wrapped(text, 20),
            ["203.0.113.14 goes on", "although L denies", "90% of it"]
        );
        assert_eq!(wrapped(text, 60), [text]);
        assert_eq!(wrapped("203.0.113.14 is", 11), ["203.0.113.\u{2026}", "is"]);
        assert_eq!(wrapped("", 5), [""]);
    }

    /// Half a command on a line of its own is another command where it is pasted.
    #[test]
    fn the_lines_of_a_command_are_one_command_to_a_shell() {
        let command = "weir ban add abusers 'a b c' --for 1h";
        assert_eq!(continued(command, 37).unwrap(), [command]);
        let lines = continued(command, 22).unwrap();
        assert_eq!(lines, ["weir ban add abusers \\", "'a b c' --for 1h"]);
        for cells in 0..40 {
            let Some(lines) = continued(command, cells) else {
                assert!(cells < 11, "{cells}");
                continue;
            };
            assert_eq!(lines.join("\n").replace(" \\\n", " "), command);
            assert!(
                lines.iter().all(|line| cells_of(line) <= cells),
                "{lines:?}"
            );
        }
    }
}
