//! The examples on a page of the documentation.

use std::fs;
use std::path::Path;

use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag, TagEnd};

/// A block of code, with the language that its fence names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Block {
    pub(crate) language: String,
    pub(crate) text: String,
}

/// All blocks of a page, in its order.
pub(crate) fn blocks(page: &str) -> Vec<Block> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    let text = fs::read_to_string(path).expect(page);
    let mut blocks = Vec::new();
    let mut block: Option<Block> = None;
    for event in Parser::new(&text) {
        match (event, &mut block) {
            (Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(language))), _) => {
                let language = language.into_string();
                block = Some(Block {
                    language,
                    ..Block::default()
                });
            }
            (Event::Text(words), Some(block)) => block.text.push_str(&words),
            (Event::End(TagEnd::CodeBlock), _) => blocks.extend(block.take()),
            _ => {}
        }
    }
    blocks
}
