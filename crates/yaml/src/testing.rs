//! Reading in tests.

use std::path::Path;
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::{Diagnostics, Document, Inputs, Lowered, Lowering, Sources, Spanned, Suggestions};

/// Reads the text of a file `a.yaml`.
///
/// # Errors
/// All that is wrong with it, as it is shown.
pub fn read<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let mut found = Diagnostics::default();
    let read = Document::parse(0, "a.yaml", text, &mut found).read(&mut found);
    match read {
        Ok(Some(value)) if found.is_empty() => Ok(value),
        _ => Err(found.to_string()),
    }
}

/// Reads the keys of a file `a.yaml`, and lowers them.
///
/// # Errors
/// As [`read`], with what the lowering finds.
pub fn lower<K: DeserializeOwned, T>(
    text: &str,
    lower: impl FnOnce(&mut Lowering<'_>, &Spanned<K>) -> Lowered<T>,
) -> Result<T, String> {
    let mut diagnostics = Diagnostics::default();
    let mut document = Document::parse(0, "a.yaml", text, &mut diagnostics);
    let read = document.read(&mut diagnostics);
    let mut sources = Sources::default();
    sources.add(document);
    let mut cx = Lowering {
        sources: &sources,
        folder: Path::new(""),
        inputs: &mut Inputs::default(),
        diagnostics,
        suggestions: Suggestions::default(),
        retained: None,
        now: Duration::ZERO,
    };
    let lowered = match read {
        Ok(Some(keys)) => lower(&mut cx, &keys).ok(),
        _ => None,
    };
    match lowered {
        Some(settings) if cx.diagnostics.is_empty() => Ok(settings),
        _ => Err(cx.diagnostics.to_string()),
    }
}
