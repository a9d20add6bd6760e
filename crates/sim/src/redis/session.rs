//! Commands about the connection and the server: login, transactions, roles, the Cluster.

use bytes::Bytes;

use super::call::{Done, Failure, NOT_INTEGER, SYNTAX};
use super::client::{Client, Queued};
use super::cluster::slot_of;
use super::protocol::{Reply, integer};
use super::role::Role;
use super::server::{DATABASES, Now, Server, VERSION};

const NO_CLUSTER: &str = "This instance has cluster support disabled";

pub(super) fn ping(
    _: &mut Server,
    client: &mut Client,
    words: &[Bytes],
    _: Now,
    reply: &mut Reply,
) -> Done {
    let text = match words {
        [_] => None,
        [_, text] => Some(text),
        _ => return Err("wrong number of arguments for 'ping' command".into()),
    };
    match text {
        _ if !client.channels.is_empty() && !client.is_resp3 => {
            reply.array(2);
            reply.bulk(b"pong");
            reply.bulk(text.map_or(b"", |text| text));
        }
        Some(text) => reply.bulk(text),
        None => reply.simple("PONG"),
    }
    Ok(())
}

/// `HELLO [version [AUTH user password] [SETNAME name]]`
pub(super) fn hello(
    server: &mut Server,
    client: &mut Client,
    words: &[Bytes],
    _: Now,
    reply: &mut Reply,
) -> Done {
    let version = match words.get(1) {
        Some(version) => {
            let invalid = "Protocol version is not an integer or out of range";
            match integer(version).ok_or(invalid)? {
                version @ 2..=3 => Some(version),
                _ => return Err("-NOPROTO unsupported protocol version".into()),
            }
        }
        None => None,
    };
    let mut options = words.get(2..).unwrap_or_default();
    while let [name, rest @ ..] = options {
        options = match (name.to_ascii_lowercase().as_slice(), rest) {
            (b"auth", [user, password, rest @ ..]) => {
                server.log_in(client, user, password)?;
                rest
            }
            (b"setname", [name, rest @ ..]) => {
                set_name(client, name)?;
                rest
            }
            _ => {
                let why = [b"Syntax error in HELLO option '", name.as_ref(), b"'"];
                return Err(Failure(why.concat()));
            }
        };
    }
    if !client.is_authenticated {
        return Err(
            "-NOAUTH HELLO must be called with the client already authenticated, otherwise \
             the HELLO AUTH <user> <pass> option can be used to authenticate the client and \
             select the RESP protocol version at the same time"
                .into(),
        );
    }
    if let Some(version) = version {
        client.is_resp3 = version == 3;
        reply.set_resp3(client.is_resp3);
    }
    reply.map(if server.watched.is_some() { 6 } else { 7 });
    for text in ["server", "redis", "version", VERSION, "proto"] {
        reply.bulk(text.as_bytes());
    }
    reply.int(if client.is_resp3 { 3 } else { 2 });
    reply.bulk(b"id");
    reply.int(client.id.number());
    reply.bulk(b"mode");
    reply.bulk(server.mode().as_bytes());
    if server.watched.is_none() {
        reply.bulk(b"role");
        reply.bulk(if server.is_primary() {
            b"master"
        } else {
            b"replica"
        });
    }
    reply.bulk(b"modules");
    reply.array(0);
    Ok(())
}

/// `AUTH [user] password`
pub(super) fn auth(
    server: &mut Server,
    client: &mut Client,
    words: &[Bytes],
    _: Now,
    reply: &mut Reply,
) -> Done {
    match words {
        [_, _] if server.is_open() => {
            return Err(
                "AUTH <password> called without any password configured for the default user. \
                 Are you sure your configuration is correct?"
                    .into(),
            );
        }
        [_, password] => server.log_in(client, b"default", password)?,
        [_, user, password] => server.log_in(client, user, password)?,
        _ => return Err(SYNTAX.into()),
    }
    reply.simple("OK");
    Ok(())
}

fn set_name(client: &mut Client, name: &Bytes) -> Done {
    match client.set_name(name) {
        true => Ok(()),
        false => Err("Client names cannot contain spaces, newlines or special characters.".into()),
    }
}

pub(super) fn client_setname(
    _: &mut Server,
    client: &mut Client,
    words: &[Bytes],
    _: Now,
    reply: &mut Reply,
) -> Done {
    if let Some(name) = words.get(2) {
        set_name(client, name)?;
    }
    reply.simple("OK");
    Ok(())
}

