//! System calls that a pause of the process interrupts.

use std::io::{ErrorKind, Result};

/// Repeats a call that fails with `Interrupted`. After a pause of the process, the kernel restarts no
/// call of a socket that has a time limit (signal(7)).
pub fn uninterrupted<T>(mut call: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
