//! "Did you mean": the known name that is nearest to an unknown one.

use strsim::damerau_levenshtein;

/// More names than this are not listed in a remedy.
const MAX_LISTED: usize = 12;

/// A remedy for an unknown name: the nearest known one, or else all that are known.
pub(crate) fn suggest<'n>(
    unknown: &str,
    known: impl IntoIterator<Item = &'n str>,
) -> Option<String> {
    let known: Vec<&str> = known.into_iter().collect();
    match nearest(unknown, &known) {
        Some(name) => Some(format!("did you mean \"{name}\"?")),
        None => list(&known),
    }
}

/// The nearest name, when no more than a third of its letters differ. A name of one letter resembles
/// only itself.
fn nearest<'n>(unknown: &str, known: &[&'n str]) -> Option<&'n str> {
    let folded = unknown.to_lowercase();
    known
        .iter()
        .map(|name| (damerau_levenshtein(&folded, &name.to_lowercase()), *name))
        .filter(|(distance, name)| is_near(*distance, name.chars().count()))
        .min()
        .map(|(_, name)| name)
}

fn is_near(distance: usize, letters: usize) -> bool {
    distance <= letters.div_ceil(3) && distance < letters
}

/// All known names, when they are few.
fn list(known: &[&str]) -> Option<String> {
    match known {
        [] => None,
        [only] => Some(format!("the only one known here is \"{only}\"")),
        _ if known.len() > MAX_LISTED => None,
        _ => Some(format!("known here: {}", known.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_is_recognised_whatever_its_case() {
        let known = ["RequestsPerAddress", "LoginsPerAddress"];
        assert_eq!(
            suggest("requestPerAdress", known).as_deref(),
            Some("did you mean \"RequestsPerAddress\"?")
        );
    }

    #[test]
    fn a_name_that_resembles_none_gets_the_list() {
        assert_eq!(
            suggest("colour", ["host", "path"]).as_deref(),
            Some("known here: host, path")
        );
        assert_eq!(suggest("colour", []), None);
        assert_eq!(
            suggest("X", ["a", "L"]).as_deref(),
            Some("known here: a, L")
        );
        assert_eq!(
            suggest("l", ["a", "L"]).as_deref(),
            Some("did you mean \"L\"?")
        );
    }

    #[test]
    fn a_long_list_of_names_is_not_told() {
        let names: Vec<String> = (0..40).map(|n| format!("Limit{n}")).collect();
        assert_eq!(
            suggest("zzzzzzzzzz", names.iter().map(String::as_str)),
            None
        );
    }
}
