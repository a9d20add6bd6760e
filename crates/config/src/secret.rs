//! What is not written into the file, but read from another one, or from the environment.

use std::env::VarError;

use weir_yaml::{Lowered, Lowering, Secret, Span};

/// The text of a secret, without the line end that editors put after it.
pub(crate) fn secret(cx: &mut Lowering<'_>, secret: &Secret, span: Span) -> Lowered<String> {
    let text = match secret {
        Secret::File(path) => cx.read_file(path, span)?,
        Secret::Env(name) => variable(cx, name, span)?,
    };
    let text = text.trim_end_matches(['\r', '\n']);
    if text.is_empty() {
        return Err(cx.error(span, "the secret is empty").into());
    }
    Ok(text.to_owned())
}

fn variable(cx: &mut Lowering<'_>, name: &str, span: Span) -> Lowered<String> {
    std::env::var(name).map_err(|error| {
        let why = match error {
            VarError::NotPresent => "is not set",
            VarError::NotUnicode(_) => "is not text in UTF-8",
        };
        let message = format!("the environment variable {name} {why}");
        cx.error(span, message)
            .help("set it wherever weir is started, for `weir check` as well")
    })
}
