//! The first commands on a connection: who it is, which database it uses, and the client's name.

use std::io;
use std::sync::Arc;

use redis::RedisError;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::resp::{MAX_REPLY_BYTES, Malformed, Replies, Request, Scan};
use super::server_error::{closed_at, words};

/// The user name, password and database of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Login {
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: i64,
}

/// Logs in on a new connection.
///
/// # Errors
/// Why the server does not let this user in, or to this database.
pub(super) async fn log_in(
    socket: &mut (impl AsyncRead + AsyncWrite + Unpin),
    login: &Login,
) -> Result<(), Arc<RedisError>> {
    let mut refusal = introduce(socket, login, login.username.as_deref()).await?;
    if refusal.as_ref().is_some_and(knows_no_users) {
        refusal = introduce(socket, login, None).await?;
    }
    refusal.map_or(Ok(()), |refusal| Err(Arc::new(refusal)))
}

/// Sends all commands at once, and returns the error of one that the gateway cannot do without.
async fn introduce(
    socket: &mut (impl AsyncRead + AsyncWrite + Unpin),
    login: &Login,
    username: Option<&str>,
) -> Result<Option<RedisError>, Arc<RedisError>> {
    let mut request = Request::default();
    let mut refusals = Vec::new();
    if let Some(password) = &login.password {
        let words = 2 + usize::from(username.is_some());
        let auth = request.command(words, "AUTH");
        if let Some(username) = username {
            auth.word(username.as_bytes());
        }
        auth.word(password.as_bytes());
        refusals.push("password authentication failed");
    }
    if login.database != 0 {
        request.command(2, "SELECT").int(login.database);
        refusals.push("the server refused to switch database");
    }
    // For `CLIENT LIST`. Older servers do not know the command, and users may lack the right.
    for (name, value) in [("LIB-NAME", "weir"), ("LIB-VER", env!("CARGO_PKG_VERSION"))] {
        let info = request.command(4, "CLIENT").word(b"SETINFO");
        info.word(name.as_bytes()).word(value.as_bytes());
    }
    let replies = exchange(socket, request).await?;
    let failed = replies.iter().zip(refusals).find_map(|(reply, what)| {
        let words = words(&reply.err()?);
        let refusal = format!("{what}: Redis says \"{words}\"");
        Some(io::Error::new(io::ErrorKind::PermissionDenied, refusal).into())
    });
    Ok(failed)
}

/// Redis before 6.0 takes a password alone.
fn knows_no_users(refusal: &RedisError) -> bool {
    let text = refusal.to_string();
    text.contains("wrong number of arguments for 'auth' command")
}

/// Sends a request on a connection that nothing else uses yet, and reads its replies.
///
/// A server in protected mode, or with as many clients as it may have, sends an error without
/// waiting for a command, and closes the connection.
async fn exchange(
    socket: &mut (impl AsyncRead + AsyncWrite + Unpin),
    request: Request,
) -> Result<Replies, Arc<RedisError>> {
    let mut received = Vec::new();
    let Err(failure) = transfer(socket, request, &mut received).await else {
        return Ok(Replies::new(received));
    };
    if received.is_empty() {
        // The write failed; what the server sent before can still be read.
        let _ = socket.read_buf(&mut received).await;
    }
    let is_silent = received.is_empty();
    match Replies::new(received).iter().next() {
        Some(Err(refusal)) => {
            let refusal = words(&refusal);
            let refusal = io::Error::new(io::ErrorKind::ConnectionRefused, refusal);
            Err(Arc::new(refusal.into()))
        }
        _ if is_silent => {
            let commands = "its first commands (AUTH, SELECT, CLIENT)";
            Err(closed_at(commands, Arc::new(failure.into())))
        }
        _ => Err(Arc::new(failure.into())),
    }
}

