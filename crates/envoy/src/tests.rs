//! Frames, costs and rates; calls as a whole are tested by a client of gRPC.

use std::time::Duration;

use weir_limit::Quota;

use super::messages::{CurrentLimit, Descriptor, Entry, Unit};
use super::*;

fn call() -> RateLimitRequest {
    let entry = Entry {
        key: b"remote_address".to_vec(),
        value: b"203.0.113.9".to_vec(),
    };
    RateLimitRequest {
        domain: "edge".to_owned(),
        descriptors: vec![Descriptor {
            entries: vec![entry],
            hits_addend: Some(0),
            ..Descriptor::default()
        }],
        hits_addend: 7,
    }
}

#[test]
fn a_call_is_read_as_it_was_written() {
    assert_eq!(unframed(framed(&call())), Ok(call()));
}

/// Put together by hand from the numbers in Envoy's files.
#[test]
fn the_numbers_of_fields_are_those_of_envoy() {
    let message =
        b"\x0a\x04edge\x12\x21\x0a\x1d\x0a\x0eremote_address\x12\x0b203.0.113.9\x1a\x00\x18\x07";
    assert_eq!(RateLimitRequest::decode(&message[..]), Ok(call()));
}

#[test]
fn what_is_not_one_message_is_no_call() {
    let whole = framed(&call());
    for length in 0..whole.len() {
        assert_eq!(
            unframed(whole.slice(..length)),
            Err(CallError::Malformed),
            "{length}"
        );
    }
    let longer = [&whole[..], b"\0"].concat();
    assert_eq!(unframed(longer.into()), Err(CallError::Malformed));
    let mut compressed = whole.to_vec();
    compressed[0] = 1;
    assert_eq!(unframed(compressed.into()), Err(CallError::Malformed));
}

/// Each would be a bucket in one question to the store, and each entry a header.
#[test]
fn no_call_asks_about_more_descriptors_and_entries_than_the_bounds() {
    let with_descriptors = |count| {
        let descriptors = vec![call().descriptors.remove(0); count];
        unframed(framed(&RateLimitRequest {
            descriptors,
            ..call()
        }))
    };
    assert!(with_descriptors(MAX_DESCRIPTORS).is_ok());
    assert_eq!(
        with_descriptors(MAX_DESCRIPTORS + 1),
        Err(CallError::TooMany)
    );
    let with_entries = |count| {
        let mut call = call();
        let entries = &mut call.descriptors[0].entries;
        *entries = vec![entries.remove(0); count];
        unframed(framed(&call))
    };
    assert!(with_entries(MAX_ENTRIES).is_ok());
    assert_eq!(with_entries(MAX_ENTRIES + 1), Err(CallError::TooMany));
}

/// They were decoded first, to many times their bytes.
#[test]
fn no_call_beyond_the_bounds_is_decoded() {
    let undecodable = b"\x0a\x01\xff";
    for many in [
        b"\x12\x00".repeat(MAX_DESCRIPTORS + 1),
        [
            b"\x12\x82\x01".to_vec(),
            b"\x0a\x00".repeat(MAX_ENTRIES + 1),
        ]
        .concat(),
    ] {
        let message = [&many, &undecodable[..]].concat();
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        let frame = [&[0], &length[..], &message].concat();
        assert_eq!(unframed(frame.into()), Err(CallError::TooMany));
    }
}

/// Envoy lets a request pass whose call is in error.
#[test]
fn no_bytes_of_a_client_make_a_call_unreadable() {
    let mut call = call();
    call.descriptors[0].entries[0].value = vec![0xff];
    assert_eq!(unframed(framed(&call)), Ok(call));
}

#[test]
fn a_rate_is_shown_in_the_shortest_unit_that_is_whole() {
    for (count, seconds, rate) in [
        (5, 1, (5, Unit::Second)),
        (3, 1, (3, Unit::Second)),
        (300, 60, (5, Unit::Second)),
        (100, 60, (100, Unit::Minute)),
        (10, 3600, (10, Unit::Hour)),
        (7, 86_400, (7, Unit::Day)),
        (1, 30 * 86_400, (1, Unit::Month)),
        (1, 1000 * 3600, (8, Unit::Year)),
        (1, 3650 * 86_400, (0, Unit::Unknown)),
    ] {
        let quota = Quota::new(1, count, Duration::from_secs(seconds)).unwrap();
        let shown = CurrentLimit::new("L", &quota);
        let shown = (shown.requests_per_unit, shown.unit());
        assert_eq!(shown, rate, "{count} in {seconds} s");
    }
}
