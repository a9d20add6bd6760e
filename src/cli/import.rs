//! `weir import`: the configuration of another gateway, in the files of Weir's.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use weir_import::{Difference, Effect, ImportError};
use weir_yaml::pluralized;

use super::BAD_CONFIGURATION;
use super::checked::Checked;
use super::init::next_steps;
use super::new_files::{NewFiles, WriteError};

/// The exit code for a translation that lacks a server or a limit, or lets something in.
const LOSSY: u8 = 3;

/// What to translate.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit status: 0 if no server, limit or guard is missing; 3 if the files were written, but a server or \
a limit is missing, or more comes in than before (the first differences of the list say what); 2 if \
nothing could be translated; 1 if a file could not be read or written.")]
pub(super) struct ImportArgs {
    /// nginx.conf, or HTTPRoutes of the Kubernetes Gateway API as `kubectl get httproute -o yaml`
    /// prints them
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// End with 0 even if a server or a limit is missing, or more comes in than before
    #[arg(long)]
    accept_loss: bool,
}

/// Writes the translated configuration, and lists where it differs from its source.
pub(super) fn run(config: &Path, args: &ImportArgs) -> ExitCode {
    let imported = weir_import::import(&args.file);
    let imported = imported.map_err(|error| {
        let is_unreadable = matches!(error, ImportError::Unreadable { .. });
        (
            error.to_string(),
            if is_unreadable { 1 } else { BAD_CONFIGURATION },
        )
    });
    let written = imported.and_then(|imported| {
        let mut files = NewFiles::new(config, &imported.gateway, &imported.defaults);
        if let Some(overrides) = &imported.overrides {
            files = files.with_overrides(overrides);
        }
        files.write().map_err(|error| match error {
            WriteError::Configuration(_) => {
                let told = untranslatable(&error, &imported.differences);
                (told, BAD_CONFIGURATION)
            }
            _ => (error.to_string(), 1),
        })?;
        Ok((files, imported.differences))
    });
    match written {
        Ok((files, differences)) => {
            let _ = writeln!(io::stdout(), "wrote {}", files.names());
            let _ = write!(io::stdout(), "{}", listed(&differences));
            Checked::read(config).print();
            let _ = writeln!(io::stdout(), "{}", next_steps(config));
            match losses(&differences) > 0 && !args.accept_loss {
                true => ExitCode::from(LOSSY),
                false => ExitCode::SUCCESS,
            }
        }
        Err((error, code)) => {
            let _ = writeln!(io::stderr(), "{}", error.trim_end());
            ExitCode::from(code)
        }
    }
}

/// How many differences leave out a server or a limit, or let something in. They stand first.
fn losses(differences: &[Difference]) -> usize {
    let is_loss = |it: &&Difference| it.effect != Effect::Differs;
    differences.iter().filter(is_loss).count()
}

/// The differences, and how many there are.
fn listed(differences: &[Difference]) -> String {
    let number = pluralized(differences.len(), "difference");
    let mut text = match (differences.len(), losses(differences)) {
        (0, _) => return "all of it was translated\n".to_owned(),
        (_, 0) => format!("{number} to look at, none of which opens anything:\n"),
        (_, losses) => format!(
            "{number} to look at. Those that leave out a server or a limit, or let more in, come \
             first: {losses}\n"
        ),
    };
    for difference in differences {
        // Writing to a `String` never fails.
        let _ = writeln!(text, "{difference}");
    }
    text
}

/// A translation that would not load is not written. The differences may say why.
fn untranslatable(error: &WriteError, differences: &[Difference]) -> String {
    format!(
        "{}nothing was written, as Weir would not load the translation:\n{error}",
        listed(differences)
    )
}
