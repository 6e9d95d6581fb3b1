"""A server's stand-in: does what standard input tells it, one JSON array a line, and answers each.

Run with ``python -I -S``, it is there in 20 ms. When its input ends, so does it.
"""

import contextlib
import json
import os
import socket
import sys
import threading
import time

HEALTHY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
REDIRECT = b"HTTP/1.1 307 Temporary Redirect\r\nLocation: /health\r\nContent-Length: 0\r\n\r\n"
PAGE = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>"


def drip(to, data, pause_s):
    for number in range(len(data)):
        to.sendall(data[number : number + 1])
        time.sleep(pause_s)


def endless(to):
    to.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
    while True:
        to.sendall(b"a" * 65536)


def endless_head(to):
    to.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        to.sendall(b"X: " + b"a" * 65536 + b"\r\n")


ANSWERS = {
    "healthy": lambda to: to.sendall(HEALTHY),
    "unhealthy": lambda to: to.sendall(HEALTHY.replace(b"200 OK", b"503 Service Unavailable")),
    "slow_loris": lambda to: drip(to, HEALTHY, 0.2),
    "one_byte_pieces": lambda to: drip(to, HEALTHY, 0.001),
    "endless_body": endless,
    "endless_head": endless_head,
    "redirect_loop": lambda to: to.sendall(REDIRECT),
    "page": lambda to: to.sendall(PAGE),
    "tls_garbage": lambda to: to.sendall(b"\x15\x03\x03\x00\x02\x02\x28" + bytes(range(256))),
    "hostile": lambda to: to.sendall(
        b"HTTP/1.1 500 \x1b[2J\x07\r\nContent-Type: text/plain\r\n\r\n"
        b'\x1b]0;pwned\x07\x1b[31m"}\xe2\x80\xaegnp.exe <script>`reboot`;$(reboot)'
    ),
    "silence": lambda to: time.sleep(60),
    "hangs_up": lambda to: None,
}


class Server:
    def __init__(self, log):
        self.path = log
        self.out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.answer = "healthy"
        self.listening = None
        self.unwritten = b""

    def say(self, *lines):
        data = memoryview(self.unwritten + "".join(f"{line}\n" for line in lines).encode())
        self.unwritten = b""
        while data:
            data = data[os.write(self.out, data) :]

    def try_to_say(self, line):
        """Write what the disk has room for; the rest comes before the next line. Returns its size."""
        data = self.unwritten or f"{line}\n".encode()
        try:
            written = os.write(self.out, data)
        except OSError:
            return 0
        self.unwritten = data[written:]
        return written

    def flood(self, lines_s, seconds):
        """Write so many lines a second, numbered, until the time is up; returns how many."""
        began, said = time.monotonic(), 0
        while (now := time.monotonic()) - began < seconds:
            due = int((now - began) * lines_s)
            self.say(*(f"(EngineCore pid=2) INFO flood {number}" for number in range(said, due)))
            said = due
            time.sleep(0.005)
        return said

    def reopen(self):
        os.close(self.out)
        self.out = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def bind(self, port):
        """Take the port without listening, as vLLM does at its very beginning."""
        self.listening = socket.socket()
        self.listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listening.bind(("127.0.0.1", port))

    def listen(self, port, answer="healthy"):
        self.answer = answer
        if self.listening is None:
            self.bind(port)
        self.listening.listen(64)
        threading.Thread(target=self.accept, args=(self.listening,), daemon=True).start()

    def answering(self, answer):
        self.answer = answer

    def let_go(self):
        self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()
        self.listening = None

    def accept(self, listening):
        with contextlib.suppress(OSError):
            while True:
                client, _ = listening.accept()
                threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        with contextlib.suppress(OSError), client:
            while client.recv(65536):
                ANSWERS[self.answer](client)
                if self.answer not in ("healthy", "one_byte_pieces"):
                    return

    def exit(self, status):
        os._exit(status)


if __name__ == "__main__":
    server = Server(sys.argv[1])
    print(json.dumps(None), flush=True)
    for command in sys.stdin:
        name, arguments = json.loads(command)
        print(json.dumps(getattr(server, name)(*arguments)), flush=True)
