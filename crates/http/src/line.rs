//! Header lines as HTTP/1.1 has them.

/// Appends a line.
pub fn push(output: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    // Room for all of it is made once.
    output.reserve(name.len() + value.len() + ": \r\n".len());
    output.extend_from_slice(name);
    output.extend_from_slice(b": ");
    output.extend_from_slice(value);
    output.extend_from_slice(b"\r\n");
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
