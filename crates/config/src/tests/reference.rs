//! The index of docs/CONFIG.md, the tables there and in docs/config/, and the descriptions of the
//! JSON Schemas. All of them come from the doc comments of the schema's keys, whose links name an
//! anchor of any of these pages.
//!
//! A doc comment says what its key does. Then may follow, in this order, `Type: ...` where the type
//! of the field does not say it, `Default: ...`, and `Takes a restart.`, each a sentence.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::Value;

use super::documented::{Page, reference, top_level};
use super::json_schema::{all_keys, commented_schemas, reads_as};

/// Begins what is written between it and [`END`]; the name of a type follows it.
const KEYS: &str = "<!-- keys: ";
const INDEX: &str = "<!-- index -->";
const END: &str = "<!-- end -->";

const HEAD: &str = "type | default | meaning |\n|---|---|---|---|\n";
const FOOTNOTE: &str =
    "\n¹ A change takes effect after a restart; a reload that finds one says so.\n";

/// The longest line of a page outside of tables.
const WIDTH: usize = 100;

/// What the doc comment of a key says.
pub(super) struct KeyDoc {
    meaning: String,
    type_name: Option<String>,
    pub(super) default: Option<String>,
    pub(super) takes_restart: bool,
}

impl KeyDoc {
    pub(super) fn parse(comment: &str) -> Self {
        let text = comment.split_whitespace().collect::<Vec<_>>().join(" ");
        let without_restart = text.strip_suffix(" Takes a restart.");
        let (rest, default) = split_fact(without_restart.unwrap_or(&text), " Default: ");
        let (meaning, type_name) = split_fact(rest, " Type: ");
        Self {
            meaning: meaning.to_owned(),
            type_name: type_name.map(str::to_owned),
            default: default.map(str::to_owned),
            takes_restart: without_restart.is_some(),
        }
    }

    /// The default as it would be written, if it is a value.
    pub(super) fn default_value(&self) -> Option<Value> {
        let code = self
            .default
            .as_deref()?
            .strip_prefix('`')?
            .strip_suffix('`')?;
        (!code.contains('`')).then(|| serde_yaml::from_str(code).unwrap())
    }

    /// Whether the key is for those alone that its first words name: `With redis: ...`.
    pub(super) fn is_conditional(&self) -> bool {
        let first = self.meaning.split(". ").next().unwrap();
        let words = ["For ", "With ", "Without "];
        words.iter().any(|word| first.starts_with(word)) && first.contains(": ")
    }

    /// What an editor shows: plain text, without what the schema says itself.
    pub(super) fn plain_description(self) -> String {
        let mut text = self.meaning;
        if let Some(default) = self.default.filter(|default| default != "none") {
            text += &format!(" Default: {default}.");
        }
        if self.takes_restart {
            text += " A change takes effect after a restart.";
        }
        while let Some(middle) = text.find("](") {
            let start = text[..middle].rfind('[').unwrap();
            let end = middle + text[middle..].find(')').unwrap();
            text = [&text[..start], &text[start + 1..middle], &text[end + 1..]].concat();
        }
        text
    }
}

fn split_fact<'t>(text: &'t str, label: &str) -> (&'t str, Option<&'t str>) {
    match text.rsplit_once(label) {
        Some((rest, fact)) => (rest, Some(fact.trim_end_matches('.'))),
        None => (text, None),
    }
}

/// A key of a mapping, or of an enum whose variants are written as keys.
pub(super) struct Key<'s> {
    pub(super) name: &'s str,
    pub(super) comment: Option<&'s str>,
    schema: &'s Value,
    is_required: bool,
    is_variant: bool,
}

