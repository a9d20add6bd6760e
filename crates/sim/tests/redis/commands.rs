//! Random commands: those that Weir sends, in the forms in which it sends them, and others that are
//! close to them or wrong.

use weir_sim::random::Random;

use super::peers::{Likeness, Words};

const KEYS: [&str; 6] = ["a", "b", "c{x}", "weir:L:a", "weir:L:a%w", ""];

/// A moment in milliseconds from which numbers of today are made.
const TODAY: u64 = 1_750_000_000_000;

/// How often in a hundred a command is spoiled.
const SPOILED: u64 = 6;

pub(crate) fn words(text: &str) -> Words {
    text.split(' ')
        .map(|word| word.as_bytes().to_vec())
        .collect()
}

/// A command, and how its replies are to be compared.
pub(crate) fn command(random: &mut Random) -> (Words, Likeness) {
    let key = KEYS[random.weighted(&[30, 20, 20, 15, 14, 1])];
    let kinds: [fn(&mut Random, &str) -> Words; 23] = [
        take_gcra,
        refund_gcra,
        clamp_gcra,
        take_fixed_window,
        bitfield,
        bitfield,
        take_sliding_window,
        hash,
        take_log,
        log,
        lease,
        lease,
        list,
        ranges,
        ranges,
        expiry,
        expiry,
        string,
        delete,
        look,
        look,
        connection,
        tried,
    ];
    let at = random.index(kinds.len());
    let mut words = kinds[at](random, key);
    if random.chance(SPOILED) {
        spoil(random, &mut words);
    }
    outlast_the_test(&mut words);
    let name = words.first().map(|name| name.to_ascii_lowercase());
    let likeness = match name.as_deref() {
        Some(b"ttl") => Likeness::Near(2),
        Some(b"pttl") => Likeness::Near(2000),
        Some(b"time" | b"role" | b"info" | b"hello") => Likeness::Form,
        _ => Likeness::Same,
    };
    (words, likeness)
}

/// Lets no key expire while the test runs, which no two clocks would see at the same command.
fn outlast_the_test(words: &mut Words) {
    let is_unit = |word: &Vec<u8>| {
        let units: [&[u8]; 4] = [b"px", b"ex", b"pexpire", b"expire"];
        units.contains(&word.to_ascii_lowercase().as_slice())
    };
    let lasts_long = words.iter().any(is_unit);
    for word in words.iter_mut().skip(2).filter(|_| lasts_long) {
        let number = std::str::from_utf8(word)
            .ok()
            .and_then(|word| word.parse().ok());
        if (1..1_000_000).contains(&number.unwrap_or(0)) {
            word.extend(b"000000");
        }
    }
}

/// Whether a command may stand in a transaction: a reply within a reply is compared by its bytes.
pub(crate) fn is_exact(likeness: Likeness) -> bool {
    likeness == Likeness::Same
}

fn spoil(random: &mut Random, words: &mut Words) {
    let at = random.index(words.len());
    match random.index(6) {
        0 => drop(words.remove(at)),
        1 => words.push(number(random)),
        2 => words[at] = number(random),
        3 => words[at] = words[at].to_ascii_uppercase(),
        4 => words.insert(at, b"zz".to_vec()),
        _ => words[0].push(b'x'),
    }
    // Others are asked in a form that is known.
    if words.is_empty() || words[0].eq_ignore_ascii_case(b"bitfieldx") {
        words.push(b"ping".to_vec());
    }
}

fn number(random: &mut Random) -> Vec<u8> {
    const ODD: [&str; 20] = [
        "0",
        "1",
        "-1",
        "2",
        "",
        " 1",
        "1 ",
        "01",
        "-0",
        "+1",
        "1.5",
        "abc",
        "nan",
        "inf",
        "1e3",
        "9223372036854775807",
        "9223372036854775808",
        "-9223372036854775808",
        "-9223372036854775809",
        "4611686018427387904",
    ];
    match random.index(3) {
        0 => ODD[random.index(ODD.len())].as_bytes().to_vec(),
        1 => random.between(0, 20).to_string().into_bytes(),
        _ => random.next().cast_signed().to_string().into_bytes(),
    }
}

fn now_nanos(random: &mut Random) -> u64 {
    (TODAY + random.between(0, 60_000)) * 1_000_000
}

