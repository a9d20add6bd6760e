//! How a type of settings derives `Deserialize` itself, where what is written and what runs differ
//! in the types of their fields alone.

use serde::{Deserialize, Deserializer};

/// Reads a setting that is written as an `F`: a field's `deserialize_with`, in a struct with
/// `#[serde(default)]`.
///
/// As with an `Option`, a key without a value is an error. Some value stands for one in error; it
/// is of no account, as settings with an error are refused.
///
/// # Errors
/// Those of reading an `F`.
pub fn read_as<'de, F, T, D>(deserializer: D) -> Result<T, D::Error>
where
    F: Deserialize<'de> + Into<T>,
    T: Default,
    D: Deserializer<'de>,
{
    let written = Option::<F>::deserialize(deserializer)?;
    Ok(written.map(Into::into).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{ByteSize, Filled, HumanDuration, OneOrMany, testing};

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(default, deny_unknown_fields)]
    struct Cage {
        #[serde(deserialize_with = "read_as::<ByteSize, _, _>")]
        size: u64,
        #[serde(deserialize_with = "read_as::<Animals, _, _>")]
        animals: Vec<u16>,
        #[serde(deserialize_with = "read_as::<OneOrMany<HumanDuration>, _, _>")]
        meals: Vec<Duration>,
    }

    #[derive(Deserialize)]
    #[serde(try_from = "Filled<u16>")]
    struct Animals(Vec<u16>);

    impl TryFrom<Filled<u16>> for Animals {
        type Error = &'static str;

        fn try_from(written: Filled<u16>) -> Result<Self, &'static str> {
            match written.0.is_empty() {
                true => Err("the cage is empty\nput something into it"),
                false => Ok(Self(written.0)),
            }
        }
    }

    impl From<Animals> for Vec<u16> {
        fn from(animals: Animals) -> Self {
            animals.0
        }
    }

    impl Default for Cage {
        fn default() -> Self {
            Self {
                size: 7,
                meals: vec![Duration::from_secs(1)],
                animals: vec![1],
            }
        }
    }

    fn read(text: &str) -> Result<Cage, String> {
        testing::read(text)
    }

    #[test]
    fn a_key_that_is_not_there_has_its_default() {
        assert_eq!(read("{}"), Ok(Cage::default()));
        let written = Cage {
            size: 2048,
            meals: vec![Duration::from_secs(60), Duration::from_secs(2)],
            animals: vec![3],
        };
        let text = "{size: 2KiB, meals: [1m, 2s], animals: [3]}";
        assert_eq!(read(text), Ok(written));
    }

    #[test]
    fn no_error_hides_another_and_none_is_told_twice() {
        let text = "size: large\nmeals: [1m, soon]\nanimals: [wolf]\n";
        let found = read(text).unwrap_err();
        insta::assert_snapshot!(found, @r"
        a.yaml:1:7: size: `large` is not a size
          write it like 512, 64kB or 1MiB
        a.yaml:2:13: meals[1]: `soon` is not a duration
          write it like `20ms`, `1.5s`, `1h30m` or `7d`
        a.yaml:3:11: animals[0]: expected a whole number, found `wolf`
        3 errors, 0 warnings
        ");
    }

    #[test]
    fn nothing_written_is_an_error_and_not_the_default() {
        let found = read("size:\nanimals: []\n").unwrap_err();
        insta::assert_snapshot!(found, @r"
        a.yaml:1:5: size: there is no value
          write one, or leave the key out
        a.yaml:2:1: animals: the cage is empty
          put something into it
        2 errors, 0 warnings
        ");
    }
}
