//! The pages of docs/ are a book, of which docs/SUMMARY.md is the table of contents. No link on a page
//! of the repository leads nowhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// Folders with pages that users read.
const FOLDERS: [&str; 2] = ["docs", "deploy"];

struct Page {
    path: PathBuf,
    links: Vec<String>,
    anchors: BTreeSet<String>,
}

impl Page {
    fn read(path: PathBuf) -> Self {
        let text = fs::read_to_string(&path).unwrap();
        let (mut links, mut anchors) = (Vec::new(), BTreeSet::new());
        let mut repeated: BTreeMap<String, usize> = BTreeMap::new();
        let mut heading: Option<String> = None;
        for event in Parser::new_ext(&text, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    links.push(dest_url.into_string());
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::Text(words) | Event::Code(words) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&words);
                    }
                }
                Event::End(TagEnd::Heading(_)) => {
                    let anchor = anchor(&heading.take().unwrap());
                    let number = repeated.entry(anchor.clone()).or_default();
                    anchors.insert(match *number {
                        0 => anchor,
                        number => format!("{anchor}-{number}"),
                    });
                    *number += 1;
                }
                _ => {}
            }
        }
        Self {
            path,
            links,
            anchors,
        }
    }

    /// The file that a link names, and the anchor within it. None for an address on the Web, which a
    /// relative one is as well if it leads out of the repository, to the pages of its host.
    fn target<'a>(&self, link: &'a str) -> Option<(PathBuf, Option<&'a str>)> {
        if link.contains(':') {
            return None;
        }
        let (file, anchor) = match link.split_once('#') {
            Some((file, anchor)) => (file, Some(anchor)),
            None => (link, None),
        };
        let path = match file {
            "" => self.path.clone(),
            _ => normal(&self.path.parent().unwrap().join(file)),
        };
        path.starts_with(root()).then_some((path, anchor))
    }
}

/// The anchor of a heading, as GitHub and mdBook make it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter_map(|char| match char {
        ' ' => Some('-'),
        '-' | '_' => Some(char),
        _ => char.is_alphanumeric().then_some(char),
    });
    kept.flat_map(char::to_lowercase).collect()
}

fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                normal.pop();
            }
            other => normal.push(other),
        }
    }
    normal
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn markdown_files(folder: &Path, is_deep: bool) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && is_deep {
            files.extend(markdown_files(&path, is_deep));
        } else if path.extension().is_some_and(|extension| extension == "md") {
            files.push(path);
        }
    }
    files.sort();
    files
}

fn pages() -> Vec<Page> {
    let folders = FOLDERS.map(|folder| markdown_files(&root().join(folder), true));
    let files = folders.into_iter().flatten();
    files
        .chain(markdown_files(root(), false))
        .map(Page::read)
        .collect()
}

#[test]
fn no_link_of_a_page_leads_nowhere() {
    let pages = pages();
    let anchors: BTreeMap<&Path, _> = pages.iter().map(|it| (&*it.path, &it.anchors)).collect();
    let mut dead = Vec::new();
    for page in &pages {
        for link in &page.links {
            let Some((path, anchor)) = page.target(link) else {
                continue;
            };
            let is_there = match (anchors.get(&*path), anchor) {
                (Some(anchors), Some(anchor)) => anchors.contains(anchor),
                (None, Some(_)) => false,
                (_, None) => path.exists(),
            };
            if !is_there {
                dead.push(format!("{}: {link}", page.path.display()));
            }
        }
    }
    assert!(pages.len() > 40, "only {} pages were found", pages.len());
    assert!(dead.is_empty(), "{dead:#?}");
}

#[test]
fn no_page_is_missing_from_the_book_or_in_it_twice() {
    let summary = Page::read(root().join("docs/SUMMARY.md"));
    let mut times: BTreeMap<PathBuf, usize> = markdown_files(&root().join("docs"), true)
        .into_iter()
        .filter(|path| *path != summary.path)
        .map(|path| (path, 0))
        .collect();
    for link in &summary.links {
        let (path, _) = summary.target(link).unwrap();
        *times.entry(path).or_default() += 1;
    }
    times.retain(|_, times| *times != 1);
    assert!(times.is_empty(), "times in docs/SUMMARY.md: {times:#?}");
}

#[test]
fn anchors_are_those_of_github_and_mdbook() {
    for (heading, expected) in [
        ("Clients get 502 or 504", "clients-get-502-or-504"),
        ("The log says ...", "the-log-says-"),
        ("store.clock: local", "storeclock-local"),
        ("in_flight", "in_flight"),
    ] {
        assert_eq!(anchor(heading), expected);
    }
}
