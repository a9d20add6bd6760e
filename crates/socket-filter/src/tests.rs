//! Filters against the sets that they were made of: in user space, and by the kernel.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use proptest::prelude::*;

use super::*;
use crate::assembler::Verdict;
use crate::evaluate::{evaluate, header};

fn set(networks: &[&str]) -> PeerSet {
    PeerSet::new(networks.iter().map(|it| it.parse().unwrap()), [])
}

fn drops(program: &Program, source: IpAddr) -> bool {
    evaluate(program, &header(source), &[]) == Verdict::Drop
}

/// An address, its neighbours, and the ends of its range.
fn around(network: IpNet) -> Vec<IpAddr> {
    match network {
        IpNet::V4(network) => {
            let ends = [network.network(), network.broadcast()].map(Ipv4Addr::to_bits);
            let all = ends
                .into_iter()
                .flat_map(|end| [end.wrapping_sub(1), end, end.wrapping_add(1)]);
            all.map(|bits| Ipv4Addr::from_bits(bits).into()).collect()
        }
        IpNet::V6(network) => {
            let ends = [network.network(), network.broadcast()].map(Ipv6Addr::to_bits);
            let all = ends.into_iter().flat_map(|end| {
                let words = [0, 32, 64, 96].map(|bit| end ^ 1 << bit);
                words
                    .into_iter()
                    .chain([end.wrapping_sub(1), end, end.wrapping_add(1)])
            });
            all.map(|bits| Ipv6Addr::from_bits(bits).into()).collect()
        }
    }
}

fn v4_network() -> impl Strategy<Value = IpNet> {
    let dense = (0_u32..2000).prop_map(|low| 0xc612_0000 | low);
    (
        prop_oneof![any::<u32>(), dense],
        prop_oneof![3 => Just(32), 1 => 1_u8..=32],
    )
        .prop_map(|(bits, prefix)| {
            IpNet::new(Ipv4Addr::from_bits(bits).into(), prefix)
                .unwrap()
                .trunc()
        })
}

fn v6_network() -> impl Strategy<Value = IpNet> {
    // Few distinct words, so that networks share the ones before.
    let words = prop::collection::vec(prop_oneof![0_u32..3, Just(u32::MAX), any::<u32>()], 3);
    let prefix = prop_oneof![2 => Just(64), 1 => Just(128), 1 => 33_u8..=128];
    (words, prefix).prop_map(|(words, prefix)| {
        let bits = words.iter().fold(0x2001_0db8_u128, |bits, word| {
            bits << 32 | u128::from(*word)
        });
        IpNet::new(Ipv6Addr::from_bits(bits).into(), prefix)
            .unwrap()
            .trunc()
    })
}

proptest! {
    #[test]
    fn a_filter_drops_all_peers_of_its_set_and_no_other(
        v4 in prop::collection::vec(v4_network(), 0..300),
        v6 in prop::collection::vec(v6_network(), 0..150),
        exempt in prop::collection::vec(v4_network(), 0..5),
    ) {
        let networks: Vec<_> = v4.into_iter().chain(v6).collect();
        let peers = PeerSet::new(networks.iter().copied(), exempt.iter().copied());
        let program = Program::dropping(&peers).unwrap();
        for peer in networks.into_iter().chain(exempt).flat_map(around) {
            prop_assert_eq!(drops(&program, peer), peers.contains(peer), "{}", peer);
        }
    }
}

#[test]
fn a_filter_of_nobody_drops_nothing() {
    let program = Program::dropping(&PeerSet::default()).unwrap();
    for peer in ["0.0.0.0", "255.255.255.255", "::", "ffff::ffff"] {
        assert!(!drops(&program, peer.parse().unwrap()), "{peer}");
    }
}

