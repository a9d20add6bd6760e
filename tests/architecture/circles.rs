//! No files import each other in a circle, but for a module and those below it.
//!
//! Imports are `use` declarations and paths that begin with `crate::` or `super::`. A name that a
//! module re-exports counts as imported from the file that defines it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use crate::source::{all_code, code_of, continues_a_name, is_in_name, module_of, rust_files};

/// A path from the root of `src/`, or one that begins with the name of another crate of ours.
type Names = Vec<String>;

#[test]
fn no_files_import_each_other_in_a_circle() {
    let tree = Tree::read();
    let imports: BTreeMap<&Names, BTreeSet<Names>> = tree
        .0
        .keys()
        .map(|name| (name, tree.imports(name)))
        .collect();
    let reached: BTreeMap<_, _> = imports
        .keys()
        .map(|name| (*name, reached_from(name, &imports)))
        .collect();
    let is_on_circle = |name: &Names, other: &Names| {
        let may = is_apart(name, other) && imports[name].contains(other);
        may && reached[other].contains(name)
    };
    let edges = imports.iter().flat_map(|(name, others)| {
        let others = others.iter().filter(|other| is_on_circle(name, other));
        others.map(|other| format!("{} -> {}", name.join("::"), other.join("::")))
    });
    let edges: Vec<_> = edges.collect();
    assert!(
        edges.is_empty(),
        "move what both need to another file: {edges:#?}"
    );
}

/// A module and those below it may import each other.
fn is_apart(name: &Names, other: &Names) -> bool {
    !other.starts_with(name) && !name.starts_with(other)
}

/// The files that a file imports, and those that these import.
fn reached_from<'i>(
    start: &'i Names,
    imports: &'i BTreeMap<&Names, BTreeSet<Names>>,
) -> BTreeSet<&'i Names> {
    let mut reached = BTreeSet::new();
    let mut open = vec![start];
    while let Some(name) = open.pop() {
        let imported = imports[name].iter().filter(|other| is_apart(name, other));
        open.extend(imported.filter(|other| reached.insert(*other)));
    }
    reached
}

/// The modules of the package and of the crates, by their paths.
struct Tree(BTreeMap<Names, Module>);

#[derive(Default)]
struct Module {
    /// The paths that its code names.
    named: BTreeSet<Names>,
    /// What its `use` declarations bring in, by the name that it has here.
    used: BTreeMap<String, Names>,
    /// The modules of which it has all names.
    globs: BTreeSet<Names>,
    /// What it defines or re-exports for others.
    public: BTreeSet<String>,
}

impl Tree {
    fn read() -> Self {
        let mut sources: BTreeMap<Names, String> = BTreeMap::new();
        for (name, folder) in all_code() {
            let root = (!name.is_empty()).then_some(name);
            let module = |file: PathBuf| {
                let code = code_of(&fs::read_to_string(&file).unwrap());
                let within = module_of(file.strip_prefix(&folder).unwrap());
                (root.clone().into_iter().chain(within).collect(), code)
            };
            sources.extend(rust_files(&folder).into_iter().map(module));
        }
        let modules = sources.iter().map(|(name, code)| {
            let from_root =
                |path: &[String]| from_root(name, path, |path| sources.contains_key(path));
            (name.clone(), Module::read(code, from_root))
        });
        Self(modules.collect())
    }

    /// The modules that define what a module names.
    fn imports(&self, name: &Names) -> BTreeSet<Names> {
        let named = self.0[name].named.iter();
        let homes = named.map(|path| self.home(path, 8));
        homes.filter(|home| home != name).collect()
    }

    /// The module that defines what a path names, after so many re-exports at most.
    fn home(&self, path: &[String], re_exports: usize) -> Names {
        let lengths = (0..=path.len()).rev();
        let is_module = |length: &usize| self.0.contains_key(&path[..*length]);
        let (module, rest) = path.split_at(lengths.into_iter().find(is_module).unwrap());
        let used = rest.first().and_then(|name| self.used(module, name));
        match used {
            Some(used) if re_exports > 0 => {
                self.home(&[&used, &rest[1..]].concat(), re_exports - 1)
            }
            _ => module.to_vec(),
        }
    }

