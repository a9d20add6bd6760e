//! Reading, on a schema of its own.

use proptest::prelude::*;
use serde::Deserialize;

use super::*;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Zoo {
    name: String,
    open: Option<bool>,
    size: Option<u16>,
    closes_in: Option<HumanDuration>,
    animals: Option<Vec<Spanned<WordOr<Animal>>>>,
    tags: Option<OneOrMany<Spanned<String>>>,
    prices: Option<Spanned<Entries<u64>>>,
    food: Option<Food>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Animal {
    kind: String,
    legs: Option<u8>,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Food {
    Hay(Option<String>),
    Meat(String),
}

fn read(text: &str) -> (Option<Zoo>, Diagnostics) {
    let mut found = Diagnostics::default();
    let zoo = Document::parse(0, "zoo.yaml", text, &mut found).read(&mut found);
    (zoo.ok().flatten(), found)
}

fn fine(text: &str) -> Zoo {
    let (zoo, found) = read(text);
    assert!(found.is_empty(), "{found}");
    zoo.unwrap()
}

#[test]
fn text_stays_as_it_is_written_whatever_it_looks_like() {
    assert_eq!(fine("name: 0123").name, "0123");
    assert_eq!(fine("name: NO").name, "NO");
    assert_eq!(fine("name: 1e3").name, "1e3");
    assert_eq!(fine("name: \"true\"").name, "true");
    assert_eq!(
        fine("{name: a, closes_in: 90s}").closes_in,
        "1m30s".parse().ok()
    );
}

#[test]
fn one_value_does_for_a_list_and_a_word_for_keys_and_values() {
    let zoo = fine("{name: a, tags: big, food: hay, animals: [cow, {kind: hen, legs: 2}]}");
    assert_eq!(zoo.tags.unwrap().0[0].value, "big");
    assert_eq!(zoo.food, Some(Food::Hay(None)));
    let animals = zoo.animals.unwrap();
    assert!(matches!(&animals[0].value, WordOr::Word(cow) if cow == "cow"));
    match &animals[1].value {
        WordOr::More(hen) => assert_eq!((hen.kind.as_str(), hen.legs), ("hen", Some(2))),
        WordOr::Word(word) => panic!("{word} is all that was read"),
    }
    assert_eq!(fine("{name: a, tags: [b, c]}").tags.unwrap().0.len(), 2);
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "some of it is only read")]
struct Cage {
    lock: Option<Lock>,
    sign: Option<Sign>,
    side: Option<Side>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Lock {
    #[expect(dead_code, reason = "it is only read")]
    key: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sign {}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Side {
    North,
}

#[test]
fn a_text_for_keys_and_a_value_for_a_word_are_told_what_to_write() {
    let read = |text: &str| {
        let mut found = Diagnostics::default();
        let cage = Document::parse(0, "zoo.yaml", text, &mut found).read::<Cage>(&mut found);
        (cage.ok().flatten(), found.to_string())
    };
    for (text, told) in [
        ("lock: brass", "write {key: brass}"),
        ("sign: keep out", "write {}"),
        ("side: {north: 1}", "\"north\" takes no value"),
    ] {
        let (_, found) = read(text);
        assert!(found.contains(told) && found.contains("1 error"), "{found}");
    }
    for fit in [
        "{lock: {key: brass}, sign: {}, side: north}",
        "side: {north: }",
    ] {
        let (cage, found) = read(fit);
        assert!(
            cage.is_some_and(|cage| cage.side == Some(Side::North)),
            "{found}"
        );
    }
}

/// Each of the keys that were meant to stand below was an error of its own.
#[test]
fn keys_that_lack_indentation_are_one_error_with_the_remedy() {
    let read = |text: &str| {
        let mut found = Diagnostics::default();
        let _ = Document::parse(0, "zoo.yaml", text, &mut found).read::<Cage>(&mut found);
        found.to_string()
    };
    insta::assert_snapshot!(read("lock:\nkey: brass\nside: north\nsze: 1\n"), @r#"
    zoo.yaml:1:5: lock: expected keys and values, found nothing
      indent its keys deeper than `lock`
    zoo.yaml:4:1: sze: unknown key "sze"
      did you mean "side"?
    2 errors, 0 warnings
    "#);
    insta::assert_snapshot!(read("lock:\nside: north\n"), @r"
    zoo.yaml:1:5: lock: there is no value
      write one, or leave the key out
    1 error, 0 warnings
    ");
}

#[test]
fn an_item_without_a_space_is_told_where_it_stands() {
    let found = |text: &str| read(text).1.to_string();
    insta::assert_snapshot!(found("name: a\nanimals:\n  -kind: cow\n    legs: 4\n"), @"
    zoo.yaml:3:3: this is not valid YAML: an item of a list begins with `- `, with a space
      write `- kind: cow`
    1 error, 0 warnings
    ");
    let later = "name: a\nanimals:\n  - kind: cow\n  # another\n  -kind: hen\n  - kind: dog\n";
    assert!(found(later).contains("zoo.yaml:5:3: "), "{}", found(later));
    let other = found("a: -b\nc: d\n e: [\n");
    assert!(!other.contains("with a space"), "{other}");
}

#[test]
fn a_list_is_not_taken_for_the_values_of_keys() {
    let mut found = Diagnostics::default();
    let _ = Document::parse(0, "zoo.yaml", "lock: [brass]", &mut found).read::<Cage>(&mut found);
    let told = "zoo.yaml:1:1: lock: expected keys and values, found a list";
    assert!(found.to_string().starts_with(told), "{found}");
}

/// Nobody knows whether a value was forgotten, lost, or meant to be the default.
#[test]
fn what_is_left_empty_is_an_error_unless_nothing_need_be_said() {
    let (zoo, found) = read("name: a\nopen:\nsize: ~\ntags: null\nfood: {hay: }");
    insta::assert_snapshot!(found, @"
    zoo.yaml:2:5: open: there is no value
      write one, or leave the key out
    zoo.yaml:3:7: size: there is no value
      write one, or leave the key out
    zoo.yaml:4:7: tags: there is no value
      write one, or leave the key out
    3 errors, 0 warnings
    ");
    let zoo = zoo.unwrap();
    assert_eq!(
        (zoo.open, zoo.size, zoo.food),
        (None, None, Some(Food::Hay(None)))
    );
    insta::assert_snapshot!(read("name:\nanimals: [~, {kind: }]\nfood: {meat: }").1, @r#"
    zoo.yaml:1:5: name: expected a text, found nothing
      write one
    zoo.yaml:2:11: animals[0]: expected a text, or keys and values, found nothing
      write one
    zoo.yaml:2:19: animals[1].kind: expected a text, found nothing
      write one
    zoo.yaml:3:1: food: "meat" needs a value
      write {meat: ...}
    4 errors, 0 warnings
    "#);
}

#[test]
fn every_error_is_reported_at_its_place_and_the_rest_is_read() {
    let (zoo, found) = read(
        "name: a
opne: true
open: yes
size: 70000
closes_in: 30
animals:
  - cow
  - {kind: hen, legs: two}
  - {legs: 4}
  - [pig]
prices: {adult: -1, child: 5}
food: fish
",
    );
    insta::assert_snapshot!(found, @r#"
    zoo.yaml:2:1: opne: unknown key "opne"
      did you mean "open"?
    zoo.yaml:3:7: open: expected true or false, found `yes`
    zoo.yaml:4:7: size: expected a whole number up to 65535, found 70000
    zoo.yaml:5:12: closes_in: the duration `30` has no unit
      write `30s` for seconds; units are ns, us, ms, s, m, h and d
    zoo.yaml:8:23: animals[1].legs: expected a whole number, found `two`
    zoo.yaml:9:5: animals[2]: the key "kind" is missing
    zoo.yaml:10:5: animals[3]: expected a text, or keys and values, found a list
    zoo.yaml:11:17: prices.adult: expected a whole number, found `-1`
    zoo.yaml:12:7: food: "fish" is not known here
      known here: hay, meat
    9 errors, 0 warnings
    "#);
    let zoo = zoo.unwrap();
    assert_eq!(zoo.animals.unwrap().len(), 2);
    assert_eq!(zoo.prices.unwrap().0.len(), 1);
}

#[test]
fn what_only_follows_from_an_error_is_not_reported() {
    let (zoo, found) = read("name: [a]\nfood: {meat: [b]}");
    assert!(zoo.is_none());
    insta::assert_snapshot!(found, @r#"
    zoo.yaml:1:1: name: expected a text, found a list
    zoo.yaml:2:8: food.meat: expected a text, found a list
    2 errors, 0 warnings
    "#);
}

#[test]
fn a_key_that_is_there_twice_is_an_error_and_the_first_counts() {
    let (zoo, found) = read("name: a\nsize: 1\nname: b");
    insta::assert_snapshot!(found, @r#"
    zoo.yaml:3:1: the key "name" is there twice
      it is first in line 1
    1 error, 0 warnings
    "#);
    assert_eq!(zoo.unwrap().name, "a");
}

#[test]
fn broken_yaml_is_reported_with_its_position() {
    insta::assert_snapshot!(read("name: [a\nopen: true").1, @"
    zoo.yaml:2:5: this is not valid YAML: illegal placement of ':' indicator
      a text that begins with any of * & ! { [ @ ` % or has `: `, ` #` or, between braces, { } [ ] or a comma in it, stands in quotes
    1 error, 0 warnings
    ");
    insta::assert_snapshot!(read("name: a\n---\nname: b").1, @r#"
    zoo.yaml:2:1: a second YAML document begins here
      keep to one document a file
    1 error, 0 warnings
    "#);
    insta::assert_snapshot!(read("name: !secret a").1, @r#"
    zoo.yaml:1:7: YAML tags are not known here
      leave it out
    1 error, 0 warnings
    "#);
    insta::assert_snapshot!(read("? [a]\n: b").1, @r#"
    zoo.yaml:1:3: a key must be plain text
    1 error, 0 warnings
    "#);
}

#[test]
fn an_alias_repeats_its_anchor() {
    let zoo = fine("name: &it a\ntags: [*it, b]\nanimals: [&hen {kind: hen}, *hen]");
    assert_eq!(zoo.tags.unwrap().0[0].value, "a");
    assert_eq!(zoo.animals.unwrap().len(), 2);
}

#[test]
fn aliases_of_aliases_cannot_fill_the_memory() {
    let mut text = "name: a\nl0: &l0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let row = vec![format!("*l{}", level - 1); 10].join(", ");
        text += &format!("l{level}: &l{level} [{row}]\n");
    }
    let (_, found) = read(&text);
    assert!(
        found.to_string().contains("aliases repeat too much"),
        "{found}"
    );
}

/// A hundred kilobytes took two hundred megabytes.
#[test]
fn an_alias_of_a_long_text_cannot_fill_the_memory_either() {
    let repeating = |length: usize, times: usize| {
        let aliases = vec!["*t"; times].join(", ");
        let text = format!("name: &t {}\ntags: [{aliases}]", "a".repeat(length));
        let (zoo, found) = read(&text);
        (
            zoo.is_some(),
            found.to_string().contains("aliases repeat too much"),
        )
    };
    assert_eq!(repeating(2_000, 20_000), (false, true));
    assert_eq!(repeating(2_000, 1_000), (true, false));
    let keys = format!("name: a\nprices: &p {{{}: 1}}\n", "k".repeat(2_000));
    let many = vec!["*p"; 20_000].join(", ");
    let (_, found) = read(&format!("{keys}animals: [{many}]"));
    assert!(
        found.to_string().contains("aliases repeat too much"),
        "{found}"
    );
}

#[test]
fn a_merge_key_is_told_of_and_is_no_name() {
    let (zoo, found) = read("name: a\nprices:\n  <<: {adult: 2}\n  child: 1");
    insta::assert_snapshot!(found, @"
    zoo.yaml:3:3: merge keys are not known here
      repeat the keys that are meant, or give the whole value an alias
    1 error, 0 warnings
    ");
    assert_eq!(zoo.unwrap().prices.unwrap().0.len(), 1);
}

/// Each look for an error went through all children, so many of them took a time that grew with the
/// square of their number.
#[test]
fn only_what_was_cut_out_is_looked_through_for_errors() {
    let many: String = (0..5_000).map(|n| format!("  a{n}: {n}\n")).collect();
    let text = format!("name: a\nprices:\n{many}  none: x\n");
    let mut found = Diagnostics::default();
    let mut document = Document::parse(0, "zoo.yaml", &text, &mut found);
    let _ = document.read::<Zoo>(&mut found);
    assert_eq!(
        found.to_string().lines().last(),
        Some("1 error, 0 warnings")
    );
    assert_eq!(document.pruned_nodes.len(), 1);
}

#[test]
fn deep_nesting_is_refused_before_it_can_overflow_the_stack() {
    let (_, flow) = read(&format!("name: {}", "[".repeat(100_000)));
    let (_, block) = read(&"- ".repeat(1_000));
    assert!(flow.has_errors());
    assert!(block.to_string().contains("nested too deep"), "{block}");
}

#[test]
fn a_file_that_is_all_errors_is_given_up_before_long() {
    let animals = "{sort: hen}, ".repeat(50_000);
    let (zoo, found) = read(&format!("name: a\nanimals: [{animals}]"));
    assert!(zoo.is_none());
    assert!(found.to_string().contains("more errors"), "{found}");
}

proptest! {
    #[test]
    fn no_text_makes_reading_panic(text in "([-\\[\\]{}:,&*!a?'\"|>#\n ]|name|open|\\PC){0,200}") {
        let (zoo, found) = read(&text);
        let _ = (zoo, found.to_string());
    }
}
