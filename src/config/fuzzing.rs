//! Whole configurations, for [`crate::fuzzing`].

use std::collections::HashMap;
use std::path::Path;

use super::Severity;
use super::load::read_in_memory;
use crate::rules::HashKey;

/// `gateway.yaml`, and after lines of `---` `defaults.yaml` and `overrides.yaml`.
pub fn configuration(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else {
        return;
    };
    let names = [
        "gateway.yaml",
        "limits/defaults.yaml",
        "limits/overrides.yaml",
    ];
    let texts = text.splitn(names.len(), "\n---\n");
    let files = names.iter().zip(texts);
    let files: HashMap<_, _> = files
        .map(|(name, text)| (Path::new(name).to_owned(), text.as_bytes().to_vec()))
        .collect();
    let Some(key) = HashKey::from_bytes(&[0; 16]) else {
        return;
    };
    let read = || read_in_memory(files.clone(), Path::new("gateway.yaml"), &key).outcome;
    match (read(), read()) {
        (Ok(settings), Ok(_)) => assert_eq!(settings.warnings.count(Severity::Error), 0),
        (Err(found), Err(again)) => {
            assert_ne!(found.count(Severity::Error), 0, "refused without an error");
            assert_eq!(found.to_string(), again.to_string());
        }
        _ => unreachable!("the same files are the same configuration"),
    }
}
