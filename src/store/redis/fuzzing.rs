//! What a Redis server, or whatever answers in its place, sends; for [`crate::fuzzing`].

use super::replies::{LONGEST, Replies, Scan};

/// Replies. However they come, they end in the same place, and reading them by whatever was asked ends.
pub fn replies(input: &[u8]) {
    for expected in 1..4 {
        let at_once = Scan::new(expected).go_on(input);
        let mut scan = Scan::new(expected);
        let piecemeal =
            (0..=input.len()).map(|come| scan.go_on(input.get(..come).unwrap_or_default()));
        let first = piecemeal.into_iter().find(|found| *found != Ok(None));
        assert_eq!(first.unwrap_or(Ok(None)), at_once, "bit by bit");
        if let Ok(Some(end)) = at_once {
            assert!(end <= input.len() && end <= LONGEST * expected);
            whole(input.get(..end).unwrap_or_default(), expected);
        }
    }
}

fn whole(bytes: &[u8], expected: usize) {
    let replies = Replies::new(bytes.to_vec());
    if let Ok(values) = replies.values() {
        assert!(values.len() <= expected);
    }
    let mut cursor = replies.iter();
    while cursor.ints::<3>().is_some() || cursor.int().is_some() || cursor.value().is_some() {}
}