pub(super) fn client_getname(
    _: &mut Server,
    client: &mut Client,
    _: &[Bytes],
    _: Now,
    reply: &mut Reply,
) -> Done {
    match client.name.is_empty() {
        true => reply.null(),
        false => reply.bulk(&client.name),
    }
    Ok(())
}

pub(super) fn client_id(
    _: &mut Server,
    client: &mut Client,
    _: &[Bytes],
    _: Now,
    reply: &mut Reply,
) -> Done {
    reply.int(client.id.number());
    Ok(())
}

pub(super) fn subscribe(
    _: &mut Server,
    client: &mut Client,
    words: &[Bytes],
    _: Now,
    reply: &mut Reply,
) -> Done {
    for channel in words.iter().skip(1) {
        client.channels.insert(channel.clone());
        reply.push(3);
        reply.bulk(b"subscribe");
        reply.bulk(channel);
        reply.count(client.channels.len());
    }
    Ok(())
}

pub(super) fn unsubscribe(
    _: &mut Server,
    client: &mut Client,
    words: &[Bytes],
    _: Now,
    reply: &mut Reply,
) -> Done {
    let named: Vec<Bytes> = match words {
        [_] => client.channels.iter().cloned().collect(),
        _ => words.iter().skip(1).cloned().collect(),
    };
    for channel in &named {
        client.channels.remove(channel);
        reply.push(3);
        reply.bulk(b"unsubscribe");
        reply.bulk(channel);
        reply.count(client.channels.len());
    }
    if named.is_empty() {
        reply.push(3);
        reply.bulk(b"unsubscribe");
        reply.null();
        reply.int(0);
    }
    Ok(())
}

pub(super) fn select(
    server: &mut Server,
    client: &mut Client,
    words: &[Bytes],
    _: Now,
    reply: &mut Reply,
) -> Done {
    let index = words
        .get(1)
        .and_then(|index| integer(index))
        .ok_or(NOT_INTEGER)?;
    let range = "value is out of range, value must between -2147483648 and 2147483647";
    let index = i32::try_from(index).map_err(|_| range)?;
    if server.cluster().is_some() && index != 0 {
        return Err("SELECT is not allowed in cluster mode".into());
    }
    match usize::try_from(index) {
        Ok(index) if index < DATABASES => client.database = index,
        _ => return Err("DB index is out of range".into()),
    }
    reply.simple("OK");
    Ok(())
}

pub(super) fn quit(
    _: &mut Server,
    client: &mut Client,
    _: &[Bytes],
    _: Now,
    reply: &mut Reply,
) -> Done {
    reply.simple("OK");
    client.is_closing = true;
    Ok(())
}

pub(super) fn time(
    _: &mut Server,
    _: &mut Client,
    _: &[Bytes],
    now: Now,
    reply: &mut Reply,
) -> Done {
    reply.array(2);
    reply.bulk(now.as_secs().to_string().as_bytes());
    reply.bulk(now.subsec_micros().to_string().as_bytes());
    Ok(())
}

pub(super) fn role(
    server: &mut Server,
    _: &mut Client,
    _: &[Bytes],
    _: Now,
    reply: &mut Reply,
) -> Done {
    match server.role() {
        _ if server.watched.is_some() => {
            let names = server.watched.iter().flatten();
            reply.array(2);
            reply.bulk(b"sentinel");
            reply.array(names.clone().count());
            for (name, _) in names {
                reply.bulk(name.as_bytes());
            }
        }
        Role::Primary { replicas } => {
            reply.array(3);
            reply.bulk(b"master");
            reply.int(server.offset());
            reply.array(replicas.len());
            for replica in replicas {
                reply.array(3);
                reply.bulk(replica.host.as_bytes());
                reply.bulk(replica.port.to_string().as_bytes());
                reply.bulk(replica.offset.to_string().as_bytes());
            }
        }
        Role::Replica {
            host,
            port,
            is_linked,
        } => {
            reply.array(5);
            reply.bulk(b"slave");
            reply.bulk(host.as_bytes());
            reply.int((*port).into());
            reply.bulk(if *is_linked { b"connected" } else { b"connect" });
            reply.int(if *is_linked { server.offset() } else { -1 });
        }
    }
    Ok(())
}

pub(super) fn info(
    server: &mut Server,
    _: &mut Client,
    _: &[Bytes],
    _: Now,
    reply: &mut Reply,
) -> Done {
    reply.verbatim(&server.describe());
    Ok(())
}

