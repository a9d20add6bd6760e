//! The directives of a file, with those of the files that it includes in their place.

use std::cell::Cell;
use std::path::Path;

use nginx_lint_parser::ast;

use crate::configuration::Configuration;
use crate::difference::Effect;
use crate::source::{ImportError, Place, read};

/// Includes that include each other would never end.
const MAX_DEPTH: usize = 16;

/// The parser calls itself for a block within a block.
const MAX_BLOCKS: usize = 200;

#[derive(Debug)]
pub(super) struct Directive {
    pub(super) name: String,
    pub(super) arguments: Vec<String>,
    /// Empty for a directive that ends with `;`.
    pub(super) block: Vec<Directive>,
    pub(super) place: Place,
    /// Whether a route was written with regard to it.
    pub(super) is_reached: Cell<bool>,
}

impl Directive {
    pub(super) fn argument(&self, index: usize) -> &str {
        self.arguments.get(index).map_or("", String::as_str)
    }

    /// The value of an argument such as `zone=one`.
    pub(super) fn parameter(&self, name: &str) -> Option<&str> {
        let mut arguments = self.arguments.iter();
        arguments.find_map(|argument| argument.strip_prefix(name)?.strip_prefix('='))
    }

    pub(super) fn has(&self, argument: &str) -> bool {
        self.arguments.iter().any(|other| other == argument)
    }

    /// Whether it keeps out clients without credentials, or by a program. Weir cannot tell whom.
    pub(super) fn is_guard(&self) -> bool {
        const HELPERS: &str = "auth_basic_user_file auth_request_set auth_delay auth_jwt_key_file \
            auth_jwt_key_request auth_jwt_key_cache auth_jwt_leeway auth_jwt_type auth_http";
        let name = self.name.as_str();
        [
            "auth_",
            "access_by_",
            "js_access",
            "modsecurity",
            "secure_link",
            "ssl_verify_client",
        ]
        .iter()
        .any(|prefix| name.starts_with(prefix))
            && !HELPERS.split(' ').any(|helper| helper == name)
    }

    /// Whether it denies all clients that no rule before it allows.
    pub(super) fn denies_all(&self) -> bool {
        self.name == "deny" && (self.has("all") || self.argument(0).ends_with("/0"))
    }

    /// Says what becomes of it, and what to do about that.
    pub(super) fn report(
        &self,
        effect: Effect,
        what: &str,
        remedy: &str,
        configuration: &mut Configuration,
    ) {
        let part = format!("`{}`", self.written());
        configuration.differ(effect, &self.place, (&part, what), remedy);
    }

    /// The directive as it is written, without its block.
    pub(super) fn written(&self) -> String {
        let words = [&self.name].into_iter().chain(&self.arguments);
        words.map(String::as_str).collect::<Vec<_>>().join(" ")
    }
}

/// Reads a file; `folder` is the one from which nginx takes relative paths.
///
/// # Errors
/// When the file or an included one is malformed.
pub(super) fn parse(
    path: &Path,
    text: &str,
    (folder, depth): (&Path, usize),
    configuration: &mut Configuration,
) -> Result<Vec<Directive>, ImportError> {
    if let Some(line) = too_deep(text) {
        let what = format!("there are more than {MAX_BLOCKS} blocks within each other");
        return Err(ImportError::Malformed(Place::new(path, line), what));
    }
    let (parsed, errors) = nginx_lint_parser::parse_string_with_errors(text);
    if let Some(error) = errors.first() {
        let before = text.get(..error.offset).unwrap_or(text);
        let place = Place::new(path, 1 + before.matches('\n').count());
        return Err(ImportError::Malformed(place, error.message.clone()));
    }
    let mut reader = Reader {
        path,
        folder,
        depth,
        configuration,
    };
    reader.directives(parsed.directives())
}

/// The line on which blocks are nested too deeply, if one is.
fn too_deep(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    let mut lines = text.lines().enumerate();
    let found = lines.find(|(_, line)| {
        line.chars().any(|letter| {
            depth = match letter {
                '{' => depth + 1,
                '}' => depth.saturating_sub(1),
                _ => depth,
            };
            depth > MAX_BLOCKS
        })
    });
    found.map(|(index, _)| index + 1)
}

struct Reader<'r> {
    path: &'r Path,
    folder: &'r Path,
    depth: usize,
    configuration: &'r mut Configuration,
}

impl Reader<'_> {
    fn directives<'d>(
        &mut self,
        parsed: impl Iterator<Item = &'d ast::Directive>,
    ) -> Result<Vec<Directive>, ImportError> {
        let mut directives = Vec::new();
        for parsed in parsed {
            let block = parsed.block.as_ref().filter(|block| !block.is_raw());
            let directive = Directive {
                name: parsed.name.clone(),
                arguments: words(&parsed.args),
                block: self.directives(block.into_iter().flat_map(ast::Block::directives))?,
                place: Place::new(self.path, parsed.span.start.line),
                is_reached: Cell::new(false),
            };
            match directive.name.as_str() {
                "include" => directives.extend(self.included(&directive)?),
                _ => directives.push(directive),
            }
        }
        Ok(directives)
    }

    fn included(&mut self, include: &Directive) -> Result<Vec<Directive>, ImportError> {
        let pattern = self.folder.join(include.argument(0)).display().to_string();
        let remedy = "import on the machine that has the file";
        let effect = effect_of_missing(&pattern);
        let mut paths = Vec::new();
        for found in glob::glob(&pattern).into_iter().flatten() {
            match found {
                Ok(path) => paths.push(path),
                Err(error) => {
                    let what = format!("is left out: {error}");
                    include.report(effect, &what, remedy, self.configuration);
                }
            }
        }
        if paths.is_empty() && pattern.contains('*') {
            include.report(effect, "finds no file", remedy, self.configuration);
        } else if paths.is_empty() {
            paths.push(pattern.into());
        }
        let mut directives = Vec::new();
        for path in paths {
            match read(&path) {
                Ok(_) if self.depth == MAX_DEPTH => {
                    let what = "the files include each other".to_owned();
                    return Err(ImportError::Malformed(include.place.clone(), what));
                }
                Ok(text) => {
                    let within = (self.folder, self.depth + 1);
                    directives.extend(parse(&path, &text, within, self.configuration)?);
                }
                Err(error) => {
                    let what = format!("is left out: {error}");
                    include.report(effect, &what, remedy, self.configuration);
                }
            }
        }
        Ok(directives)
    }
}

/// What may be missing without a file: servers and limits, unless its name says otherwise, or its
/// folder is there and has none.
fn effect_of_missing(pattern: &str) -> Effect {
    let name = pattern.rsplit('/').next().unwrap_or(pattern);
    let is_harmless = name == "mime.types" || name.ends_with("_params");
    let folder = Path::new(pattern).parent().unwrap_or(Path::new(""));
    match is_harmless || name.contains('*') && folder.is_dir() {
        true => Effect::Differs,
        false => Effect::LeavesOut,
    }
}

/// The arguments without their quotes. The parser takes a variable for an argument of its own, even
/// where it stands within a word.
fn words(arguments: &[ast::Argument]) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut end = 0;
    for argument in arguments {
        let text = match argument.is_quoted() {
            true => argument.as_str(),
            false => &argument.raw,
        };
        match words
            .last_mut()
            .filter(|_| argument.span.start.offset == end)
        {
            Some(word) => word.push_str(text),
            None => words.push(text.to_owned()),
        }
        end = argument.span.end.offset;
    }
    words
}