/// The keys of a type, without those that have other names now.
pub(super) fn keys_of(schema: &Value) -> Vec<Key<'_>> {
    let required = |name: &String| {
        let mut required = schema["required"].as_array().into_iter().flatten();
        required.any(|key| key == name)
    };
    let properties = schema["properties"].as_object().into_iter().flatten();
    let own = properties.map(|(name, schema)| Key {
        name,
        comment: schema["description"].as_str(),
        schema,
        is_required: required(name),
        is_variant: false,
    });
    let variants = schema["oneOf"].as_array().into_iter().flatten();
    let variants = variants.filter_map(|variant| {
        let (name, schema) = variant["properties"].as_object()?.iter().next()?;
        Some(Key {
            name,
            comment: Some(variant["description"].as_str()?),
            schema,
            is_required: false,
            is_variant: true,
        })
    });
    own.chain(variants)
        .filter(|key| key.schema.get("deprecated").is_none())
        .collect()
}

type Types = BTreeMap<String, Value>;

/// All types of the schemas, by their names.
fn types() -> Types {
    let mut types = Types::new();
    for (_, schema) in commented_schemas() {
        let within = schema["$defs"].as_object().into_iter().flatten();
        types.extend(within.map(|(name, schema)| (name.clone(), schema.clone())));
        if schema.get("properties").is_some() {
            types.insert(schema["title"].as_str().unwrap().to_owned(), schema);
        }
    }
    types
}

/// What may stand in a place, in words.
fn type_name(schema: &Value, types: &Types) -> String {
    if let Some(name) = schema["$ref"].as_str() {
        return type_name(&types[name.rsplit_once('/').unwrap().1], types);
    }
    let of_all = |schemas: &Value, separator: &str| {
        let names = schemas.as_array().unwrap().iter();
        let names: Vec<_> = names.map(|schema| type_name(schema, types)).collect();
        names.join(separator)
    };
    if let Some(name) = reads_as(schema) {
        name.to_owned()
    } else if schema.get("properties").is_some() {
        "keys".to_owned()
    } else if let Some(of_values) = schema.get("additionalProperties") {
        match type_name(of_values, types).as_str() {
            "keys" => "names and keys".to_owned(),
            _ => "names and values".to_owned(),
        }
    } else if let Some(words) = schema["enum"].as_array() {
        let words = words
            .iter()
            .map(|word| format!("`{}`", word.as_str().unwrap()));
        words.collect::<Vec<_>>().join(", ")
    } else if let Some(word) = schema["const"].as_str() {
        format!("`{word}`")
    } else if let Some(variants) = schema.get("oneOf") {
        of_all(variants, ", ")
    } else if let Some([one, many]) = schema["anyOf"].as_array().map(Vec::as_slice)
        && many["type"] == "array"
    {
        format!("{} or list of them", type_name(one, types))
    } else if let Some(options) = schema.get("anyOf") {
        of_all(options, " or ")
    } else {
        match (
            schema["type"].as_str(),
            &schema["minimum"],
            &schema["maximum"],
        ) {
            (Some("boolean"), ..) => "`true`, `false`".to_owned(),
            (Some("integer"), least, Value::Number(most)) => format!("{least} to {most}"),
            (Some("integer"), ..) => "number".to_owned(),
            (Some("array"), ..) => "list".to_owned(),
            _ => "text".to_owned(),
        }
    }
}

fn row(key: &Key<'_>, types: &Types) -> String {
    let doc = KeyDoc::parse(key.comment.unwrap_or_default());
    let type_name = doc
        .type_name
        .unwrap_or_else(|| type_name(key.schema, types));
    let default = doc.default.unwrap_or_else(|| {
        let default = match (key.is_required, type_name.as_str()) {
            (true, _) => "required",
            (false, "keys") => "",
            (false, _) if key.is_variant => "",
            (false, _) => "none",
        };
        default.to_owned()
    });
    let mark = if doc.takes_restart { " ¹" } else { "" };
    let cells = [
        format!("`{}`", key.name),
        type_name,
        default,
        doc.meaning + mark,
    ];
    let cells = cells.map(|cell| cell.replace('|', "\\|"));
    format!("| {} |\n", cells.join(" | ")).replace("|  |", "| |")
}