pub(super) fn dbsize(
    server: &mut Server,
    client: &mut Client,
    _: &[Bytes],
    _: Now,
    reply: &mut Reply,
) -> Done {
    reply.count(server.keys_in(client.database));
    Ok(())
}

fn check_flush(words: &[Bytes]) -> Done {
    match words {
        [_] => Ok(()),
        [_, how] if how.eq_ignore_ascii_case(b"sync") => Ok(()),
        [_, how] if how.eq_ignore_ascii_case(b"async") => Ok(()),
        _ => Err(SYNTAX.into()),
    }
}

pub(super) fn flushall(
    server: &mut Server,
    client: &mut Client,
    words: &[Bytes],
    _: Now,
    reply: &mut Reply,
) -> Done {
    check_flush(words)?;
    for database in 0..DATABASES {
        server.flush(database);
    }
    server.propagate(client.database, words.to_vec());
    reply.simple("OK");
    Ok(())
}

pub(super) fn flushdb(
    server: &mut Server,
    client: &mut Client,
    words: &[Bytes],
    _: Now,
    reply: &mut Reply,
) -> Done {
    check_flush(words)?;
    server.flush(client.database);
    server.propagate(client.database, words.to_vec());
    reply.simple("OK");
    Ok(())
}

pub(super) fn multi(
    _: &mut Server,
    client: &mut Client,
    _: &[Bytes],
    _: Now,
    reply: &mut Reply,
) -> Done {
    if client.transaction.is_some() {
        return Err("MULTI calls can not be nested".into());
    }
    client.transaction = Some(Queued::default());
    reply.simple("OK");
    Ok(())
}

pub(super) fn discard(
    _: &mut Server,
    client: &mut Client,
    _: &[Bytes],
    _: Now,
    reply: &mut Reply,
) -> Done {
    client.transaction.take().ok_or("DISCARD without MULTI")?;
    reply.simple("OK");
    Ok(())
}

pub(super) fn exec(
    server: &mut Server,
    client: &mut Client,
    _: &[Bytes],
    now: Now,
    reply: &mut Reply,
) -> Done {
    let queued = client.transaction.take().ok_or("EXEC without MULTI")?;
    if queued.is_aborted {
        return Err("-EXECABORT Transaction discarded because of previous errors.".into());
    }
    reply.array(queued.commands.len());
    for words in queued.commands {
        server.execute_queued(client, &words, now, reply);
    }
    Ok(())
}

pub(super) fn asking(
    server: &mut Server,
    client: &mut Client,
    _: &[Bytes],
    _: Now,
    reply: &mut Reply,
) -> Done {
    server.cluster().ok_or(NO_CLUSTER)?;
    client.is_asking = true;
    reply.simple("OK");
    Ok(())
}

pub(super) fn readonly(
    server: &mut Server,
    client: &mut Client,
    _: &[Bytes],
    _: Now,
    reply: &mut Reply,
) -> Done {
    server.cluster().ok_or(NO_CLUSTER)?;
    client.is_readonly = true;
    reply.simple("OK");
    Ok(())
}

pub(super) fn readwrite(
    server: &mut Server,
    client: &mut Client,
    _: &[Bytes],
    _: Now,
    reply: &mut Reply,
) -> Done {
    server.cluster().ok_or(NO_CLUSTER)?;
    client.is_readonly = false;
    reply.simple("OK");
    Ok(())
}

pub(super) fn cluster_slots(
    server: &mut Server,
    _: &mut Client,
    _: &[Bytes],
    _: Now,
    reply: &mut Reply,
) -> Done {
    server.cluster().ok_or(NO_CLUSTER)?.slots(reply);
    Ok(())
}

pub(super) fn cluster_myid(
    server: &mut Server,
    _: &mut Client,
    _: &[Bytes],
    _: Now,
    reply: &mut Reply,
) -> Done {
    let view = server.cluster().ok_or(NO_CLUSTER)?;
    let id = view
        .nodes
        .get(view.myself)
        .map_or("", |node| node.id.as_str());
    reply.bulk(id.as_bytes());
    Ok(())
}

pub(super) fn cluster_keyslot(
    server: &mut Server,
    _: &mut Client,
    words: &[Bytes],
    _: Now,
    reply: &mut Reply,
) -> Done {
    server.cluster().ok_or(NO_CLUSTER)?;
    let key = words.get(2).map_or(&b""[..], |key| key);
    reply.int(slot_of(key).into());
    Ok(())
}
