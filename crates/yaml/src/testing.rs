//! Reading in tests.

use serde::de::DeserializeOwned;

use crate::{Diagnostics, Document};

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
