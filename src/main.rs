//! The `weir` command.

use std::process::ExitCode;

use tikv_jemallocator::Jemalloc;

/// See decision 0021. Programs that use Weir as a library choose their own.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> ExitCode {
    weir::cli::main()
}