const SECOND: u64 = 1_000_000_000;

fn note(random: &mut Random) -> String {
    match random.chance(50) {
        true => "GET u33 63".to_owned(),
        false => format!("SET u33 63 {}", TODAY / 1000 + random.between(0, 100)),
    }
}

fn take_gcra(random: &mut Random, key: &str) -> Words {
    let (now, tolerance) = (now_nanos(random), random.between(1, 60) * SECOND);
    let increment = random.between(0, 20) * SECOND;
    let bias = i64::MAX.cast_unsigned() - tolerance;
    let note = note(random);
    words(&format!(
        "BITFIELD {key} {note} OVERFLOW SAT INCRBY u63 0 -{now} OVERFLOW FAIL INCRBY u63 0 {} \
         INCRBY u63 0 -{bias} INCRBY u63 0 {now}",
        bias + increment
    ))
}

fn refund_gcra(random: &mut Random, key: &str) -> Words {
    let (now, increment) = (now_nanos(random), random.between(0, 20) * SECOND);
    let note = note(random);
    if random.chance(50) {
        return words(&format!(
            "BITFIELD {key} {note} OVERFLOW SAT INCRBY u63 0 -{now} INCRBY u63 0 -{increment} \
             INCRBY u63 0 {now}"
        ));
    }
    let above = i64::MAX.cast_unsigned() - now;
    words(&format!(
        "BITFIELD {key} GET u33 63 OVERFLOW FAIL INCRBY u63 0 {above} INCRBY u63 0 -{} INCRBY \
         u63 0 -{above}",
        above + increment
    ))
}

/// Levels below the first, too.
fn clamp_gcra(random: &mut Random, key: &str) -> Words {
    let above = i64::MAX.cast_unsigned() - now_nanos(random);
    match random.index(3) {
        0 => {
            let note = note(random);
            words(&format!(
                "BITFIELD {key} {note} OVERFLOW SAT INCRBY u63 0 {above} INCRBY u63 0 -{above}"
            ))
        }
        1 => words(&format!(
            "BITFIELD {key} GET u63 96 GET u63 160 GET u63 224 GET u63 288"
        )),
        _ => {
            let now = now_nanos(random);
            words(&format!(
                "BITFIELD {key} OVERFLOW SAT INCRBY u63 0 {SECOND} SET u63 96 {now} INCRBY u63 160 \
                 -{now} INCRBY u63 160 {now} OVERFLOW FAIL INCRBY u63 160 {above}"
            ))
        }
    }
}

fn take_fixed_window(random: &mut Random, key: &str) -> Words {
    let now = 4 * (TODAY + random.between(0, 60_000)) * 1000;
    let period = 4 * random.between(1, 60) * 1_000_000;
    let (max, flag) = (i64::MAX.cast_unsigned(), 1_u64 << 62);
    let (burst, cost) = (random.between(1, 20), random.between(0, 5));
    match random.index(4) {
        0 => words(&format!("BITFIELD {key} GET u63 0 GET u63 62")),
        1 => words(&format!(
            "BITFIELD {key} OVERFLOW SAT INCRBY u63 0 {} INCRBY u63 0 -{}",
            max - now,
            max - now
        )),
        2 => words(&format!(
            "BITFIELD {key} OVERFLOW SAT INCRBY u63 62 -{cost} OVERFLOW FAIL INCRBY u63 62 {} \
             INCRBY u63 0 {} INCRBY u63 0 -{max} INCRBY u63 0 -{} INCRBY u63 62 -{}",
            flag - 1,
            max - now,
            max - now,
            flag - 1
        )),
        _ => words(&format!(
            "BITFIELD {key} OVERFLOW SAT INCRBY u63 0 -{now} OVERFLOW FAIL INCRBY u63 0 -1 \
             OVERFLOW SAT INCRBY u63 62 -{flag} OVERFLOW FAIL INCRBY u63 0 2 INCRBY u63 0 {} \
             INCRBY u63 0 -{} INCRBY u63 0 {now} INCRBY u63 62 {} INCRBY u63 62 -{}",
            max - 3,
            max - 1 - period,
            max - burst + cost,
            max - burst
        )),
    }
}