    /// The path of what a module has by this name, but defines not.
    fn used(&self, module: &[String], name: &String) -> Option<Names> {
        let read = &self.0[module];
        let glob = || read.globs.iter().find(|glob| self.has(glob, name, 3));
        let by_glob = || Some([glob()?.as_slice(), std::slice::from_ref(name)].concat());
        read.used.get(name).cloned().or_else(by_glob)
    }

    /// Whether a module defines or re-exports this name, through so many globs at most.
    fn has(&self, module: &Names, name: &String, globs: usize) -> bool {
        let by_glob = |read: &Module| {
            let mut within = read.globs.iter();
            globs > 0 && within.any(|glob| self.has(glob, name, globs - 1))
        };
        self.0
            .get(module)
            .is_some_and(|read| read.public.contains(name) || by_glob(read))
    }
}

impl Module {
    fn read(code: &str, from_root: impl Fn(&[String]) -> Option<Names>) -> Self {
        let mut module = Self::default();
        for (path, alias) in declarations(code).into_iter().flat_map(expanded) {
            if let Some(path) = from_root(&path) {
                module.named.insert(path.clone());
                match alias {
                    Some(alias) if alias == "*" => drop(module.globs.insert(path)),
                    alias => module.used.extend(alias.map(|alias| (alias, path))),
                }
            }
        }
        let public = declarations_behind(code, is_public);
        let re_exported = public.into_iter().flat_map(expanded);
        let re_exported = re_exported.filter_map(|(_, alias)| alias);
        module.public.extend(re_exported.chain(defined(code)));
        module
            .named
            .extend(inline_paths(code).filter_map(|path| from_root(&path)));
        module
    }
}

/// The path of what a module calls `path`; none if a crate of others has it.
fn from_root(
    module: &[String],
    path: &[String],
    is_module: impl Fn(&[String]) -> bool,
) -> Option<Names> {
    let (first, rest) = path.split_first()?;
    match first.as_str() {
        "crate" => {
            let root = module.first().filter(|name| name.starts_with("weir_"));
            Some(root.into_iter().chain(rest).cloned().collect())
        }
        "weir" => Some(rest.to_vec()),
        ours if ours.starts_with("weir_") => Some(path.to_vec()),
        "self" => Some([module, rest].concat()),
        "super" => {
            let parent = module.split_last()?.1;
            match rest.first() {
                Some(next) if next == "super" => from_root(parent, rest, is_module),
                _ => Some([parent, rest].concat()),
            }
        }
        child => {
            let is_child = is_module(&[module, &[child.to_owned()]].concat());
            is_child.then(|| [module, path].concat())
        }
    }
}

/// The names of the public items of a module.
fn defined(code: &str) -> impl Iterator<Item = String> {
    const KINDS: [&str; 8] = [
        "const ", "enum ", "fn ", "macro ", "static ", "struct ", "trait ", "type ",
    ];
    let public = code.lines().filter(|line| line.starts_with("pub"));
    public.filter_map(|line| {
        let starts = KINDS
            .iter()
            .filter_map(|kind| Some((line.find(kind)?, kind.len())));
        let (start, length) = starts.min()?;
        let name = line[start + length..]
            .split(|char| !is_in_name(char))
            .next()?;
        Some(name.to_owned())
    })
}

/// What stands between `use` and the semicolon.
fn declarations(code: &str) -> Vec<&str> {
    declarations_behind(code, |before| before.is_empty() || is_public(before))
}

fn is_public(before: &str) -> bool {
    before == "pub" || before.starts_with("pub(") && before.ends_with(')')
}

