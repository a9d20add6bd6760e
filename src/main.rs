//! The `weir` command.

#![forbid(unsafe_code)]

use std::process::ExitCode;

/// See decision 0035. Programs that use Weir as a library choose their own.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    weir::cli::main()
}
