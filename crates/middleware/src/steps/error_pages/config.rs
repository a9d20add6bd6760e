//! The keys of `errors`: statuses, and the files of their pages.

use weir_rules::Statuses;
use weir_yaml::{Entries, Lowered, Lowering, Spanned, all};

use super::ErrorPages;

impl ErrorPages {
    /// Reads the pages from their files.
    ///
    /// # Errors
    /// When a file cannot be read, which is reported.
    pub fn read<S: AsRef<Statuses>>(
        cx: &mut Lowering<'_>,
        written: Option<&Entries<Spanned<String>, S>>,
    ) -> Lowered<Self> {
        let written = written.into_iter().flat_map(|pages| &pages.0);
        all(written.map(|(statuses, file)| {
            let page = cx.read_file(file, file.span)?;
            Ok((statuses.value.as_ref().clone(), page.into()))
        }))
    }
}