fn bitfield(random: &mut Random, key: &str) -> Words {
    const TYPES: [&str; 14] = [
        "u63", "u63", "u33", "i64", "i64", "u8", "i5", "u1", "i1", "u62", "i63", "u64", "x8", "i",
    ];
    const OFFSETS: [&str; 10] = ["0", "0", "62", "63", "96", "#0", "#1", "#3", "-1", "x"];
    let name = if random.chance(15) {
        "BITFIELD_RO"
    } else {
        "BITFIELD"
    };
    let mut text = words(&format!("{name} {key}"));
    let only_reads = name == "BITFIELD_RO" && random.chance(70);
    for _ in 0..random.between(0, 5) {
        let usual = random.chance(90);
        let kind = TYPES[random.index(if usual { 11 } else { 14 })];
        let offset = match random.chance(30) {
            true => random.between(0, 200).to_string(),
            false => OFFSETS[random.index(if usual { 8 } else { 10 })].to_owned(),
        };
        let operand = match random.chance(95) {
            true => match random.index(3) {
                0 => random.between(0, 300).to_string(),
                1 => (i64::MAX.cast_unsigned() - random.between(0, 3)).to_string(),
                _ => random.next().cast_signed().to_string(),
            }
            .into_bytes(),
            false => number(random),
        };
        let step = if only_reads { 0 } else { random.index(4) };
        text.extend(match step {
            0 => words(&format!("GET {kind} {offset}")),
            1 => words(&format!(
                "OVERFLOW {}",
                ["WRAP", "SAT", "FAIL", "sat"][random.index(4)]
            )),
            2 => [words(&format!("SET {kind} {offset}")), vec![operand]].concat(),
            _ => [words(&format!("incrby {kind} {offset}")), vec![operand]].concat(),
        });
    }
    text
}

fn take_sliding_window(random: &mut Random, key: &str) -> Words {
    let start = TODAY + 1000 * random.between(0, 12);
    match random.index(3) {
        0 => words(&format!("HGETALL {key}")),
        1 => words(&format!("HDEL {key} {start} {}", start + 1000)),
        _ => words(&format!("HINCRBY {key} {start} {}", random.between(0, 9))),
    }
}

fn hash(random: &mut Random, key: &str) -> Words {
    let field = random.between(0, 5);
    match random.index(6) {
        0 => words(&format!("HGET {key} f{field}")),
        1 => words(&format!("HLEN {key}")),
        2 => [
            words(&format!("HSET {key} f{field} 1 f0")),
            vec![number(random)],
        ]
        .concat(),
        3 => [
            words(&format!("HINCRBY {key} f{field}")),
            vec![number(random)],
        ]
        .concat(),
        4 => words(&format!("HDEL {key} f0 f1 f2 f3 f4 f5")),
        _ => words(&format!("HINCRBY {key} f{field} -{}", random.between(0, 9))),
    }
}

fn member(random: &mut Random) -> Vec<u8> {
    let moment = (TODAY + random.between(0, 30)) * 1_000_000;
    let mut member = moment.to_be_bytes().to_vec();
    member.extend([1, 2, 3, 4, 0, 0, 0, random.between(0, 3).to_be_bytes()[7]]);
    member
}

fn lex_bound(random: &mut Random) -> Vec<u8> {
    let moment = (TODAY + random.between(0, 30)) * 1_000_000;
    match random.index(12) {
        0 => b"-".to_vec(),
        1 => b"+".to_vec(),
        2 => number(random),
        at => [&[b"(["[at % 2]][..], &moment.to_be_bytes()].concat(),
    }
}

fn take_log(random: &mut Random, key: &str) -> Words {
    let mut text = words(&format!("ZADD {key}"));
    for _ in 0..random.between(1, 4) {
        text.extend([b"0".to_vec(), member(random)]);
    }
    text
}

fn log(random: &mut Random, key: &str) -> Words {
    let mut text = match random.index(6) {
        0 => return words(&format!("ZPOPMAX {key} {}", random.between(0, 4))),
        1 => return words(&format!("ZREVRANGE {key} {0} {0}", random.between(0, 20))),
        2 => {
            let surplus = random.between(1, 12);
            let first = surplus + random.between(0, 4);
            return words(&format!("ZREMRANGEBYRANK {key} -{first} -{surplus}"));
        }
        3 => words(&format!("ZLEXCOUNT {key}")),
        4 => words(&format!("ZREMRANGEBYLEX {key}")),
        _ => {
            return [
                words(&format!("ZREM {key}")),
                vec![member(random), member(random)],
            ]
            .concat();
        }
    };
    text.extend([lex_bound(random), lex_bound(random)]);
    text
}