#[test]
fn the_whole_of_a_version_may_be_dropped_and_none_of_the_other() {
    let program = Program::dropping(&set(&["0.0.0.0/0"])).unwrap();
    assert!(drops(&program, Ipv4Addr::BROADCAST.into()));
    assert!(!drops(&program, Ipv6Addr::LOCALHOST.into()));
    let program = Program::dropping(&set(&["::/0"])).unwrap();
    assert!(drops(&program, Ipv6Addr::from_bits(u128::MAX).into()));
    assert!(!drops(&program, Ipv4Addr::LOCALHOST.into()));
}

#[test]
fn a_packet_of_no_known_version_passes() {
    let program = Program::dropping(&set(&["0.0.0.0/0", "::/0"])).unwrap();
    assert_eq!(evaluate(&program, &[0x55; 40], &[]), Verdict::Pass);
}

/// Single addresses and subscribers' networks that lie apart, as those of a botnet do.
fn scattered(count: u32, version: u8) -> PeerSet {
    let spread = |number: u32| number.wrapping_mul(2_654_435_761);
    let network = |number: u32| match version {
        4 => IpNet::from(IpAddr::V4(Ipv4Addr::from_bits(spread(number)))),
        _ => {
            let bits = 0x2000_u128 << 112 | u128::from(spread(number)) << 80;
            IpNet::new(Ipv6Addr::from_bits(bits).into(), 64).unwrap()
        }
    };
    PeerSet::new((1..=count).map(network), [])
}

#[test]
fn as_many_peers_fit_as_the_documentation_says() {
    assert!(Program::dropping(&scattered(2_900, 4)).is_ok());
    assert!(Program::dropping(&scattered(900, 6)).is_ok());
}

#[test]
fn more_peers_than_the_kernel_takes_are_refused() {
    assert_eq!(Program::dropping(&scattered(4_096, 4)), Err(FilterTooLong));
    assert_eq!(
        Program::dropping(&scattered(1_000_000, 6)),
        Err(FilterTooLong)
    );
}

#[test]
fn a_drain_refuses_first_segments_alone() {
    let program = Program::refusing_handshakes();
    let verdict = |flags: u8| {
        let mut tcp = [0; 20];
        tcp[13] = flags;
        evaluate(&program, &[], &tcp)
    };
    // SYN, and with ECN's flags.
    assert_eq!(
        (verdict(0x02), verdict(0xc2)),
        (Verdict::Drop, Verdict::Drop)
    );
    // SYN and ACK, ACK, and RST.
    assert_eq!([0x12, 0x10, 0x04].map(verdict), [Verdict::Pass; 3]);
}

#[test]
fn on_a_socket_of_udp_only_what_begins_connections_of_quic_is_dropped() {
    let peer = IpAddr::from(Ipv4Addr::new(192, 0, 2, 1));
    let program = Program::dropping(&set(&["192.0.2.1/32"])).unwrap();
    let program = program.of_long_headers();
    let verdict = |source: IpAddr, first: u8| {
        let mut datagram = [0; 9];
        datagram[8] = first;
        evaluate(&program, &header(source), &datagram)
    };
    // Initial, 0-RTT and Handshake, and any packet of a version that is not known.
    for first in [0xc0, 0xd0, 0xe0, 0x80] {
        assert_eq!(verdict(peer, first), Verdict::Drop);
        let other = Ipv4Addr::new(192, 0, 2, 2).into();
        assert_eq!(verdict(other, first), Verdict::Pass);
    }
    // Those of connections.
    for first in [0x40, 0x7f, 0] {
        assert_eq!(verdict(peer, first), Verdict::Pass);
    }
}

#[cfg(target_os = "linux")]
mod kernel {
    use std::io::ErrorKind;
    use std::net::{SocketAddr, TcpListener, UdpSocket};

    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    use socket2::{Domain, SockRef, Socket, Type};
    use weir_testing::{eventually, namespace};

    use super::*;

    /// Networks of the namespace: each address in them is one of its own.
    const NETWORKS: [&str; 2] = ["198.18.0.0/15", "2001:db8::/32"];

