# ruff: noqa: E501 - lines of logs stay whole
"""A server that stands in for vLLM: quiet, then it listens, or dies in one of several ways.

Runs alone (``python -S -E _fake.py ...``), with the standard library only, so that it starts in a few
milliseconds. Its standard output is the log. When something happens it writes a line ``NAME SECONDS`` (the
monotonic clock, which Linux and macOS share between processes) to ``--marks``, a file descriptor or a file.
"""

from __future__ import annotations

import argparse
import os
import random
import selectors
import signal
import socket
import sys
import time

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
COMPLETION = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    b'data: {"choices": [{"index": 0, "text": "a"}]}\n\ndata: [DONE]\n\n'
)
LISTENS = "(APIServer pid=1) INFO:     Application startup complete.\n"
STARTED = (
    "(APIServer pid=1) INFO MM-DD HH:MM:SS [api_utils.py:347]   █▄█▀ █     █     █     █  version 0.32.0\n"
)
ROOT = """\
(EngineCore pid=2) ERROR MM-DD HH:MM:SS [core.py:1510] EngineCore failed to start.
(EngineCore pid=2) ERROR MM-DD HH:MM:SS [core.py:1510] Traceback (most recent call last):
(EngineCore pid=2) ERROR MM-DD HH:MM:SS [core.py:1510]   File "/opt/vllm/lib/python3.12/site-packages/vllm/v1/engine/core.py", line 1480, in run_engine_core
(EngineCore pid=2) ERROR MM-DD HH:MM:SS [core.py:1510]     engine_core = EngineCoreProc(*args)
(EngineCore pid=2) ERROR MM-DD HH:MM:SS [core.py:1510] ValueError: To serve at least one request with the model's max seq len (262144), (24.0 GiB KV cache is needed, which is larger than the available KV cache memory (3.18 GiB). Based on the available memory, the estimated maximum model length is 34000. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.
Process EngineCore:
Traceback (most recent call last):
  File "/opt/vllm/lib/python3.12/site-packages/vllm/v1/engine/core.py", line 1480, in run_engine_core
    engine_core = EngineCoreProc(*args)
ValueError: To serve at least one request with the model's max seq len (262144), (24.0 GiB KV cache is needed, which is larger than the available KV cache memory (3.18 GiB). Based on the available memory, the estimated maximum model length is 34000. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.
"""
AFTERMATH = """\
Traceback (most recent call last):
  File "/opt/vllm/bin/vllm", line 6, in <module>
    sys.exit(main())
  File "/opt/vllm/lib/python3.12/site-packages/vllm/v1/engine/utils.py", line 1099, in wait_for_engine_startup
    raise RuntimeError(
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}
"""

NOTICED_S = 0.1  # vLLM's API server needs about this long to see that its engine is gone
LINGERS_S = 1.0  # and some seconds to end after that; one is enough to tell the two apart


def mark(fd: int, name: str) -> None:
    os.write(fd, f"{name} {time.monotonic():.6f}\n".encode())


def marks_to(where: str) -> int:
    """The descriptor of the marks."""
    if where.isdigit():
        return int(where)
    fd = os.open(where, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, f"pid {os.getpid()}\n".encode())
    return fd


def say(text: str) -> None:
    """Print lines, with the present time in their stamps: older ones would be another start's."""
    os.write(1, text.replace("MM-DD HH:MM:SS", time.strftime("%m-%d %H:%M:%S")).encode())


def name_process(name: str) -> None:
    """Take a title as vLLM's processes do, so far as that works without setproctitle."""
    if sys.platform == "linux":
        with open("/proc/self/comm", "w") as comm:  # noqa: PTH123 - pathlib takes 10 ms to import
            comm.write(name)


def fork_workers(count: int) -> list[int]:
    """Start idle processes. They end with this one, by the pipe that it alone holds open."""
    reading, writing = os.pipe()
    os.set_inheritable(writing, False)
    children = []
    for index in range(count):
        child = os.fork()
        if child == 0:
            os.close(writing)
            name_process(f"VLLM::Worker_TP{index}")
            os.read(reading, 1)
            os._exit(0)
        children.append(child)
    os.close(reading)
    return children


