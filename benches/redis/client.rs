//! A client that costs next to nothing: it writes bytes and counts replies.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use weir_testing::RedisServer;

pub(crate) struct Client {
    stream: UnixStream,
    memory: Vec<u8>,
}

impl Client {
    pub(crate) fn connect(server: &RedisServer) -> Self {
        Self {
            stream: UnixStream::connect(server.socket()).unwrap(),
            memory: vec![0; 64 * 1024],
        }
    }

    /// Sends commands in one write, and waits for as many lines as their replies have.
    pub(crate) fn exchange(&mut self, commands: &[u8], mut lines: usize) {
        self.stream.write_all(commands).unwrap();
        while lines > 0 {
            let length = self.stream.read(&mut self.memory).unwrap();
            assert!(length > 0, "redis-server has closed the connection");
            let come = self.memory.iter().take(length);
            let come = come.filter(|&&byte| byte == b'\n').count();
            lines = lines
                .checked_sub(come)
                .expect("no more lines than expected");
        }
    }

    /// Sends commands whose replies are not known yet, and tells them.
    pub(crate) fn try_out(&mut self, commands: &[u8]) -> Vec<u8> {
        const PING: &[u8] = b"*2\r\n$4\r\nPING\r\n$8\r\nthe last\r\n";
        const PONG: &[u8] = b"$8\r\nthe last\r\n";
        self.stream.write_all(&[commands, PING].concat()).unwrap();
        let mut replies = Vec::new();
        while !replies.ends_with(PONG) {
            let length = self.stream.read(&mut self.memory).unwrap();
            assert!(length > 0, "redis-server has closed the connection");
            replies.extend(self.memory.iter().take(length));
        }
        replies.truncate(replies.len() - PONG.len());
        replies
    }
}

/// A command as Redis reads it.
pub(crate) fn command(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len());
    for word in words {
        bytes += &format!("${}\r\n{word}\r\n", word.len());
    }
    bytes.into_bytes()
}
