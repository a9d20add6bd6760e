//! Header lines as HTTP/1.1 has them.

/// Appends a line.
pub fn push(output: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    let start = output.len();
    // Room for all of it is made once: to append piece by piece takes twice the instructions.
    output.resize(start + name.len() + value.len() + ": \r\n".len(), b' ');
    let line = output.get_mut(start..).unwrap_or_default();
    let Some((name_room, [colon, _, rest @ ..])) = line.split_at_mut_checked(name.len()) else {
        return;
    };
    let Some((value_room, [return_, feed])) = rest.split_at_mut_checked(value.len()) else {
        return;
    };
    name_room.copy_from_slice(name);
    *colon = b':';
    value_room.copy_from_slice(value);
    (*return_, *feed) = (b'\r', b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_neither_cut_nor_run_together() {
        let mut output = b"HTTP/1.1 200 OK\r\n".to_vec();
        push(&mut output, b"server", b"weir");
        push(&mut output, b"x-empty", b"");
        let text = String::from_utf8(output).unwrap();
        assert_eq!(text, "HTTP/1.1 200 OK\r\nserver: weir\r\nx-empty: \r\n");
    }
}
