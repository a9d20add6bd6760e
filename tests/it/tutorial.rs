//! docs/TUTORIAL.md and the first steps of README.md, followed word by word: files are written, blocks
//! of commands are pasted into a terminal, and what they print is what the page says.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::mem;

use regex::Regex;
use weir_yaml::HumanDuration;

use crate::support::page::{Block, blocks};
use crate::support::shell::Shell;
use crate::support::*;

/// Ports on the pages, each of which gets a free one.
struct Ports([(&'static str, String); 7]);

impl Ports {
    fn new() -> Self {
        let written = ["3000", "6380", "8000", "8080", "8081", "9901", "9902"];
        Self(written.map(|port| (port, free_port().to_string())))
    }

    /// With this one in place of the port on the page.
    fn with(mut self, port: &str, own: u16) -> Self {
        let mut ports = self.0.iter_mut();
        let (_, free) = ports.find(|it| it.0 == port).expect("a port on the page");
        *free = own.to_string();
        self
    }

    fn replaced(&self, text: &str) -> String {
        let replace = |text: String, (port, free): &(&str, String)| text.replace(port, free);
        self.0.iter().fold(text.to_owned(), replace)
    }
}

/// What would come back while a slow machine follows a page, and a deadline that it would miss.
const SLOW: [(&str, &str); 5] = [
    ("/1h", "/1000h"),
    ("/1m", "/1000m"),
    ("period: 1h", "period: 1000h"),
    ("period: 10m", "period: 10000m"),
    ("on_failure: local", "on_failure: deny, timeout: 10s"),
];

/// Commands that only look, at what comes about in a moment.
const LOOKS: [&str; 3] = ["cat ", "weir ban list", "weir top "];

/// What [`SLOW`] multiplies periods by.
const SLOWNESS: f64 = 1000.0;

/// Whether these are the lines that the page prints, where `...` stands for anything, and as a line of
/// its own for any lines. Times are longer than those of the page.
fn is_as_printed(printed: &[&str], lines: &[String]) -> bool {
    let times = r"\b(?:t=|w=|retry-after: )(\d+)|\b((?:\d+(?:ms|s|m|h|d))+)\b";
    let times = Regex::new(times).unwrap();
    let literal = |text: &str| regex::escape(text).replace(r"\.\.\.", ".*");
    let (mut pattern, mut on_page) = (String::from("^"), Vec::new());
    for line in printed.iter().map(|line| line.trim_end()) {
        if line == "..." {
            pattern += "(?:.*\n)*";
            continue;
        }
        let mut end = 0;
        for found in times.captures_iter(line) {
            let time = found.get(1).or(found.get(2)).unwrap();
            pattern += &(literal(&line[end..time.start()]) + r"\b([\da-z]+)\b");
            on_page.push(time.as_str());
            end = time.end();
        }
        pattern += &(literal(&line[end..]) + "\n");
    }
    let text: String = lines
        .iter()
        .map(|line| line.trim_end().to_owned() + "\n")
        .collect();
    let found = Regex::new(&(pattern + "$")).unwrap();
    let Some(found) = found.captures(&text) else {
        return false;
    };
    let found = found.iter().skip(1).map(|time| time.unwrap().as_str());
    found
        .zip(on_page)
        .all(|(found, page)| is_slowed(found, page))
}

/// Whether a time is as long as on the page, or follows from longer periods. Whole seconds on the page
/// are rounded up, and some pass before a block is pasted.
fn is_slowed(found: &str, page: &str) -> bool {
    let (Some(of_found), Some(of_page)) = (seconds(found), seconds(page)) else {
        return false;
    };
    let longest = of_page * SLOWNESS;
    found == page || (of_found > longest - SLOWNESS && of_found <= longest)
}

/// The seconds of a number of them, or of a duration.
fn seconds(time: &str) -> Option<f64> {
    let number = time.parse().ok();
    let duration = || Some(time.parse::<HumanDuration>().ok()?.0.as_secs_f64());
    number.or_else(duration)
}

/// Pastes a block, after which the terminal shows what the page says. What a program in the background
/// prints may come later, and a block that only looks is pasted again until it sees that.
fn follow(shell: &mut Shell, block: &str, printed: &[&str]) {
    let (last, others) = split_last_line(block);
    assert!(
        !others.iter().any(|line| line.ends_with('&')),
        "{block}: the lines after `&` run before its program is ready, so end the block there"
    );
    let looks = |line: &str| LOOKS.iter().any(|it| line.starts_with(it));
    let only_looks = looks(last) && others.iter().all(|line| looks(line));
    let mut start = shell.printed();
    shell.paste(block);
    if !only_looks && !last.ends_with('&') {
        let lines = shell.printed_since(start);
        assert!(is_as_printed(printed, &lines), "{block}{lines:#?}");
        return;
    }
    eventually(&format!("{block}prints {printed:#?}"), || {
        let is_done = is_as_printed(printed, &shell.printed_since(start));
        if !is_done && only_looks {
            start = shell.printed();
            shell.paste(block);
        }
        is_done.then_some(())
    });
}

fn split_last_line(block: &str) -> (&str, Vec<&str>) {
    let mut lines: Vec<&str> = block.lines().collect();
    (lines.pop().expect("a command"), lines)
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

/// Pastes the commands of these blocks, writes the files, and wants what the page prints.
fn follow_page(blocks: &[Block], ports: &Ports) {
    let mut shell = Shell::start();
    let mut blocks = blocks.iter().peekable();
    let mut has_counted = false;
    while let Some(block) = blocks.next() {
        let text = adapted(&block.text, ports);
        match block.language.as_str() {
            // `tests/run.sh` has done it.
            "sh" if text.starts_with("sudo apt install ") => {}
            "sh" => {
                // What `weir top` says of the last minute is exact until that turns.
                if text.contains("curl ") && !mem::replace(&mut has_counted, true) {
                    until_left(MINUTE / 2, MINUTE);
                }
                has_counted &= !text.starts_with("weir top ");
                let printed = blocks.next_if(|next| next.language == "text");
                let printed = printed.map_or("...".to_owned(), |it| adapted(&it.text, ports));
                follow(&mut shell, &text, &printed.lines().collect::<Vec<_>>());
                if text.starts_with("weir init ") {
                    let file = shell.folder().join("gateway.yaml");
                    let written = fs::read_to_string(&file).expect("a configuration");
                    fs::write(file, ports.replaced(&written)).expect("a file");
                }
            }
            "haproxy" | "python" | "yaml" => {
                has_counted = false;
                save(&shell, &text);
            }
            other => panic!("a block of {other:?} is neither run nor written"),
        }
    }
}

fn adapted(text: &str, ports: &Ports) -> String {
    let replace = |text: String, (quick, slow): &(&str, &str)| text.replace(quick, slow);
    SLOW.iter().fold(ports.replaced(text), replace)
}

#[test]
fn no_step_of_the_tutorial_does_anything_else_than_the_page_says() {
    follow_page(&blocks("docs/TUTORIAL.md"), &Ports::new());
}

/// A terminal gives the lines of a pasted block to whatever reads next, such as a question.
#[test]
fn the_first_commands_of_the_readme_deny_requests_as_it_says() {
    let app = Upstream::start();
    let ports = Ports::new().with("3000", app.address().port());
    let mut blocks = blocks("README.md");
    // What `weir init` writes has more comments and a few keys more.
    blocks.retain(|block| block.language != "yaml");
    let at = |start| blocks.iter().position(|it| it.text.starts_with(start));
    let start = at("weir init ").expect("weir init");
    let end = at("tests/run.sh").expect("the tests");
    follow_page(&blocks[start..end], &ports);
}

#[test]
fn lines_that_differ_from_the_page_are_noticed() {
    let printed = [
        "200 200 429",
        "retry-after: 60",
        "{...\"a\"}",
        "...",
        "one each 1m",
    ];
    let as_printed = |lines: &[&str]| {
        let lines: Vec<_> = lines.iter().map(|it| (*it).to_owned()).collect();
        is_as_printed(&printed, &lines)
    };
    let mut lines = vec![
        "200 200 429",
        "retry-after: 59999",
        "{x, \"a\"}",
        "more",
        "one each 16h40m",
    ];
    assert!(as_printed(&lines));
    lines.remove(3);
    assert!(as_printed(&lines));
    for (at, wrong) in [
        (0, "200 429 429"),
        (1, "retry: 60"),
        (1, "retry-after: 120000"),
        (1, "retry-after: 7"),
        (3, "no end"),
        (3, "one each 10h"),
    ] {
        let mut lines = lines.clone();
        lines[at] = wrong;
        assert!(!as_printed(&lines), "{wrong}");
    }
}