fn lease(random: &mut Random, key: &str) -> Words {
    let expiry = TODAY + random.between(0, 60_000);
    let name = random.between(0, 7);
    let text = match random.index(9) {
        0 => format!("ZREMRANGEBYSCORE {key} -inf ({expiry}"),
        1 => format!("ZADD {key} +inf lease-{name}"),
        2 => format!("ZREMRANGEBYRANK {key} -1 {}", random.between(0, 4)),
        3 => format!("ZADD {key} NX {expiry} lease-{name}"),
        4 => format!("ZREMRANGEBYSCORE {key} +inf +inf"),
        5 => format!("ZCARD {key}"),
        6 => format!("ZCOUNT {key} {expiry} +inf"),
        7 => format!("ZREM {key} lease-{name}"),
        _ => format!("ZADD {key} {expiry} lease-{name}"),
    };
    words(&text)
}

fn list(random: &mut Random, key: &str) -> Words {
    let until = TODAY + random.between(0, 60_000);
    let text = match random.index(6) {
        0 => format!("ZSCORE {key} #version"),
        1 => format!("ZREMRANGEBYSCORE {key} 0 ({until}"),
        2 => format!("ZADD {key} -{} #version", random.between(1, 1 << 53)),
        3 => format!("ZADD {key} {until} entry-{}", random.between(0, 9)),
        4 => format!("ZADD {key} +inf entry-{}", random.between(0, 9)),
        _ => {
            let (skip, count) = (random.between(0, 5), random.between(0, 5));
            format!("ZRANGEBYSCORE {key} {until} +inf WITHSCORES LIMIT {skip} {count}")
        }
    };
    words(&text)
}

fn score(random: &mut Random) -> Vec<u8> {
    let score = match random.index(8) {
        0 => return number(random),
        1 => "+inf".to_owned(),
        2 => "-inf".to_owned(),
        3 => format!("{}.{}", random.between(0, 9), random.between(0, 99)),
        4 => format!("-{}", random.between(0, 1 << 54)),
        5 => format!("{}e{}", random.between(0, 9), random.between(0, 30)),
        _ => random.between(0, 9).to_string(),
    };
    score.into_bytes()
}

fn ranges(random: &mut Random, key: &str) -> Words {
    let bound = |random: &mut Random| match random.chance(30) {
        true => [&b"("[..], &score(random)].concat(),
        false => score(random),
    };
    match random.index(8) {
        0 => [
            words(&format!("ZCOUNT {key}")),
            vec![bound(random), bound(random)],
        ]
        .concat(),
        1 => {
            let mut text = words(&format!("ZRANGEBYSCORE {key}"));
            text.extend([bound(random), bound(random)]);
            if random.chance(50) {
                text.push(b"withscores".to_vec());
            }
            if random.chance(50) {
                text.push(b"limit".to_vec());
                text.extend([
                    random.between(0, 3).to_string().into_bytes(),
                    number(random),
                ]);
            }
            text
        }
        2 => {
            let mut text = words(&format!("ZREMRANGEBYSCORE {key}"));
            text.extend([bound(random), bound(random)]);
            text
        }
        3 => {
            let name = ["ZRANGE", "ZREVRANGE", "ZREMRANGEBYRANK"][random.index(3)];
            let mut text = words(&format!("{name} {key}"));
            text.extend([number(random), number(random)]);
            if random.chance(40) {
                text.push(b"WITHSCORES".to_vec());
            }
            text
        }
        4 => {
            let mut text = words(&format!("ZADD {key} {}", ["NX", "nx"][random.index(2)]));
            text.extend([score(random), format!("m{}", random.between(0, 5)).into()]);
            text
        }
        5 => words(&format!("ZPOPMAX {key}")),
        _ => {
            let mut text = words(&format!("ZADD {key}"));
            for _ in 0..random.between(1, 3) {
                text.extend([score(random), format!("m{}", random.between(0, 5)).into()]);
            }
            text
        }
    }
}

