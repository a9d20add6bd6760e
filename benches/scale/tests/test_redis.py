import socket
import threading
import unittest

from harness.processes import Failed
from scale import memory, redis


def answering(replies):
    """A connection to a server that says this, whatever it is asked."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        with listener, listener.accept()[0] as client:
            client.sendall(replies)
            client.recv(4096)

    threading.Thread(target=serve, daemon=True).start()
    return redis.Connection(listener.getsockname()[1])


class Shards(unittest.TestCase):
    def test_slots_are_divided_without_a_gap(self):
        for count in (1, 2, 3, 7, 20):
            slots = [redis.slots_of(number, count) for number in range(count)]
            self.assertEqual((slots[0][0], slots[-1][1]), (0, redis.SLOTS - 1))
            for (_, last), (first, _) in zip(slots, slots[1:]):
                self.assertEqual(last + 1, first)

    def test_only_several_are_a_cluster(self):
        self.assertNotIn("--cluster-enabled", redis.arguments(7001, "/tmp", False))
        self.assertIn("--cluster-enabled", redis.arguments(7001, "/tmp", True))


class Protocol(unittest.TestCase):
    def test_commands_are_arrays_of_texts(self):
        self.assertEqual(redis.encoded(("GET", b"\x00\r\n")), b"*2\r\n$3\r\nGET\r\n$3\r\n\x00\r\n\r\n")

    def test_replies_are_read_to_their_ends(self):
        connection = answering(b"$3\r\na\r\n\r\n:7\r\n*2\r\n+OK\r\n$-1\r\n")
        self.addCleanup(connection.close)
        found = [connection.reply() for _ in range(3)]
        self.assertEqual(found, [b"a\r\n", 7, [b"OK", None]])

    def test_an_error_is_none_of_the_answers(self):
        for reply in (b"-ERR unknown\r\n", b""):
            connection = answering(reply)
            self.addCleanup(connection.close)
            with self.assertRaises((Failed, ConnectionError)):
                connection.ask("PING")

    def test_numbers_of_info_and_calls_are_read(self):
        info = b"# Stats\r\ntotal_net_input_bytes:12\r\nrole:master\r\n"
        shard = redis.Shard.__new__(redis.Shard)
        shard.connection = answering(b"$%d\r\n%s\r\n" % (len(info), info))
        self.assertEqual(shard.info("stats"), {"total_net_input_bytes": 12.0})
        stats = b"cmdstat_bitfield:calls=34,usec=1\r\n"
        shard.connection = answering(b"$%d\r\n%s\r\n" % (len(stats), stats))
        self.assertEqual(shard.calls("bitfield"), 34)


class Copies(unittest.TestCase):
    def test_the_name_of_a_copy_has_a_length_of_its_own_kind(self):
        names = {memory.name(b"weir:K0:subject%w", number) for number in (0, 1, 999_999)}
        self.assertEqual(len(names), 3)
        self.assertEqual({len(name) for name in names}, {len(b"weir:K0:s00000000000%w")})


class Use(unittest.TestCase):
    def gateway(self, *statuses):
        listener = socket.create_server(("127.0.0.1", 0))
        self.seen = []

        def serve():
            with listener:
                for status in statuses:
                    with listener.accept()[0] as client:
                        self.seen.append(client.recv(4096).split(b" ")[1])
                        head = f"HTTP/1.1 {status} X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                        client.sendall(head.encode())

        threading.Thread(target=serve, daemon=True).start()
        return listener.getsockname()[1]

    def test_requests_are_sent_again_while_the_gateway_is_without_redis(self):
        port = self.gateway(200, 503, 200)
        memory.use(port, "/a", memory.Kind("two", "", 2))
        self.assertEqual(self.seen, [b"/a"] * 3)

    def test_a_denial_makes_no_bucket(self):
        with self.assertRaisesRegex(Failed, "429"):
            memory.use(self.gateway(429), "/a", memory.Kind("one", ""))