/// The same for those that have this before `use`.
fn declarations_behind(code: &str, wanted: impl Fn(&str) -> bool) -> Vec<&str> {
    let starts = code.match_indices("use ").filter(|(start, _)| {
        let line = code[..*start].rsplit('\n').next().unwrap();
        wanted(line.trim())
    });
    let declared = starts.map(|(start, found)| &code[start + found.len()..]);
    declared
        .map(|code| code.split(';').next().unwrap())
        .collect()
}

/// The paths of a declaration, each with the name that it gets.
fn expanded(tree: &str) -> Vec<(Names, Option<String>)> {
    let (path, group) = match tree.split_once('{') {
        Some((path, group)) => (path, group.trim_end().strip_suffix('}')),
        None => (tree, None),
    };
    let (path, alias) = match path.split_once(" as ") {
        Some((path, alias)) => (path, Some(alias.trim().to_owned())),
        None => (path, None),
    };
    let names = path
        .split("::")
        .map(str::trim)
        .filter(|name| !name.is_empty());
    let mut names: Names = names.map(str::to_owned).collect();
    if let Some(group) = group {
        let parts = parts(group).into_iter().flat_map(expanded);
        let whole = |(mut below, alias): (Names, Option<String>)| {
            below.retain(|name| name != "self");
            let path = [names.as_slice(), &below].concat();
            let alias = alias.filter(|alias| alias != "self");
            let alias = alias.or_else(|| path.last().cloned());
            (path, alias)
        };
        return parts.map(whole).collect();
    }
    let alias = alias.or_else(|| names.last().cloned());
    names.retain(|name| name != "*");
    vec![(names, alias)]
}

/// What commas part outside of braces.
fn parts(group: &str) -> Vec<&str> {
    let mut depth = 0;
    let parts = group.split(move |char| {
        match char {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        char == ',' && depth == 0
    });
    parts.filter(|part| !part.trim().is_empty()).collect()
}

/// Paths within code that begin with `crate::` or `super::`.
fn inline_paths(code: &str) -> impl Iterator<Item = Names> {
    let starts = ["crate::", "super::"]
        .into_iter()
        .flat_map(|root| code.match_indices(root));
    let whole = starts.filter(|(start, _)| !continues_a_name(code, *start));
    whole.filter_map(|(start, _)| {
        let path = code[start..]
            .split(|char| !is_in_name(char) && char != ':')
            .next()?;
        // Before a brace it is the beginning of a declaration.
        let names = (!path.ends_with("::")).then(|| path.trim_end_matches(':').split("::"))?;
        Some(names.map(str::to_owned).collect())
    })
}

#[test]
fn names_are_found_where_they_are_defined() {
    let tree = Tree::read();
    let home = |path: &str| {
        let path: Vec<_> = path.split("::").map(str::to_owned).collect();
        tree.home(&path, 8).join("::")
    };
    assert_eq!(home("limit::Quota"), "weir_limit::quota");
    assert_eq!(home("app::stack"), "app::stack");
    assert_eq!(home("time::Timestamp"), "weir_limit::time");
    assert_eq!(
        home("weir_middleware::BanPolicy"),
        "weir_middleware::access::bans"
    );
    let cors = "weir_middleware::steps::cors";
    assert_eq!(home("weir_middleware::Cors"), cors);
    assert_eq!(home("middleware::Cors"), cors);
}

#[test]
fn declarations_are_read_in_every_form() {
    let code = "use crate::a::{self, b::{C, D as E}, f};\npub(crate) use super::g;\nuse h::*;\nlet use_ = 1;";
    let paths = declarations(code).into_iter().flat_map(expanded);
    let paths: Vec<_> = paths
        .map(|(path, alias)| (path.join("::"), alias.unwrap()))
        .collect();
    let expected = [
        ("crate::a", "a"),
        ("crate::a::b::C", "C"),
        ("crate::a::b::D", "E"),
        ("crate::a::f", "f"),
        ("super::g", "g"),
        ("h", "*"),
    ];
    assert_eq!(
        paths,
        expected.map(|(path, alias)| (path.to_owned(), alias.to_owned()))
    );
}
