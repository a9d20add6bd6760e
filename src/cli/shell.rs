//! `weir completions`, `weir man` and `weir schema`: what shells, `man` and editors know of Weir.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, CommandFactory, ValueEnum};
use clap_complete::Shell;

use super::Cli;
use crate::app::schemas;

/// For which shell.
#[derive(Args, Debug)]
pub(super) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Where man pages go.
#[derive(Args, Debug)]
pub(super) struct ManArgs {
    /// A folder for weir.1 and a page for each command; without it, weir.1 is printed
    #[arg(value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

/// Which file's schema to print.
#[derive(Args, Debug)]
pub(super) struct SchemaArgs {
    /// The file: gateway.yaml, or one of the folder `limits`
    #[arg(value_enum, default_value_t)]
    file: SchemaFile,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum SchemaFile {
    #[default]
    Gateway,
    Defaults,
    Overrides,
}

impl SchemaFile {
    /// The name of the schema where it is a file.
    pub(super) fn file_name(self) -> &'static str {
        match self {
            Self::Gateway => "gateway.json",
            Self::Defaults => "defaults.json",
            Self::Overrides => "overrides.json",
        }
    }

    /// The JSON Schema that is checked in.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Gateway => schemas::GATEWAY,
            Self::Defaults => schemas::DEFAULTS,
            Self::Overrides => schemas::OVERRIDES,
        }
    }
}

pub(super) fn print_completions(args: &CompletionsArgs) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "weir", &mut script);
    print(&script)
}

pub(super) fn print_schema(args: &SchemaArgs) -> ExitCode {
    print(args.file.text().as_bytes())
}

/// Writes the man pages, or prints the one of the command as a whole.
pub(super) fn write_man(args: &ManArgs) -> ExitCode {
    let Some(folder) = &args.folder else {
        let mut page = Vec::new();
        // Writing to a `Vec` never fails.
        let _ = clap_mangen::Man::new(Cli::command()).render(&mut page);
        return print(&page);
    };
    match write_pages(folder) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "{}: {error}", folder.display());
            ExitCode::FAILURE
        }
    }
}

fn write_pages(folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    clap_mangen::generate_to(Cli::command(), folder)
}

/// A closed stream is not a failure: its reader does not want more.
fn print(text: &[u8]) -> ExitCode {
    let _ = io::stdout().write_all(text);
    ExitCode::SUCCESS
}