async fn transfer(
    socket: &mut (impl AsyncRead + AsyncWrite + Unpin),
    request: Request,
    received: &mut Vec<u8>,
) -> io::Result<()> {
    let mut scan = Scan::new(request.len());
    socket.write_all(&request.into_bytes()).await?;
    socket.flush().await?;
    loop {
        match scan.advance(received) {
            Ok(Some(end)) if end == received.len() => return Ok(()),
            Ok(None) if received.len() <= MAX_REPLY_BYTES => {}
            Ok(_) | Err(Malformed) => {
                let what = "the server sent a reply that does not fit the request";
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
        }
        if socket.read_buf(received).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncRead;

    use super::*;

    /// The commands of each request that a server gets that replies like this.
    async fn logged_in(login: &Login, replies: &[&str]) -> (Vec<String>, Result<(), String>) {
        let (socket, mut server) = tokio::io::duplex(1024);
        let mut socket = socket;
        let serve = async {
            let mut requests = Vec::new();
            for reply in replies {
                requests.push(next_request(&mut server).await);
                server.write_all(reply.as_bytes()).await.unwrap();
            }
            drop(server);
            requests
        };
        let (requests, outcome) = tokio::join!(serve, log_in(&mut socket, login));
        (requests, outcome.map_err(|error| error.to_string()))
    }

    async fn next_request(server: &mut (impl AsyncRead + Unpin)) -> String {
        let mut bytes = vec![0; 1024];
        let length = server.read(&mut bytes).await.unwrap();
        let values = Replies::new(bytes[..length].to_vec()).values().unwrap();
        let words = |command| {
            redis::from_redis_value::<Vec<String>>(command)
                .unwrap()
                .join(" ")
        };
        let commands: Vec<_> = values.into_iter().map(words).collect();
        commands.join("; ")
    }

    fn login() -> Login {
        Login {
            username: Some("ann".to_owned()),
            password: Some("secret".to_owned()),
            database: 3,
        }
    }

    const UNKNOWN: &str = "-ERR unknown command 'CLIENT'\r\n-ERR unknown command 'CLIENT'\r\n";

    #[tokio::test]
    async fn a_server_before_redis_6_gets_the_password_alone() {
        let old = format!("-ERR wrong number of arguments for 'auth' command\r\n+OK\r\n{UNKNOWN}");
        let (requests, outcome) =
            logged_in(&login(), &[&old, &format!("+OK\r\n+OK\r\n{UNKNOWN}")]).await;
        assert_eq!(outcome, Ok(()));
        assert!(requests[0].starts_with("AUTH ann secret; SELECT 3; CLIENT SETINFO LIB-NAME weir"));
        assert!(requests[1].starts_with("AUTH secret; SELECT 3; "));
        let (requests, outcome) = logged_in(&Login::default(), &[UNKNOWN]).await;
        assert_eq!(outcome, Ok(()));
        assert!(requests[0].starts_with("CLIENT SETINFO"), "{requests:?}");
    }

    #[tokio::test]
    async fn what_the_server_refuses_is_named_without_the_password() {
        for (replies, what, why) in [
            (
                "-WRONGPASS no\r\n-NOAUTH no\r\n",
                "authentication failed",
                "WRONGPASS no",
            ),
            (
                "+OK\r\n-ERR DB index is out of range\r\n",
                "switch database",
                "out of range",
            ),
        ] {
            let (_, outcome) = logged_in(&login(), &[&format!("{replies}{UNKNOWN}")]).await;
            let refusal = outcome.unwrap_err();
            assert!(refusal.contains(what) && refusal.contains(why), "{refusal}");
            assert!(!refusal.contains("secret"), "{refusal}");
        }
    }

    #[tokio::test]
    async fn what_is_no_reply_is_no_login() {
        for (reply, why) in [
            ("HTTP/1.1 400\r\n", "does not fit"),
            ("+OK\r\n", "end of file"),
        ] {
            let (_, outcome) = logged_in(&login(), &[reply]).await;
            assert!(outcome.unwrap_err().contains(why));
        }
    }
}