/// The table of a type. The marker is its name, and what its keys are of in the head of the table,
/// or the keys that the table is about: `Jwks of x`, `Redis: url, cluster`.
fn table(marker: &str, types: &Types) -> String {
    let (marker, only) = marker
        .split_once(": ")
        .map_or((marker, None), |(marker, only)| {
            (marker, Some(only.split(", ").collect::<Vec<_>>()))
        });
    let (name, of) = marker.split_once(' ').unwrap_or((marker, ""));
    let mut keys = keys_of(types.get(name).expect(name));
    keys.retain(|key| only.as_ref().is_none_or(|only| only.contains(&key.name)));
    let rows: String = keys.iter().map(|key| row(key, types)).collect();
    let head = format!("| {} | {HEAD}", format!("key {of}").trim());
    let footnote = if rows.contains('¹') { FOOTNOTE } else { "" };
    format!("\n{head}{rows}{footnote}\n")
}

/// A section of a page.
struct Section<'p> {
    /// How deep it stands in the index.
    level: usize,
    heading: &'p str,
    /// Its page, as a link from docs/CONFIG.md has it, and its anchor.
    page: &'p str,
    anchor: String,
    /// The keys of its tables.
    keys: Vec<&'p str>,
}

impl Section<'_> {
    /// The link to it from a page.
    fn link_from(&self, page: &str) -> String {
        let is_whole_page = self.level == 0 && is_below_config(self.page);
        let file = match (is_below_config(page), self.page.strip_prefix("config/")) {
            _ if page == self.page => String::new(),
            (true, Some(name)) => name.to_owned(),
            (true, None) => format!("../{}", self.page),
            (false, _) => self.page.to_owned(),
        };
        match is_whole_page && !file.is_empty() {
            true => file,
            false => format!("{file}#{}", self.anchor),
        }
    }
}

fn is_below_config(page: &str) -> bool {
    page.starts_with("config/")
}

/// The sections of a page, those of docs/CONFIG.md below the index.
fn sections(page: &Page) -> Vec<Section<'_>> {
    let (top, below) = match is_below_config(&page.path) {
        true => (1, &*page.text),
        false => {
            let (_, below) = page.text.split_once(INDEX).unwrap();
            (2, below.split_once(END).unwrap().1)
        }
    };
    let mut sections: Vec<Section<'_>> = Vec::new();
    let (mut in_table, mut in_code) = (false, false);
    for line in below.lines() {
        in_table = line.starts_with("| key") || (in_table && line.starts_with('|'));
        in_code ^= line.starts_with("```");
        if line.starts_with('#') && !in_code {
            let heading = line.trim_matches(['#', ' ']);
            let mut anchor = heading.to_lowercase().replace(' ', "-");
            anchor.retain(|letter| letter.is_alphanumeric() || matches!(letter, '-' | '_'));
            sections.push(Section {
                level: line.find(' ').unwrap() - top,
                heading,
                page: &page.path,
                anchor,
                keys: Vec::new(),
            });
        } else if in_table && line.starts_with("| `") {
            let Section { keys, .. } = sections.last_mut().unwrap();
            let key = line.split('`').nth(1).unwrap();
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
    }
    sections
}

/// The text of a doc comment with links that lead from this page to where its anchors are.
fn with_links(text: &str, page: &Page, pages: &[Page]) -> String {
    let mut parts = text.split("](");
    let mut linked = parts.next().unwrap().to_owned();
    for part in parts {
        let (target, rest) = part.split_once(')').unwrap();
        let link = match target.strip_prefix('#') {
            Some(anchor) => {
                let mut sections = pages.iter().flat_map(sections);
                let found = sections.find(|section| section.anchor == anchor);
                found.expect(anchor).link_from(&page.path)
            }
            None if is_below_config(&page.path) && !target.contains(':') => format!("../{target}"),
            None => target.to_owned(),
        };
        linked += &format!("]({link}){rest}");
    }
    linked
}

