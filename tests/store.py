"""An object store on this machine for tests: moto's server, and a gate in front of it that cuts connections.

Both listen on loopback only. The server is a process of its own: within one process it waits for the interpreter's
lock while a destructor of pyarrow's holds it and waits for the server.
"""

import socket
import socketserver
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.fs

HOST = "127.0.0.1"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test-key",
    "AWS_SECRET_ACCESS_KEY": "test-secret",
}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


@contextmanager
def moto_server() -> Iterator[int]:
    """The port of a running, empty store."""
    port = free_port()
    with subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as server:
        try:
            wait_until_it_answers(port, server)
            yield port
        finally:
            server.kill()


def wait_until_it_answers(port: int, server: "subprocess.Popen[bytes]") -> None:
    give_up = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{port}/moto-api/", timeout=5):
                return
        except OSError:
            assert server.poll() is None, "the server ended"
            assert time.monotonic() < give_up, "the server does not answer"
            time.sleep(0.1)


def filesystem(port: int) -> pa.fs.S3FileSystem:
    """The store past all gates, for looking at what is in it."""
    return pa.fs.S3FileSystem(
        access_key="test-key",
        secret_key="test-secret",
        endpoint_override=f"{HOST}:{port}",
        scheme="http",
        region="us-east-1",
        allow_bucket_creation=True,
    )


@dataclass
class Gate:
    """Passes connections on to a server, until a request comes that it does not let through; then nothing passes.

    Attributes:
        server_port: of the server behind it.
        stops: is asked about each request's head (``b"PUT /bucket/key?partNumber=1 …"``); True closes the gate.
        heads: first lines of the requests seen.
        is_closed: whether connections are dropped; may be set and reset at any time.
    """

    server_port: int
    stops: Callable[[bytes], bool] = lambda head: False
    heads: list[bytes] = field(default_factory=list)
    is_closed: bool = False

    def lets_pass(self, data: bytes) -> bool:
        method, _, _ = data.partition(b" ")
        if method in (b"GET", b"HEAD", b"PUT", b"POST", b"DELETE"):
            head, _, _ = data.partition(b"\r\n")
            self.heads.append(head)
            self.is_closed = self.is_closed or self.stops(head)
        return not self.is_closed


@contextmanager
def gate_before(server_port: int) -> Iterator[tuple[int, Gate]]:
    """The port of a gate, and the gate."""
    gate = Gate(server_port)

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection((HOST, server_port)) as server:
                back = threading.Thread(target=pump, args=(server, self.request, lambda _: True), daemon=True)
                back.start()
                pump(self.request, server, gate.lets_pass)
                back.join()

    with socketserver.ThreadingTCPServer((HOST, 0), Handler) as listener:
        listener.daemon_threads = True
        thread = threading.Thread(target=listener.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield listener.server_address[1], gate
        listener.shutdown()


def pump(source: socket.socket, target: socket.socket, lets_pass: Callable[[bytes], bool]) -> None:
    """Copy bytes from one connection to another until either ends or the gate closes; then end both."""
    with suppress(OSError):
        while (data := source.recv(1 << 16)) and lets_pass(data):
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