/// Times are far in the past or the future, and no two are the same.
fn expiry(random: &mut Random, key: &str) -> Words {
    let seconds = random.between(1000, 1_000_000);
    let millis = random.between(1_000_000, 1_000_000_000);
    let text = match random.index(8) {
        0 => format!("EXPIRE {key} {seconds}"),
        1 => format!("EXPIREAT {key} {}", 2_000_000_000 + seconds),
        2 => format!("PEXPIREAT {key} {}", 2_000_000_000_000 + millis),
        3 => format!("PEXPIRE {key} -{}", random.between(0, 5)),
        4 => format!("PERSIST {key}"),
        5 => format!("PEXPIREAT {key} {}", random.between(0, 5)),
        _ => format!("PEXPIRE {key} {millis}"),
    };
    let mut text = words(&text);
    if random.chance(10) {
        text.push(b"ZZ".to_vec());
    }
    if random.chance(5) && text.len() > 2 {
        text[2] = number(random);
    }
    text
}

fn string(random: &mut Random, key: &str) -> Words {
    if random.chance(20) {
        return words(&format!("GET {key}"));
    }
    if random.chance(30) {
        let mut text = words(&format!("GETRANGE {key}"));
        text.extend(match random.index(3) {
            0 => words("0 524288"),
            1 => words(&format!(
                "{} -{}",
                random.between(0, 4),
                random.between(0, 4)
            )),
            _ => vec![number(random), number(random)],
        });
        return text;
    }
    let mut text = [words(&format!("SET {key}")), vec![number(random)]].concat();
    if random.chance(60) {
        let millis = random.between(1_000_000, 1_000_000_000);
        text.extend(match random.index(4) {
            0 => words(&format!("PX {millis}")),
            1 => words(&format!(
                "PXAT {}",
                [1, 2_000_000_000_000 + millis][random.index(2)]
            )),
            2 => words("zz"),
            _ => [words("PX"), vec![number(random)]].concat(),
        });
    }
    text
}

/// In the forms in which Weir tries whether a server carries them out.
fn tried(random: &mut Random, key: &str) -> Words {
    const FORMS: [(&str, &str); 13] = [
        ("BITFIELD", ""),
        ("BITFIELD_RO", " GET u63 0"),
        ("PEXPIRE", " 1000"),
        ("HGETALL", ""),
        ("HINCRBY", " 0 x"),
        ("HDEL", " 0"),
        ("ZADD", " x 0"),
        ("ZREM", " 0"),
        ("ZREMRANGEBYRANK", " 1 0"),
        ("ZLEXCOUNT", " + -"),
        ("ZREVRANGE", " 1 0"),
        ("ZREMRANGEBYLEX", " + -"),
        ("ZREMRANGEBYSCORE", " 1 0"),
    ];
    let (name, rest) = FORMS[random.index(FORMS.len())];
    words(&format!("{name} {key}{rest}"))
}

fn delete(random: &mut Random, key: &str) -> Words {
    match random.index(4) {
        0 => words(&format!("DEL {key} c{{x}}")),
        1 => words(&format!("UNLINK {key}")),
        _ => words(&format!("DEL {key}")),
    }
}

fn look(random: &mut Random, key: &str) -> Words {
    let name = ["TYPE", "PTTL", "TTL", "EXISTS", "ZCARD", "PTTL"][random.index(6)];
    words(&format!("{name} {key}"))
}

fn connection(random: &mut Random, key: &str) -> Words {
    let text = match random.index(16) {
        0 => "PING".to_owned(),
        1 => format!("PING {key}"),
        2 => "PING a b".to_owned(),
        3 => "TIME".to_owned(),
        4 => "CLIENT SETINFO LIB-NAME redis-rs".to_owned(),
        5 => "CLIENT SETNAME weir".to_owned(),
        6 => "CLIENT GETNAME".to_owned(),
        7 => "AUTH secret".to_owned(),
        8 => format!("SELECT {}", random.between(0, 17)),
        9 => "ASKING".to_owned(),
        10 => "CLUSTER SLOTS".to_owned(),
        11 => "READONLY".to_owned(),
        12 => "DBSIZE x".to_owned(),
        13 => format!("SELECT {}", String::from_utf8(number(random)).unwrap()),
        14 => "CLIENT".to_owned(),
        _ => "HELLO".to_owned(),
    };
    words(&text)
}