fn index(pages: &[Page]) -> String {
    let mut index = "\n".to_owned();
    for section in pages.iter().flat_map(sections) {
        let indent = "  ".repeat(section.level);
        let link = section.link_from("CONFIG.md");
        let (heading, keys) = (section.heading, section.keys);
        let colon = if keys.is_empty() { "" } else { ":" };
        let mut line = format!("{indent}- [{heading}]({link}){colon}");
        for (at, key) in keys.iter().enumerate() {
            let comma = if at + 1 < keys.len() { "," } else { "" };
            let item = format!("`{key}`{comma}");
            if line.len() + 1 + item.len() > WIDTH {
                index += &(line + "\n");
                line = format!("{indent} ");
            }
            line += &format!(" {item}");
        }
        index += &(line + "\n");
    }
    index + "\n"
}

/// The pages with what is between their markers made anew.
fn derived(pages: &[Page]) -> Vec<String> {
    let types = types();
    let with_tables = pages.iter().map(|page| Page {
        path: page.path.clone(),
        text: derived_tables(page, pages, &types),
    });
    let with_tables: Vec<_> = with_tables.collect();
    let index = index(&with_tables);
    let with_index = |page: Page| match page.text.split_once(INDEX) {
        None => page.text,
        Some((before, rest)) => {
            let (_, below) = rest.split_once(END).unwrap();
            [before, INDEX, "\n", &index, END, below].concat()
        }
    };
    with_tables.into_iter().map(with_index).collect()
}

fn derived_tables(page: &Page, pages: &[Page], types: &Types) -> String {
    let mut derived = String::new();
    let mut lines = page.text.lines();
    while let Some(line) = lines.next() {
        derived += &format!("{line}\n");
        let marker = line
            .strip_prefix(KEYS)
            .map(|rest| rest.trim_end_matches(" -->"));
        if marker.is_some() || line == INDEX {
            let old: Vec<&str> = lines.by_ref().take_while(|line| *line != END).collect();
            let new = marker.map(|marker| with_links(&table(marker, types), page, pages));
            derived += &new.unwrap_or_else(|| old.join("\n") + "\n");
            derived += &format!("{END}\n");
        }
    }
    derived
}

/// `UPDATE_REFERENCE=1` writes it anew.
#[test]
fn the_tables_and_the_index_of_the_reference_are_those_of_the_schema() {
    let pages = reference();
    assert!(pages.len() > 20, "only {} pages were found", pages.len());
    let derived = derived(&pages);
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        for (page, text) in pages.iter().zip(&derived) {
            fs::write(top_level("docs").join(&page.path), text).unwrap();
        }
    }
    for (page, text) in reference().iter().zip(&derived) {
        assert!(
            page.text == *text,
            "docs/{} is not up to date: set UPDATE_REFERENCE=1",
            page.path
        );
    }
}

/// The keys of all tables of the reference, and those of the schema.
fn explained_and_known() -> [BTreeSet<String>; 2] {
    let pages = reference();
    let explained = pages.iter().flat_map(sections);
    let explained = explained.flat_map(|section| section.keys);
    let explained = explained.map(str::to_owned).collect();
    let known: BTreeSet<String> = all_keys().into_iter().map(|(name, _)| name).collect();
    assert!(
        known.contains("match") && known.contains("max_buckets"),
        "{known:?}"
    );
    [explained, known]
}

#[test]
fn the_reference_has_every_key_of_the_schema() {
    let [explained, known] = explained_and_known();
    let lacking: Vec<_> = known.difference(&explained).collect();
    assert!(
        lacking.is_empty(),
        "docs/CONFIG.md and docs/config/ do not explain {lacking:?}"
    );
}

#[test]
fn the_reference_has_no_key_that_the_schema_lacks() {
    let [explained, known] = explained_and_known();
    let unknown: Vec<_> = explained.difference(&known).collect();
    assert!(
        unknown.is_empty(),
        "docs/CONFIG.md and docs/config/ explain {unknown:?}, which is unknown"
    );
}
