//! Lines of the access log, in any of their forms.

use std::cell::Cell;
use std::fmt;

use jiff::Timestamp;
use weir_telemetry::RequestFinished;

use super::format::TextFormatter;
use super::json;
use super::template::Template;

/// Room for most lines.
const LINE_BYTES: usize = 768;

/// A buffer that has grown beyond this is not used again.
const MAX_KEPT_BYTES: usize = 8 * LINE_BYTES;

fn append(line: &mut Vec<u8>, write: impl FnOnce(&mut String) -> fmt::Result) {
    let mut text = String::with_capacity(LINE_BYTES);
    // A string takes whatever is written to it.
    let _ = write(&mut text);
    line.extend_from_slice(text.as_bytes());
}

/// The form of a line.
pub(super) enum AccessForm {
    Template(Template),
    Text(TextFormatter),
    Json,
}

impl AccessForm {
    pub(super) fn new(template: Option<Template>, is_text: bool) -> Self {
        match template {
            Some(template) => Self::Template(template),
            None if is_text => Self::Text(TextFormatter::for_stdout()),
            None => Self::Json,
        }
    }

    /// Passes the line of a request to `write`.
    pub(super) fn with_line(&self, request: &RequestFinished<'_>, write: impl FnOnce(&[u8])) {
        thread_local! {
            /// The buffer of the next line on this thread.
            static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
        }
        let mut line = BUFFER.take();
        line.reserve(LINE_BYTES);
        match self {
            Self::Template(template) => {
                let time = Timestamp::now();
                append(&mut line, |text| {
                    template.write_request(request, time, text)
                });
            }
            Self::Text(form) => append(&mut line, |text| form.write_request(request, text)),
            Self::Json => json::write_request(request, &mut line),
        }
        write(&line);
        if line.capacity() <= MAX_KEPT_BYTES {
            line.clear();
            BUFFER.set(line);
        }
    }
}
