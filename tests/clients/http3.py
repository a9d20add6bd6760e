"""Clients of HTTP/3. They do not look at certificates, which are made for each test."""

import asyncio
import ssl
from urllib.parse import urlsplit


def curl(url):
    from curl_cffi import requests
    from curl_cffi.const import CurlHttpVersion

    session = requests.Session(verify=False)

    def send():
        session.get(url, http_version=CurlHttpVersion.V3ONLY).raise_for_status()

    return send


def aioquic(url):
    """Each request on a connection of its own; from the second on as early data."""
    tickets, tokens = [], []
    return lambda: asyncio.run(exchange(urlsplit(url), tickets, tokens))


async def exchange(url, tickets, tokens):
    from aioquic.asyncio.client import connect
    from aioquic.asyncio.protocol import QuicConnectionProtocol
    from aioquic.h3.connection import H3_ALPN, H3Connection
    from aioquic.h3.events import HeadersReceived
    from aioquic.quic.configuration import QuicConfiguration

    class Client(QuicConnectionProtocol):
        def begin(self):
            self.http = H3Connection(self._quic)
            self.status = asyncio.get_running_loop().create_future()
            stream = self._quic.get_next_available_stream_id()
            head = {":method": "GET", ":scheme": "https", ":authority": url.netloc, ":path": "/"}
            fields = [(name.encode(), value.encode()) for name, value in head.items()]
            self.http.send_headers(stream, fields, end_stream=True)
            self.transmit()

        def quic_event_received(self, event):
            for found in self.http.handle_event(event):
                if isinstance(found, HeadersReceived) and not self.status.done():
                    self.status.set_result(int(dict(found.headers)[b":status"]))

    configuration = QuicConfiguration(alpn_protocols=H3_ALPN, verify_mode=ssl.CERT_NONE)
    is_early = bool(tickets and tokens)
    if is_early:
        configuration.session_ticket, configuration.token = tickets.pop(), tokens.pop()
    connecting = connect(
        url.hostname,
        url.port,
        configuration=configuration,
        create_protocol=Client,
        session_ticket_handler=tickets.append,
        token_handler=tokens.append,
        wait_connected=False,
    )
    async with connecting as client:
        client.begin()
        if not is_early:
            await client.wait_connected()
        status = await asyncio.wait_for(client.status, 20)
        await client.ping()
    if status != 200:
        raise RuntimeError(f"status {status}")
    if is_early and not client._quic.tls.early_data_accepted:
        raise RuntimeError("the early data was not accepted")
