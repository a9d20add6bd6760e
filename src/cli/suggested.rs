//! `weir suggest --write`: suggested limits in the files of a configuration.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use weir_replay::Suggestions;

use super::BAD_CONFIGURATION;
use super::new_files::{FOR_ALL, FOR_OWNER, NewFiles, WriteError, write_new as write_new_file};

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
    let is_defined = |name: &str| {
        let mut rests = before.lines().filter_map(|line| line.strip_prefix(name));
        rests.any(|rest| rest.starts_with(':'))
    };
    let mut suggested = suggestions
        .routes
        .iter()
        .filter(|it| it.need.suggested.is_some());
    if let Some(known) = suggested.find(|it| is_defined(&it.limit)) {
        let (limit, route) = (&known.limit, &known.route);
        let cause = format!("{limit} is there already; list it on the route {route}");
        return Err(failed(&defaults, io::Error::other(cause)));
    }
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

/// Replaces a file at once: a gateway that watches it must not read half of it. Its owner and
/// permissions stay; if it is a link, the link stays as well.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let is_new = !path.exists() && !path.is_symlink();
    let path = match is_new {
        true => path.to_owned(),
        false => fs::canonicalize(path)?,
    };
    let old = match is_new {
        true => None,
        false => Some(fs::metadata(&path)?),
    };
    let mut new = path.clone().into_os_string();
    new.push(".new");
    let new = PathBuf::from(new);
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", new.display()));
    let mode = old.as_ref().map_or(FOR_ALL, |_| FOR_OWNER);
    let written = write_new_file(&new, mode, |file| {
        if let Some(old) = &old {
            fchown(&*file, Some(old.uid()), Some(old.gid())).map_err(not_kept)?;
            file.set_permissions(old.permissions())?;
        }
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    written.map_err(named)?;
    fs::rename(&new, &path).inspect_err(|_| {
        let _ = fs::remove_file(&new);
    })
}

/// Why a file that is replaced would have another owner or group.
fn not_kept(error: io::Error) -> io::Error {
    let message = format!(
        "the owner and the group of the file cannot be kept ({error}); run the command as root, or add \
         the limits of `weir suggest` by hand"
    );
    io::Error::new(error.kind(), message)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use weir_config::testing::Folder;

    use super::*;

    #[test]
    fn a_file_that_is_replaced_loses_neither_its_link_nor_its_owner_nor_its_permissions() {
        let folder = Folder::with(&[("there/real.yaml", "old")]);
        let link = folder.gateway().with_file_name("link.yaml");
        let real = folder.gateway().with_file_name("there").join("real.yaml");
        symlink("there/real.yaml", &link).unwrap();
        // Only root may give a file away; for others it stays their own.
        let _ = chown(&real, Some(1), Some(1));
        fs::set_permissions(&real, fs::Permissions::from_mode(0o640)).unwrap();
        let before = fs::metadata(&real).unwrap();
        replace(&link, "new").unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read_to_string(&real).unwrap(), "new");
        let after = fs::metadata(&real).unwrap();
        assert_eq!((after.uid(), after.gid()), (before.uid(), before.gid()));
        assert_eq!(after.permissions(), before.permissions());
        assert!(!real.with_extension("yaml.new").exists());
    }

    #[test]
    fn neither_a_link_to_nowhere_nor_what_stands_under_the_other_name_is_overwritten() {
        let folder = Folder::with(&[("a.yaml", "old"), ("a.yaml.new", "mine"), ("mine", "mine")]);
        let file = |name| folder.gateway().with_file_name(name);
        let refused = replace(&file("a.yaml"), "new").unwrap_err().to_string();
        assert!(refused.contains("a.yaml.new"), "{refused}");
        fs::remove_file(file("a.yaml.new")).unwrap();
        symlink("mine", file("a.yaml.new")).unwrap();
        assert!(replace(&file("a.yaml"), "new").is_err());
        symlink("nowhere", file("b.yaml")).unwrap();
        assert!(replace(&file("b.yaml"), "new").is_err());
        for (name, text) in [("a.yaml", "old"), ("mine", "mine")] {
            assert_eq!(fs::read_to_string(file(name)).unwrap(), text);
        }
        replace(&file("c/d.yaml"), "new").unwrap();
        assert_eq!(fs::read_to_string(file("c/d.yaml")).unwrap(), "new");
    }
}
