//! `weir suggest --write`: suggested limits in the files of a configuration.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use weir_replay::Suggestions;

use super::BAD_CONFIGURATION;
use super::new_files::{NewFiles, WriteError};

/// Writes a new configuration where there is none, or else adds the limits to the file that has
/// them. Routes of a configuration are left to its author: what stands there may be written in many
/// ways.
pub(super) fn write(config: &Path, suggestions: &Suggestions) -> ExitCode {
    let written = match &suggestions.config {
        None => write_new(config, suggestions),
        Some(_) => add(config, suggestions),
    };
    match written {
        Ok(text) => {
            let _ = writeln!(io::stdout(), "{}", text.trim_end());
            ExitCode::SUCCESS
        }
        Err(error) => {
            let _ = writeln!(io::stderr(), "{error}");
            match error {
                WriteError::Configuration(_) => ExitCode::from(BAD_CONFIGURATION),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

fn write_new(config: &Path, suggestions: &Suggestions) -> Result<String, WriteError> {
    let (mut limits, mut routes) = (String::new(), String::new());
    // Writing to a `String` never fails.
    let _ = suggestions.write_basis(&mut limits);
    let _ = suggestions.write_limits(&mut limits);
    let _ = suggestions.write_routes(&mut routes);
    let routes: String = routes.lines().map(|line| format!("  {line}\n")).collect();
    let gateway = format!(
        "# The address of the app:\n\
         upstreams:\n  app: {{servers: [\"http://127.0.0.1:3000\"]}}\n\n\
         # `enforce: false` logs what limits would deny, and denies nothing.\n\
         enforce: false\n\nroutes:\n{routes}"
    );
    let files = NewFiles::new(config, &gateway, &limits);
    files.write()?;
    Ok(format!(
        "wrote {}\nset `servers` to the address of the app, and `enforce: true` once the log shows \
         that only abusers would be denied",
        files.names()
    ))
}

/// Adds the limits behind those that are defined.
fn add(config: &Path, suggestions: &Suggestions) -> Result<String, WriteError> {
    let failed = |path: &Path, cause: io::Error| WriteError::Failed {
        path: path.to_owned(),
        cause,
    };
    let settings = weir_config::check(config).map_err(WriteError::Configuration)?;
    let Some(defaults) = settings.limits_file else {
        let cause = "the limits stand in this file; add those of `weir suggest` by hand";
        return Err(failed(config, io::Error::other(cause)));
    };
    let mut added = String::new();
    let _ = suggestions.write_limits(&mut added);
    if added.is_empty() {
        return Ok("no route lacks a limit, so nothing was written".to_owned());
    }
    let before = match fs::read_to_string(&defaults) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(failed(&defaults, error)),
    };
    let text = format!("{}\n\n{added}", before.trim_end());
    let files = HashMap::from([(defaults.clone(), text.trim_start().into())]);
    weir_config::check_with(config, files).map_err(WriteError::Configuration)?;
    replace(&defaults, text.trim_start()).map_err(|error| failed(&defaults, error))?;
    let mut routes = String::new();
    let _ = suggestions.write_routes(&mut routes);
    Ok(format!(
        "added limits to {}; list them on the routes of {}:\n{routes}",
        defaults.display(),
        config.display()
    ))
}

/// Replaces a file at once: a gateway that watches it must not read half of it.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(&new, text)?;
    if let Ok(metadata) = fs::metadata(path) {
        fs::set_permissions(&new, metadata.permissions())?;
    }
    fs::rename(&new, path)
}