def bound(host: str, port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host, port))
    return sock


def answer(connection: socket.socket) -> None:
    """Answer one request; a bare connect sends none."""
    with connection:
        connection.settimeout(1)
        try:
            request = connection.recv(4096)
            if request.startswith(b"POST "):
                connection.sendall(COMPLETION)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):  # a body that is left unread would reset the connection
                    pass
            elif request:
                connection.sendall(ANSWER)
        except OSError:
            pass


def serve(options: argparse.Namespace) -> None:
    """Be quiet for ``--after`` seconds, then listen and answer."""
    fork_workers(options.processes - 1)
    say(STARTED)
    sock = bound(options.host, options.port)
    time.sleep(options.after)
    if options.announce:
        say(LISTENS)
    sock.listen(64)
    mark(options.marks, "listening")
    while True:
        answer(sock.accept()[0])


def die(options: argparse.Namespace) -> None:
    """Be quiet for ``--after`` seconds, then end, or fail and live on."""
    say(STARTED)
    if options.how in ("aftermath", "alive"):
        fail(options)
        return
    time.sleep(options.after)
    mark(options.marks, "gone")
    if options.how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(int(options.how.removeprefix("exit_")))


def fail(options: argparse.Namespace) -> None:
    engine = os.fork()
    if engine == 0:
        name_process("VLLM::EngineCore")
        time.sleep(options.after)
        say(ROOT)
        mark(options.marks, "decisive")
        os._exit(1)
    os.waitpid(engine, 0)
    time.sleep(NOTICED_S)
    say(AFTERMATH)
    mark(options.marks, "aftermath")
    if options.how == "alive":
        time.sleep(3600)
    time.sleep(LINGERS_S)
    mark(options.marks, "gone")
    os._exit(1)


def many(options: argparse.Namespace) -> None:
    """Bind ``--count`` ports and tell which; after SIGUSR1, listen on each at a moment of its own."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    draw = random.Random(options.seed)
    socks = [bound(options.host, 0) for _ in range(options.count)]
    os.write(options.marks, f"ports {' '.join(str(sock.getsockname()[1]) for sock in socks)}\n".encode())
    signal.sigwait({signal.SIGUSR1})
    began = time.monotonic()
    due = sorted((began + draw.uniform(0, options.spread), i) for i in range(options.count))
    ready = selectors.DefaultSelector()
    while True:
        while due and due[0][0] <= time.monotonic():
            sock = socks[due.pop(0)[1]]
            sock.listen(64)
            sock.setblocking(False)
            mark(options.marks, str(sock.getsockname()[1]))
            ready.register(sock, selectors.EVENT_READ)
        wait_s = max(0.0, due[0][0] - time.monotonic()) if due else None
        for key, _ in ready.select(wait_s) if ready.get_map() else _asleep(wait_s):
            handle(ready, key)


def _asleep(wait_s: float | None) -> list[tuple[selectors.SelectorKey, int]]:
    time.sleep(60 if wait_s is None else wait_s)
    return []


def handle(ready: selectors.DefaultSelector, key: selectors.SelectorKey) -> None:
    """Take a connection, or answer the request on one; none may hold up the others."""
    sock = key.fileobj
    assert isinstance(sock, socket.socket)
    if key.data is None:
        try:
            connection, _ = sock.accept()
        except OSError:
            return
        ready.register(connection, selectors.EVENT_READ, "connection")
        return
    ready.unregister(sock)
    answer(sock)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=("serve", "die", "many"))
    parser.add_argument("--marks", type=marks_to, default=2, help="a file gets the process's id first")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--after", type=float, default=1.0)
    parser.add_argument("--spread", type=float, default=0.0)
    parser.add_argument("--announce", action="store_true", help="print the line that says so, then listen")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--how", choices=("exit_1", "exit_0", "kill", "aftermath", "alive"), default="exit_1")
    options = parser.parse_args()
    {"serve": serve, "die": die, "many": many}[options.role](options)


if __name__ == "__main__":
    main()