    fn networks(test: &str) -> Option<Vec<IpNet>> {
        let networks = namespace::with(&NETWORKS, test)?;
        Some(networks.iter().map(|it| it.parse().unwrap()).collect())
    }

    fn bound(source: IpAddr, kind: Type) -> Socket {
        let address = SocketAddr::new(source, 0);
        let socket = Socket::new(Domain::for_address(address), kind, None).unwrap();
        // The namespace has no interface with these addresses of IPv6.
        if source.is_ipv6() {
            socket.set_freebind_v6(true).unwrap();
        }
        socket.bind(&address.into()).unwrap();
        socket
    }

    /// Sockets of UDP run filters as those of TCP do, and drop at once. So the sender knows of each
    /// packet whether it has arrived.
    #[test]
    fn the_kernel_drops_what_the_set_has_and_nothing_else() {
        let Some(networks) = networks("the_kernel_drops_what_the_set_has_and") else {
            return;
        };
        let mut runner = TestRunner::deterministic();
        let receiver = Socket::new(Domain::IPV6, Type::DGRAM, None).unwrap();
        receiver.set_only_v6(false).unwrap();
        receiver
            .bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)).into())
            .unwrap();
        let receiver = UdpSocket::from(receiver);
        receiver.set_nonblocking(true).unwrap();
        let port = receiver.local_addr().unwrap().port();
        let is_ours = |peer: &IpAddr| networks.iter().any(|it| it.contains(peer));
        for _ in 0..20 {
            let lists =
                prop::collection::vec(prop_oneof![v4_ours(&networks), v6_network()], 0..120);
            let list = lists.new_tree(&mut runner).unwrap().current();
            let peers = PeerSet::new(list.iter().copied(), []);
            let program = Program::dropping(&peers).unwrap();
            attach(SockRef::from(&receiver), &program).unwrap();
            for peer in list.into_iter().flat_map(around).filter(is_ours) {
                let sender = UdpSocket::from(bound(peer, Type::DGRAM));
                sender.send_to(b"?", SocketAddr::new(peer, port)).unwrap();
                let arrived = match receiver.recv(&mut [0; 8]) {
                    Ok(_) => true,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => false,
                    Err(error) => panic!("{error}"),
                };
                assert_eq!(arrived, !peers.contains(peer), "{peer}");
            }
        }
    }

    #[test]
    fn a_socket_of_udp_drops_long_headers_and_counts_them() {
        let Some(networks) = networks("a_socket_of_udp_drops_long_headers") else {
            return;
        };
        let peer = networks[0].hosts().nth(7).unwrap();
        let receiver = UdpSocket::bind("[::]:0").unwrap();
        receiver.set_nonblocking(true).unwrap();
        let to = SocketAddr::new(peer, receiver.local_addr().unwrap().port());
        let sender = UdpSocket::from(bound(peer, Type::DGRAM));
        let program = Program::dropping(&PeerSet::new([IpNet::from(peer)], [])).unwrap();
        attach(SockRef::from(&receiver), &program.of_long_headers()).unwrap();
        assert_eq!(dropped(SockRef::from(&receiver)).unwrap(), 0);
        let arrives = |packet: &[u8]| {
            sender.send_to(packet, to).unwrap();
            receiver.recv(&mut [0; 8]).is_ok()
        };
        assert!(!arrives(&[0xc0, 0, 0, 0, 1]));
        assert!(!arrives(&[0xe0]));
        assert!(arrives(&[0x40, 1, 2]));
        assert_eq!(dropped(SockRef::from(&receiver)).unwrap(), 2);
        detach(SockRef::from(&receiver)).unwrap();
        assert!(arrives(&[0xc0, 0, 0, 0, 1]));
    }

    /// Single addresses and networks within the first of these.
    fn v4_ours(networks: &[IpNet]) -> impl Strategy<Value = IpNet> + use<> {
        let base = match networks[0] {
            IpNet::V4(network) => network.network().to_bits(),
            IpNet::V6(_) => unreachable!(),
        };
        (0_u32..1 << 15, prop_oneof![3 => Just(32), 1 => 20_u8..=32]).prop_map(
            move |(low, prefix)| {
                let address = Ipv4Addr::from_bits(base | low << 1 | low & 1);
                IpNet::new(address.into(), prefix).unwrap().trunc()
            },
        )
    }

    fn connect(source: IpAddr, port: u16) -> Socket {
        let socket = bound(source, Type::STREAM);
        socket.set_nonblocking(true).unwrap();
        // On this machine a handshake is done before the call returns, or was dropped.
        let _ = socket.connect(&SocketAddr::new(source, port).into());
        socket
    }

    fn is_connected(socket: &Socket) -> bool {
        socket.peer_addr().is_ok()
    }

    #[test]
    fn a_listener_drops_handshakes_counts_them_and_lets_go_of_them() {
        let Some(networks) = networks("a_listener_drops_handshakes_counts") else {
            return;
        };
        let hosts: Vec<IpAddr> = networks
            .iter()
            .map(|it| it.hosts().nth(7).unwrap())
            .collect();
        let others: Vec<IpAddr> = networks
            .iter()
            .map(|it| it.hosts().nth(8).unwrap())
            .collect();
        let listener = TcpListener::bind("[::]:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let peers = PeerSet::new(hosts.iter().map(|peer| IpNet::from(*peer)), []);
        let socket = || SockRef::from(&listener);
        assert_eq!(dropped(socket()).unwrap(), 0);
        attach(socket(), &Program::dropping(&peers).unwrap()).unwrap();
        let waiting: Vec<_> = hosts.iter().map(|peer| connect(*peer, port)).collect();
        let let_in: Vec<_> = others.iter().map(|peer| connect(*peer, port)).collect();
        eventually("handshakes of others", || {
            let_in.iter().all(is_connected).then_some(())
        });
        assert!(!waiting.iter().any(is_connected));
        let drops = dropped(socket()).unwrap();
        assert!(drops >= u32::try_from(hosts.len()).unwrap(), "{drops}");

        // An accepted connection has the filter as well, until it is detached.
        let (accepted, _) = listener.accept().unwrap();
        detach(SockRef::from(&accepted)).unwrap();
        let again = SockRef::from(&accepted).detach_filter().unwrap_err();
        assert_eq!(again.kind(), ErrorKind::NotFound);

        detach(socket()).unwrap();
        detach(socket()).expect("there is none, which is no error");
        // A client tries again after a second.
        eventually("handshakes after the lift", || {
            waiting.iter().all(is_connected).then_some(())
        });
    }

    #[test]
    fn the_kernel_takes_a_filter_of_the_greatest_length_and_another_in_its_place() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let Some(_) = networks("the_kernel_takes_a_filter_of_the_greatest") else {
            return;
        };
        // Those of a network, of which the kernel makes a longer program than of others.
        let dense = |count: u32| {
            let even = (0..count).map(|number| Ipv4Addr::from_bits(0xc612_0000 + 2 * number));
            PeerSet::new(even.map(|peer| IpNet::from(IpAddr::V4(peer))), [])
        };
        let all: [&dyn Fn(u32) -> PeerSet; 3] = [&|count| scattered(count, 4), &dense, &|count| {
            scattered(count, 6)
        }];
        let by_udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        for of_count in all {
            let programs = (500..4_096)
                .step_by(25)
                .map(|count| Program::dropping(&of_count(count)));
            let longest = programs.map_while(Result::ok).last().unwrap();
            for _ in 0..3 {
                attach(SockRef::from(&listener), &longest).unwrap();
                attach(SockRef::from(&by_udp), &longest.of_long_headers()).unwrap();
            }
        }
    }
}
