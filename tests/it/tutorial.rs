//! docs/TUTORIAL.md, followed word by word: its files are written, its commands are run, and what they
//! print is what the page says.

use std::fs::{self, OpenOptions};
use std::io::Write;

use regex::Regex;

use crate::support::page::blocks;
use crate::support::shell::Shell;
use crate::support::*;

/// Ports on the page, each of which gets a free one.
struct Ports([(&'static str, String); 7]);

impl Ports {
    fn new() -> Self {
        let written = ["3000", "6380", "8000", "8080", "8081", "9901", "9902"];
        Self(written.map(|port| (port, free_port().to_string())))
    }

    fn replaced(&self, text: &str) -> String {
        let replace = |text: String, (port, free): &(&str, String)| text.replace(port, free);
        self.0.iter().fold(text.to_owned(), replace)
    }
}

/// What would come back while a slow machine follows the page, and a deadline that it would miss.
const SLOW: [(&str, &str); 4] = [
    ("/1h", "/1000h"),
    ("period: 1h", "period: 1000h"),
    ("period: 10m", "period: 10000m"),
    ("on_failure: local", "on_failure: deny, timeout: 10s"),
];

/// Commands that only look, at what comes about in a moment.
const LOOKS: [&str; 5] = ["cat ", "grep ", "redis-cli ", "weir ban list", "weir top "];

struct Step<'a> {
    command: &'a str,
    printed: Vec<&'a str>,
}

/// The commands of a block, each with the lines below it.
fn steps(text: &str) -> Vec<Step<'_>> {
    let mut steps: Vec<Step<'_>> = Vec::new();
    for line in text.lines() {
        match line.strip_prefix("$ ") {
            Some(command) => steps.push(Step {
                command,
                printed: Vec::new(),
            }),
            None => steps.last_mut().expect(line).printed.push(line),
        }
    }
    steps
}

/// Whether these are the lines that the page prints, where `...` stands for anything, and as a line of
/// its own for any lines. Times are others than those of the page.
fn is_as_printed(printed: &[&str], lines: &[String]) -> bool {
    let times = r"\b(t=|w=|retry-after: )\d+|\b(\d+(ms|s|m|h|d))+\b";
    let times = Regex::new(times).unwrap();
    let masked = |line: &str| times.replace_all(line.trim_end(), "TIME").into_owned();
    let mut pattern = String::from("^");
    for line in printed {
        pattern += &match *line {
            "..." => "(?:.*\n)*".to_owned(),
            line => regex::escape(&masked(line)).replace(r"\.\.\.", ".*") + "\n",
        };
    }
    let text: String = lines.iter().map(|line| masked(line) + "\n").collect();
    Regex::new(&(pattern + "$")).unwrap().is_match(&text)
}

/// Runs a command, until it prints what the page says if it only looks.
fn follow(shell: &mut Shell, step: &Step<'_>) {
    let Step { command, printed } = step;
    let start = shell.printed();
    let mut lines = shell.run(command);
    if command.ends_with('&') {
        return eventually(command, || {
            is_as_printed(printed, &shell.printed_since(start)).then_some(())
        });
    }
    if LOOKS.iter().any(|it| command.starts_with(it)) {
        return eventually(&format!("{command} prints {printed:#?}"), || {
            let is_done = is_as_printed(printed, &lines);
            if !is_done {
                lines = shell.run(command);
            }
            is_done.then_some(())
        });
    }
    assert!(is_as_printed(printed, &lines), "{command}\n{lines:#?}");
}

/// Writes a block to the file that its first line names.
fn save(shell: &Shell, text: &str) {
    let (first, _) = text.split_once('\n').expect("lines");
    let name = first.strip_prefix("# ").expect("the name of a file");
    match name.strip_suffix(", at its end") {
        None => fs::write(shell.folder().join(name), text).expect("a file"),
        Some(name) => {
            let path = shell.folder().join(name);
            let mut file = OpenOptions::new().append(true).open(path).expect("a file");
            file.write_all(text.as_bytes()).expect("a file");
        }
    }
}

#[test]
fn no_step_of_the_tutorial_does_anything_else_than_the_page_says() {
    let mut shell = Shell::start();
    let ports = Ports::new();
    for block in blocks("docs/TUTORIAL.md") {
        let mut text = ports.replaced(&block.text);
        for (quick, slow) in SLOW {
            text = text.replace(quick, slow);
        }
        match block.language.as_str() {
            "console" => {
                for step in steps(&text) {
                    follow(&mut shell, &step);
                    if step.command.starts_with("weir init ") {
                        let file = shell.folder().join("gateway.yaml");
                        let written = fs::read_to_string(&file).expect("a configuration");
                        fs::write(file, ports.replaced(&written)).expect("a file");
                    }
                }
            }
            "haproxy" | "python" | "yaml" => save(&shell, &text),
            // It installs packages.
            "sh" => {}
            other => panic!("a block of {other:?} is neither run nor written"),
        }
    }
}

#[test]
fn lines_that_differ_from_the_page_are_noticed() {
    let printed = ["200 200 429", "retry-after: 60", "{...\"a\"}", "...", "end"];
    let as_printed = |lines: &[&str]| {
        let lines: Vec<_> = lines.iter().map(|it| (*it).to_owned()).collect();
        is_as_printed(&printed, &lines)
    };
    let mut lines = vec!["200 200 429", "retry-after: 7", "{x, \"a\"}", "more", "end"];
    assert!(as_printed(&lines));
    lines.remove(3);
    assert!(as_printed(&lines));
    for (at, wrong) in [(0, "200 429 429"), (1, "retry: 60"), (3, "no end")] {
        let mut lines = lines.clone();
        lines[at] = wrong;
        assert!(!as_printed(&lines), "{wrong}");
    }
}
