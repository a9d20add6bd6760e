//! A shell in a folder of its own, which a test uses as a user would.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use tempfile::TempDir;

use super::eventually;
use super::gateway::WEIR;

/// The line that follows the output of a command.
const END: &str = "<end of output>";

/// A running `bash`, which has `weir` in its path. What it has started ends when it is dropped.
pub(crate) struct Shell {
    folder: TempDir,
    bash: Child,
    input: ChildStdin,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Shell {
    pub(crate) fn start() -> Self {
        let folder = TempDir::with_prefix("weir-shell-").expect("a temporary folder");
        let weir = Path::new(WEIR).parent().unwrap().display();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut bash = Command::new("bash")
            .current_dir(&folder)
            .env("PATH", format!("{weir}:{path}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("bash");
        let lines = Arc::new(Mutex::new(Vec::new()));
        let output = BufReader::new(bash.stdout.take().unwrap());
        let collected = Arc::clone(&lines);
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                collected.lock().unwrap().push(line);
            }
        });
        let mut input = bash.stdin.take().unwrap();
        input.write_all(b"exec 2>&1\n").expect("bash");
        Self {
            folder,
            bash,
            input,
            lines,
        }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Runs a command, and returns the lines that it has printed when it ends. One that goes on in the
    /// background may print more later: see [`Self::printed_since`].
    pub(crate) fn run(&mut self, command: &str) -> Vec<String> {
        let start = self.printed();
        // An empty line ends a last line that the command has not ended itself.
        let input = format!("{{ {command}\n}} </dev/null\necho; echo '{END}'\n");
        self.input.write_all(input.as_bytes()).expect("bash");
        eventually(command, || {
            let lines = self.lines.lock().unwrap();
            let length = lines[start..].iter().position(|line| line == END)?;
            let output = &lines[start..start + length];
            let output = output.strip_suffix(&[String::new()]).unwrap_or(output);
            Some(output.to_vec())
        })
    }

    /// How many lines have been printed.
    pub(crate) fn printed(&self) -> usize {
        self.lines.lock().unwrap().len()
    }

    /// The lines after so many, as they come from programs in the background.
    pub(crate) fn printed_since(&self, start: usize) -> Vec<String> {
        let lines = self.lines.lock().unwrap();
        let lines = lines[start..].iter();
        let lines = lines.filter(|line| !line.is_empty() && *line != END);
        lines.cloned().collect()
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // A daemon has left the group of the shell, and its file names it.
        let daemons = fs::read_dir(self.folder()).into_iter().flatten().flatten();
        let daemons = daemons
            .filter(|file| file.path().extension().is_some_and(|end| end == "pid"))
            .filter_map(|file| fs::read_to_string(file.path()).ok());
        let group = format!("-{}", self.bash.id());
        for process in daemons.chain([group]) {
            let kill = Command::new("kill")
                .args(["-KILL", "--", process.trim()])
                .output();
            drop(kill);
        }
        let _ = self.bash.wait();
    }
}
