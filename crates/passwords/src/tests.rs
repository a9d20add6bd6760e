use http::HeaderName;
use weir_rules::{AccountRules, AccountWildcards};

use super::*;

/// `secret` by bcrypt and by Argon2, as cheap as they can be.
fn htpasswd() -> String {
    let bcrypt = bcrypt::hash("secret", 4).unwrap();
    let argon2 = "$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHQ$";
    let salt = b"saltsalt";
    let mut hash = [0; 32];
    let params = argon2::Params::new(8, 1, 1, Some(32)).unwrap();
    let hasher = Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, params);
    hasher
        .hash_password_into(b"secret", salt, &mut hash)
        .unwrap();
    let hash = base64::engine::general_purpose::STANDARD_NO_PAD.encode(hash);
    format!("# users\nred:{bcrypt}\n\nblue:{argon2}{hash}\n")
}

fn users() -> BasicAuth {
    BasicAuth::from_htpasswd(&htpasswd()).unwrap()
}

fn headers(credentials: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let value = format!("basic {}", STANDARD.encode(credentials));
    headers.insert("authorization", value.parse().unwrap());
    headers
}

/// The user, once what has to be done was done; and whether anything had to be.
fn user(users: &BasicAuth, credentials: &str) -> (Option<String>, bool) {
    let headers = headers(credentials);
    let unverified = users.unverified(&headers);
    let was_slow = unverified.is_some();
    if let Some(verification) = unverified {
        assert_eq!(users.name(&headers), None);
        verification();
    }
    (users.name(&headers), was_slow)
}

#[test]
fn a_right_password_names_the_user_and_is_verified_once() {
    let users = users();
    for name in ["red", "blue"] {
        let credentials = format!("{name}:secret");
        assert_eq!(user(&users, &credentials), (Some(name.to_owned()), true));
        assert_eq!(user(&users, &credentials), (Some(name.to_owned()), false));
    }
    assert_eq!(user(&users, "red:wrong"), (None, true));
    assert_eq!(user(&users, "red:wrong"), (None, false));
    assert_eq!(user(&users, "red:secret"), (Some("red".to_owned()), false));
}

#[test]
fn what_was_verified_is_known_of_the_same_users_and_of_no_others() {
    let earlier = users();
    for credentials in ["red:secret", "blue:secret", "red:wrong"] {
        user(&earlier, credentials);
    }
    let again = |text: &str| {
        let users = BasicAuth::from_htpasswd(text).unwrap();
        users.inheriting(&earlier)
    };
    let line = |name| match &earlier.0.hashes[name] {
        Hash::Bcrypt(hash) | Hash::Argon2(hash) => format!("{name}:{hash}\n"),
    };
    let same = again(&format!("{}{}", line("red"), line("blue")));
    assert_eq!(user(&same, "red:secret"), (Some("red".to_owned()), false));
    assert_eq!(user(&same, "red:wrong"), (None, false));
    let changed = bcrypt::hash("wrong", 4).unwrap();
    let changed = again(&format!("red:{changed}\n{}", line("blue")));
    assert_eq!(user(&changed, "red:secret"), (None, true));
    assert_eq!(user(&changed, "red:wrong"), (Some("red".to_owned()), true));
    assert_eq!(
        user(&changed, "blue:secret"),
        (Some("blue".to_owned()), false)
    );
    let without = again(&line("blue"));
    assert_eq!(user(&without, "red:secret"), (None, true));
}

#[test]
fn rules_that_are_read_again_know_an_account_that_was_verified() {
    let text = htpasswd();
    let read = || AccountRules {
        sources: vec![
            AccountSource::Header(HeaderName::from_static("x-api-key")),
            BasicAuth::from_htpasswd(&text).unwrap().into(),
        ],
        key: HashKey::from_bytes(&[7; 16]).unwrap(),
        wildcards: AccountWildcards::default(),
        keeps_names: true,
    };
    let (first, mut again, mut headers) = (read(), read(), headers("red:secret"));
    let name = |rules: &AccountRules, headers: &HeaderMap| {
        let account = rules.account(headers);
        account.map(|account| account.to_string())
    };
    assert!(first.verifies_passwords());
    assert_eq!(first.sources[1].to_string(), "verified password");
    assert_eq!(name(&first, &headers), None);
    first.unverified(&headers, None).unwrap()();
    assert_eq!(name(&first, &headers), Some("red".to_owned()));
    assert_eq!(name(&again, &headers), None);
    again.inherit(&first);
    assert_eq!(name(&again, &headers), Some("red".to_owned()));
    // Whom an earlier source names need not be verified.
    headers.insert("x-api-key", "mine".parse().unwrap());
    assert!(read().unverified(&headers, None).is_none());
    assert_eq!(name(&read(), &headers), Some("mine".to_owned()));
}

#[test]
fn nothing_is_verified_for_credentials_that_cannot_be_right() {
    let users = users();
    let long = format!("red:{}", "x".repeat(MAX_CREDENTIAL_BYTES));
    for credentials in ["red", "", &long] {
        assert_eq!(user(&users, credentials), (None, false), "{credentials}");
    }
    let mut two = headers("red:secret");
    let other = headers("blue:secret").remove("authorization").unwrap();
    two.append("authorization", other);
    assert!(users.unverified(&two).is_none());
}

#[test]
fn a_name_that_is_not_in_the_file_takes_as_long_as_one_that_is() {
    let users = users();
    for credentials in ["green:secret", ":secret"] {
        assert_eq!(user(&users, credentials), (None, true), "{credentials}");
        assert_eq!(user(&users, credentials), (None, false), "{credentials}");
    }
}

#[test]
fn wrong_passwords_take_bounded_memory_and_displace_no_right_one() {
    let mut verified = VerifiedCredentials::default();
    let key = HashKey::random();
    verified.remember("red", key.hash(b"red:secret"), true);
    for number in 0..3 * MAX_WRONG {
        verified.remember("red", key.hash(&number.to_le_bytes()), false);
    }
    let remembered: usize = verified.wrong.iter().map(HashSet::len).sum();
    assert!(remembered <= 2 * MAX_WRONG);
    assert_eq!(verified.right.len(), 1);
}

#[test]
fn a_line_that_is_not_understood_is_told() {
    let error = |text: &str| BasicAuth::from_htpasswd(text).unwrap_err();
    let bcrypt = bcrypt::hash("secret", 4).unwrap();
    assert_eq!(error("# nobody\n"), BasicAuthError::Empty);
    assert_eq!(error("\nred\n"), BasicAuthError::Malformed(2));
    assert_eq!(error(&format!(":{bcrypt}")), BasicAuthError::Malformed(1));
    for weak in [
        "{SHA}x",
        "$apr1$x$y",
        "secret",
        "$2y$05$short",
        "$argon2id$x",
    ] {
        assert_eq!(
            error(&format!("red:{weak}")),
            BasicAuthError::Unsupported(1)
        );
    }
    let twice = format!("red:{bcrypt}\nred:{bcrypt}");
    assert_eq!(error(&twice), BasicAuthError::Twice(2));
}
