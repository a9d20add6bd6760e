//! YAML in flow style, as Weir's examples have it.

use serde_json::Value;

/// A value in one line.
pub(crate) fn flow(value: &Value) -> String {
    match value {
        Value::Object(members) => {
            let member =
                |(key, value): (&String, &Value)| format!("{}: {}", scalar(key), flow(value));
            format!(
                "{{{}}}",
                members.iter().map(member).collect::<Vec<_>>().join(", ")
            )
        }
        Value::Array(items) => format!(
            "[{}]",
            items.iter().map(flow).collect::<Vec<_>>().join(", ")
        ),
        Value::String(text) => scalar(text),
        other => other.to_string(),
    }
}

/// A text, in quotes unless it is plain. JSON and YAML share the quotes.
pub(crate) fn scalar(text: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "_-./".contains(letter);
    let unit = text.trim_start_matches(|digit: char| digit.is_ascii_digit());
    let is_duration = unit != text && matches!(unit, "us" | "ms" | "s" | "m");
    let is_size = unit != text && matches!(unit, "B" | "KiB" | "MiB" | "GiB");
    let begins_plain = is_duration
        || is_size
        || text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '/');
    let is_word = matches!(
        text,
        "null" | "true" | "false" | "yes" | "no" | "on" | "off"
    );
    match begins_plain && text.chars().all(is_plain) && !is_word {
        true => text.to_owned(),
        false => Value::from(text).to_string().chars().map(escaped).collect(),
    }
}

/// A text as it stands in a comment.
pub(crate) fn comment(text: &str) -> String {
    let shown = |letter: char| {
        if escaped(letter).len() < 6 {
            letter
        } else {
            ' '
        }
    };
    text.chars().map(shown).collect()
}

/// YAML allows fewer characters in a text than JSON does.
fn escaped(letter: char) -> String {
    match letter.is_control() || "\u{2028}\u{2029}\u{feff}\u{fffe}\u{ffff}".contains(letter) {
        true => format!("\\u{:04x}", u32::from(letter)),
        false => letter.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn no_text_is_read_as_something_else() {
        let value =
            json!({"match": {"path": "/api/*", "x": "1"}, "limits": ["a-b", "off"], "n": 1});
        let text = flow(&value);
        let expected = r#"{match: {path: "/api/*", x: "1"}, limits: [a-b, "off"], n: 1}"#;
        assert_eq!(text, expected);
        let read: Value = serde_yaml::from_str(&text).unwrap();
        assert_eq!(read, value);
    }

    #[test]
    fn no_character_breaks_the_yaml() {
        let text = "a\u{7f}\u{85}\u{2028}\u{feff}\n\"\\";
        let read: String = serde_yaml::from_str(&scalar(text)).unwrap();
        assert_eq!(read, text);
        let read: Value = serde_yaml::from_str(&format!("# {}\n1", comment(text))).unwrap();
        assert_eq!(read, 1);
    }
}
