use super::*;

fn parse(url: &str) -> Result<RedisSettings, RedisUrlError> {
    RedisSettings::parse(url, None, None)
}

fn login(settings: &RedisSettings) -> (Option<&str>, Option<&str>, i64) {
    let login = settings.endpoint.redis_settings();
    (login.username(), login.password(), login.db())
}

#[test]
fn a_url_names_host_user_password_and_database() {
    let settings = parse("redis://ann:se%3Acret@cache.example.com:6380/3").unwrap();
    assert_eq!(settings.address(), "cache.example.com:6380");
    assert_eq!(login(&settings), (Some("ann"), Some("se:cret"), 3));
    assert!(!settings.is_tls());
}

#[test]
fn tls_and_ipv6_and_defaults_are_understood() {
    let settings = parse("rediss://[::1]").unwrap();
    assert!(settings.is_tls());
    assert_eq!(settings.address(), "::1:6379");
    assert_eq!(login(&settings), (None, None, 0));
    assert_eq!(settings.prefix, "weir");
}

#[test]
fn a_socket_is_named_in_two_ways() {
    for scheme in ["unix", "redis+unix"] {
        let settings = parse(&format!("{scheme}:///run/redis.sock?db=2&pass=x")).unwrap();
        assert_eq!(settings.address(), "/run/redis.sock");
        assert_eq!(login(&settings), (None, Some("x"), 2));
    }
}

#[test]
fn what_is_given_beside_the_url_takes_the_place_of_the_urls() {
    let own = |text: &str| Some(text.to_owned());
    let url = "redis://ann:old@localhost";
    let settings = RedisSettings::parse(url, own("bob"), own("new")).unwrap();
    assert_eq!(login(&settings), (Some("bob"), Some("new"), 0));
}

#[test]
fn a_bad_url_is_refused_with_what_to_write() {
    use RedisUrlError as E;
    assert!(matches!(parse("localhost:6379"), Err(E::Scheme)));
    assert!(matches!(parse("http://localhost"), Err(E::Scheme)));
    assert!(matches!(parse(""), Err(E::Scheme)));
    assert!(matches!(parse("redis://"), Err(E::NoHost)));
    assert!(matches!(parse("unix://"), Err(E::NoSocket)));
    assert!(matches!(parse("unix://run/redis.sock"), Err(E::NoSocket)));
    assert!(matches!(parse("redis://localhost/main"), Err(E::Database)));
    assert!(matches!(parse("redis://localhost/-1"), Err(E::Database)));
    for port in ["0", "00", ""] {
        for host in ["localhost", "ann:secret@localhost", "[::1]"] {
            for database in ["/1", "/", "", "?protocol=resp3"] {
                let url = format!("redis://{host}:{port}{database}");
                assert!(matches!(parse(&url), Err(E::Port)), "{url}");
            }
        }
    }
    for url in ["redis://[::1]", "redis://ann:@localhost/1", "unix:///a:"] {
        assert!(parse(url).is_ok(), "{url}");
    }
    for database in ["2147483647", "99999999999", "99999999999999999999"] {
        for url in [
            format!("redis://localhost/{database}"),
            format!("unix:///run/redis.sock?db={database}"),
        ] {
            assert!(matches!(parse(&url), Err(E::Database)), "{url}");
        }
    }
    assert!(parse("redis://localhost/2147483646").is_ok());
    assert!(matches!(parse("rediss://host#insecure"), Err(E::Fragment)));
    assert!(matches!(parse("redis://localhost:port"), Err(E::Other(_))));
}

#[test]
fn no_message_and_no_debug_output_shows_the_password() {
    for url in [
        "redis://ann:hunter2@localhost:port",
        "redis://ann:hunter2@localhost/main",
        "redis://ann:hunter2@",
        "http://ann:hunter2@localhost",
        "redis://localhost/hunter2",
    ] {
        let error = parse(url).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    }
    let settings = parse("redis://ann:hunter2@localhost").unwrap();
    assert!(!format!("{settings:?}").contains("hunter2"));
}

#[test]
fn a_ca_file_must_hold_a_certificate_and_be_of_use() {
    let ca = |url: &str| parse(url).unwrap().with_ca(b"nonsense");
    assert!(matches!(
        ca("rediss://localhost"),
        Err(RedisUrlError::Ca(_))
    ));
    assert!(matches!(ca("redis://localhost"), Err(RedisUrlError::Ca(_))));
}
