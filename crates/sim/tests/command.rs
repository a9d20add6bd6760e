//! The simulator's command, as a shell runs it.

#![allow(
    clippy::unwrap_used,
    reason = "a test that meets what it does not expect fails"
)]

use std::io;
use std::process::{Command, Stdio};

fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_weir-sim"))
}

#[test]
fn who_asks_for_help_gets_it() {
    let output = command().arg("--help").output().unwrap();
    assert!(output.status.success());
    assert!(output.stdout.starts_with(b"usage: weir-sim "));
    assert_eq!(output.stderr, b"");
}

#[test]
fn a_reader_that_is_gone_changes_neither_the_verdict_nor_causes_a_panic() {
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    let run = command()
        .args(["--seeds", "1..1"])
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let output = run.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(output.stderr, b"");
}
