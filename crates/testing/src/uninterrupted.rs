//! What a pause of the process interrupts.

use std::io::{ErrorKind, Result};

/// Calls again what a pause of the process has interrupted, which the kernel does not where the call
/// has a time limit (signal(7)).
pub fn uninterrupted<T>(mut call: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
