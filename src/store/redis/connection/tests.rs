use std::time::Duration;

use futures_util::FutureExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::time::timeout;

use super::super::commands;
use super::*;

/// A connection, and the server's end of it, with room for so many bytes in each direction.
fn connected(room: usize) -> (Connection, DuplexStream) {
    let (socket, server) = tokio::io::duplex(room);
    (Connection::over(Box::new(socket)), server)
}

const QUESTION: &[u8] = b"*1\r\n$4\r\nTIME\r\n";

fn question() -> Request {
    let mut request = Request::default();
    commands::time(&mut request);
    request
}

/// The only reply, a number.
async fn number(answer: oneshot::Receiver<Answer>) -> Option<i64> {
    answer.await.unwrap().unwrap().iter().int()
}

async fn failure(answer: oneshot::Receiver<Answer>) -> String {
    answer.await.unwrap().unwrap_err().to_string()
}

const NO_REPLY: &str = "the server sent what is no reply to what was asked";

async fn expect(server: &mut DuplexStream, requests: usize) {
    let mut bytes = vec![0; requests * QUESTION.len()];
    server.read_exact(&mut bytes).await.unwrap();
    assert_eq!(bytes, QUESTION.repeat(requests));
}

#[tokio::test]
async fn callers_get_their_replies_in_turn_however_the_bytes_come() {
    for room in [1, 2, 3, 7, 1024] {
        let (connection, mut server) = connected(room);
        let answers: Vec<_> = (0..20).map(|_| connection.send(question())).collect();
        let serve = async {
            expect(&mut server, 20).await;
            for reply in 0..20 {
                let text = format!(":{reply}\r\n");
                server.write_all(text.as_bytes()).await.unwrap();
            }
        };
        let (numbers, ()) = tokio::join!(
            futures_util::future::join_all(answers.into_iter().map(number)),
            serve
        );
        assert_eq!(numbers, (0..20).map(Some).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn a_caller_that_is_gone_leaves_the_replies_of_others_in_step() {
    let (connection, mut server) = connected(1024);
    drop(connection.send(question()));
    let second = connection.send(question());
    expect(&mut server, 2).await;
    let third = connection.send(question());
    drop(second);
    server.write_all(b":1\r\n:2\r\n:3\r\n").await.unwrap();
    assert_eq!(number(third).await, Some(3));
}

#[tokio::test]
async fn a_server_that_goes_in_the_middle_of_a_request_fails_all_who_wait_and_all_who_come() {
    let (connection, mut server) = connected(QUESTION.len() + 3);
    let answers = [connection.send(question()), connection.send(question())];
    expect(&mut server, 1).await;
    drop(server);
    for answer in answers {
        assert!(failure(answer).await.contains("end of file"));
    }
    let late = failure(connection.send(question())).await;
    assert!(late.contains("end of file"), "{late}");
}

#[tokio::test]
async fn what_was_answered_before_the_connection_broke_is_an_answer() {
    let (connection, mut server) = connected(1024);
    let answered = connection.send(question());
    expect(&mut server, 1).await;
    server.write_all(b":1\r\n").await.unwrap();
    drop(server);
    // Its write fails in the same turn in which the reply above is there to be read.
    let lost = connection.send(question());
    assert_eq!(number(answered).await, Some(1));
    failure(lost).await;
}

#[tokio::test]
async fn a_server_that_reads_no_more_is_listened_to_all_the_same() {
    let (connection, mut server) = connected(QUESTION.len());
    let first = connection.send(question());
    expect(&mut server, 1).await;
    let second = connection.send(question());
    let third = connection.send(question());
    tokio::task::yield_now().await;
    server.write_all(b":1\r\n").await.unwrap();
    assert_eq!(number(first).await, Some(1));
    expect(&mut server, 2).await;
    server.write_all(b":2\r\n:3\r\n").await.unwrap();
    assert_eq!(number(second).await, Some(2));
    assert_eq!(number(third).await, Some(3));
}

#[tokio::test]
async fn what_is_no_reply_ends_the_connection() {
    for garbage in [
        "HTTP/1.1 400 Bad Request\r\n\r\n",
        ">2\r\n+invalidate\r\n*0\r\n:1\r\n",
        "|1\r\n+key\r\n:1\r\n:1\r\n",
        "$2000000\r\n",
        "*2000000\r\n",
        "*one\r\n",
        ":1\r\n:2\r\n",
    ] {
        let (connection, mut server) = connected(1024);
        let answer = connection.send(question());
        expect(&mut server, 1).await;
        server.write_all(garbage.as_bytes()).await.unwrap();
        // The first of two replies is an answer, and then nothing more is believed.
        let first = answer.await.unwrap();
        assert_eq!(first.is_ok(), garbage.starts_with(':'), "{garbage}");
        let late = failure(connection.send(question())).await;
        assert!(late.contains(NO_REPLY), "{garbage} {late}");
    }
}

#[tokio::test]
async fn a_reply_without_end_ends_the_connection() {
    for beginning in ["+", "*1000000\r\n$1000000\r\n"] {
        let (connection, mut server) = connected(64 * 1024);
        let answer = connection.send(question());
        expect(&mut server, 1).await;
        server.write_all(beginning.as_bytes()).await.unwrap();
        let flood = async { while server.write_all(&[b'x'; 4096]).await.is_ok() {} };
        let (why, ()) = tokio::join!(failure(answer), flood);
        assert!(why.contains(NO_REPLY), "{beginning} {why}");
    }
}

#[tokio::test]
async fn requests_to_a_server_that_does_not_answer_are_refused_before_they_fill_the_memory() {
    let (connection, mut server) = connected(1024);
    let roomy = || {
        let mut request = Request::roomy();
        commands::time(&mut request);
        request
    };
    let mut answers = Vec::new();
    let refused = loop {
        let mut answer = connection.send(roomy());
        if let Some(early) = (&mut answer).now_or_never() {
            break early.unwrap().unwrap_err();
        }
        answers.push(answer);
    };
    assert!(refused.to_string().contains("too many"), "{refused}");
    assert!((16_000..=33_000).contains(&answers.len()));
    // Who waits already is answered still, and then there is room again.
    let count = answers.len();
    let serve = async {
        let mut bytes = vec![0; QUESTION.len()];
        for _ in 0..count {
            server.read_exact(&mut bytes).await.unwrap();
            server.write_all(b":7\r\n").await.unwrap();
        }
    };
    let (numbers, ()) = tokio::join!(
        futures_util::future::join_all(answers.into_iter().map(number)),
        serve
    );
    assert!(numbers.iter().all(|number| *number == Some(7)));
    let again = connection.send(question());
    expect(&mut server, 1).await;
    server.write_all(b":8\r\n").await.unwrap();
    assert_eq!(number(again).await, Some(8));
}

#[tokio::test]
async fn a_connection_that_is_closed_fails_all_and_closes_the_socket() {
    let (connection, mut server) = connected(1024);
    let answer = connection.send(question());
    expect(&mut server, 1).await;
    connection.close(&Arc::new(io::Error::other("enough").into()));
    for answer in [answer, connection.send(question())] {
        assert!(failure(answer).await.contains("enough"));
    }
    let end = timeout(Duration::from_secs(20), server.read(&mut [0])).await;
    assert_eq!(end.unwrap().unwrap(), 0);
}

#[tokio::test]
async fn a_connection_that_is_dropped_closes_the_socket() {
    let (connection, mut server) = connected(1024);
    drop(connection);
    let end = timeout(Duration::from_secs(20), server.read(&mut [0])).await;
    assert_eq!(end.unwrap().unwrap(), 0);
}
