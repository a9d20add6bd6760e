//! A shell on a pseudo-terminal, in a folder of its own, into which a test pastes as a user would.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use regex::Regex;
use tempfile::TempDir;

use super::eventually;
use super::gateway::WEIR;

/// The line that is printed before each command is read.
const PROMPT: &str = "<prompt>";

/// An interactive `bash`, which has `weir` in its path. What it has started ends when it is dropped.
pub(crate) struct Shell {
    folder: TempDir,
    /// `script` makes the terminal, writes to it what comes by a pipe, and prints what it shows.
    script: Child,
    input: ChildStdin,
    lines: Arc<Mutex<Vec<String>>>,
    session: String,
}

impl Shell {
    pub(crate) fn start() -> Self {
        let folder = TempDir::with_prefix("weir-shell-").expect("a temporary folder");
        let weir = Path::new(WEIR).parent().unwrap().display();
        let path = std::env::var("PATH").unwrap_or_default();
        // Without the editor of lines, what is pasted waits in the terminal, where the next program
        // that reads from it takes it away. Without the echo, what is shown is what is printed.
        let bash = "exec bash --noprofile --norc --noediting -i";
        let mut script = Command::new("script")
            .args(["--quiet", "--flush", "--echo", "never", "--command", bash])
            .arg("/dev/null")
            .current_dir(&folder)
            .env("PATH", format!("{weir}:{path}"))
            .env("HISTFILE", "")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("tests need `script`, of Debian's package `bsdutils`");
        let lines = Arc::new(Mutex::new(Vec::new()));
        let output = BufReader::new(script.stdout.take().unwrap());
        let collected = Arc::clone(&lines);
        // curl prints names of headers in bold.
        let styles = Regex::new(r"\x1b\[[0-9;]*m").unwrap();
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let line = styles.replace_all(line.trim_end_matches('\r'), "");
                collected.lock().unwrap().push(line.into_owned());
            }
        });
        let input = script.stdin.take().unwrap();
        let mut shell = Self {
            folder,
            script,
            input,
            lines,
            session: String::new(),
        };
        // bash that runs a command, as the one of `script` does, forgets a prompt of the environment.
        shell.paste(&format!("PS1='\\n{PROMPT}\\n'"));
        let start = shell.printed();
        shell.paste("echo $$");
        shell.session = shell.printed_since(start).concat();
        shell
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Pastes a block of one command a line at once, and returns when the shell has run all of them.
    pub(crate) fn paste(&mut self, block: &str) {
        let start = self.printed();
        let block = format!("{}\n", block.trim_end());
        self.input.write_all(block.as_bytes()).expect("bash");
        self.prompts_since(start, block.lines().count(), &block);
    }

    fn prompts_since(&self, start: usize, expected: usize, what: &str) {
        eventually(&format!("{expected} commands that end: {what}"), || {
            let lines = self.lines.lock().unwrap();
            let prompts = lines[start..].iter().filter(|line| *line == PROMPT);
            (prompts.count() == expected).then_some(())
        });
    }

    /// How many lines have been printed.
    pub(crate) fn printed(&self) -> usize {
        self.lines.lock().unwrap().len()
    }

    /// The lines after so many, without prompts, empty lines, and what bash says of its jobs.
    pub(crate) fn printed_since(&self, start: usize) -> Vec<String> {
        let of_jobs = Regex::new(r"^\[\d+\][-+]? +").unwrap();
        let lines = self.lines.lock().unwrap();
        let lines = lines[start..].iter();
        let lines =
            lines.filter(|line| !line.is_empty() && *line != PROMPT && !of_jobs.is_match(line));
        lines.cloned().collect()
    }

    /// Processes that the shell has started, each of which has a group of its own, and the daemons,
    /// which have left its session and are named in their files.
    fn started(&self) -> Vec<String> {
        let in_session = files_of("/proc".as_ref()).filter_map(|process| {
            let stat = fs::read_to_string(process.join("stat")).ok()?;
            // After the name in parentheses: state, parent, group, session.
            let session = stat.rsplit_once(") ")?.1.split(' ').nth(3)?;
            let pid = process.file_name()?.to_str()?.to_owned();
            (session == self.session).then_some(pid)
        });
        let daemons = files_of(self.folder())
            .filter(|file| file.extension().is_some_and(|end| end == "pid"))
            .filter_map(|file| fs::read_to_string(file).ok());
        in_session.chain(daemons).collect()
    }
}

fn files_of(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    files.map(|file| file.path())
}

impl Drop for Shell {
    fn drop(&mut self) {
        for process in self.started() {
            let kill = Command::new("kill")
                .args(["-KILL", "--", process.trim()])
                .output();
            drop(kill);
        }
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}
