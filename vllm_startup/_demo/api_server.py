"""The simulated main process: binds at once, listens last, and ends the others."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import signal
import socket
import tempfile
import time
from typing import IO, Final, cast

import attrs

from vllm_startup._demo.printing import BANNER, Printer
from vllm_startup._demo.processes import Child, all_done
from vllm_startup._demo.settings import SHARD_BYTES, SHARDS, Settings

_ROUTES: Final = ("/health, Methods: GET", "/v1/models, Methods: GET", "/v1/completions, Methods: POST")
_BIND_FRAMES: Final = (
    "entrypoints/launchers/api_server/entry.py|176|run_server|listen_address, sock = setup_server(args)",
    "entrypoints/launchers/launcher.py|348|create_server_socket|sock.bind(addr)",
)
_START_FRAMES: Final = (
    "entrypoints/cli/serve.py|156|cmd|uvloop.run(run_server(args))",
    "v1/engine/async_llm.py|184|__init__|self.engine_core = EngineCoreClient.make_async_mp_client(",
    "v1/engine/utils.py|1431|wait_for_engine_startup|raise RuntimeError(",
)
_ENGINE_END_S: Final = 5.0
_BACKLOG: Final = 2048  # uvicorn's


def run(settings: Settings) -> int:
    """Be the server until it is asked to end; return its exit status."""
    server = _Server(settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, server.stop)
    try:
        return server.run()
    except _Stopped as stopped:
        return server.shut_down(stopped.number)


class _Stopped(BaseException):
    """It was asked to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _Server:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._old = settings.version < "0.31"
        self._printer = Printer("APIServer", settings.version)
        self._engine: Child | None = None
        self._serving = False

    def run(self) -> int:
        """Start, and serve."""
        self._settings.rest(0.5)
        self._introduce()
        family = socket.AF_INET6 if ":" in self._settings.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((self._settings.host, self._settings.port))
        except OSError as error:
            return self._fail_to_bind(error)
        self._configure()
        with _weights() as weights:
            self._engine = Child(attrs.evolve(self._settings, role="engine", weights=weights.fileno()))
            if not all_done([self._engine]):
                return self._fail(self._engine)
        self._announce()
        try:
            listener.listen(_BACKLOG)
        except OSError as error:  # somebody else was bound to it too, and listened first
            return self._fail_to_bind(error)
        with _HttpServer(listener, self._settings) as server:
            self._serving = True
            server.serve_forever()
        return 0

    def stop(self, number: int, _: object) -> None:
        """Leave whatever is being done, once."""
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
        raise _Stopped(number)

    def shut_down(self, number: int) -> int:
        """End in good order; while it starts, with vLLM's traceback."""
        if not self._serving:
            what = "KeyboardInterrupt: terminated" if number == signal.SIGTERM else "KeyboardInterrupt"
            self._printer.traceback(None, "", what, *_START_FRAMES[:2])
            self._end_engine()
            return 1
        self._printer.record("launcher.py:254", "[shutdown] API server: shutdown triggered")
        self._end_engine()
        self._printer.plain("INFO:     Shutting down\nINFO:     Application shutdown complete.")
        return 0

    def _end_engine(self) -> None:
        if self._engine is not None:
            self._engine.let_go()
            with contextlib.suppress(Exception):
                self._engine.process.wait(_ENGINE_END_S)

    def _introduce(self) -> None:
        settings, place = self._settings, "utils.py" if self._old else "api_utils.py"
        banner = "\n".join(BANNER).format(version=settings.version, model=settings.model)
        self._printer.record(f"{place}:302", banner)
        given = f"{{'model_tag': '{settings.model}', 'port': {settings.port}, 'tensor_parallel_size': 2}}"
        self._printer.record(f"{place}:238", f"non-default args: {given}")

    def _configure(self) -> None:
        self._settings.rest(0.3)
        self._printer.record("model.py:733", "Resolved architecture: Qwen3ForCausalLM")
        self._printer.record("model.py:2152", "Using max model len 40960")
        self._printer.record(
            "scheduler.py:307", "Chunked prefill is enabled with max_num_batched_tokens=8192."
        )
        self._settings.rest(0.3)

    def _announce(self) -> None:
        printer, settings = self._printer, self._settings
        printer.record("entry.py:136", "Supported tasks: ['generate']")
        settings.rest(0.3)
        name = "vLLM API server 0" if self._old else "vLLM server"
        host = settings.host or "0.0.0.0"
        printer.record("entry.py:140", f"Starting {name} on http://{host}:{settings.port}")
        printer.record("launcher.py:186", "Available routes are:")
        for route in _ROUTES:
            printer.record("launcher.py:195", f"Route: {route}")
        printer.plain(f"INFO:     Started server process [{os.getpid()}]")
        printer.plain("INFO:     Waiting for application startup.")
        settings.rest(0.2)
        printer.plain("INFO:     Application startup complete.")

    def _fail_to_bind(self, error: OSError) -> int:
        text = f"OSError: [Errno {error.errno}] {os.strerror(error.errno or 0)}"
        self._printer.traceback(None, "", text, *_BIND_FRAMES)
        return 1

    def _fail(self, engine: Child) -> int:
        status = engine.process.wait()
        self._settings.rest(0.5)
        name = "EngineCore_DP0" if self._old else "EngineCore"
        self._printer.traceback(
            None,
            "",
            "RuntimeError: Engine core initialization failed. See root cause above."
            f" Failed core proc(s): {{'{name}': {status}}}",
            *_START_FRAMES,
        )
        return 1


def _weights() -> IO[bytes]:
    """The checkpoint: a file without a name, so that nothing is left of it whatever happens."""
    file = tempfile.TemporaryFile(prefix="vllm-startup-demo-")  # noqa: SIM115 - the caller's to close
    for _ in range(SHARDS):
        file.write(os.urandom(1024) * (SHARD_BYTES // 1024))
    file.flush()
    os.fsync(file.fileno())  # what is not on storage cannot be read from it
    return file


class _HttpServer(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, listener: socket.socket, settings: Settings) -> None:
        super().__init__((settings.host, settings.port), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.settings = settings


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def _settings(self) -> Settings:
        return cast("_HttpServer", self.server).settings

    def do_GET(self) -> None:
        model = self._settings.model
        match self.path:
            case "/health" | "/ping":
                self._answer(200, b"")
            case "/version":
                self._answer(200, {"version": self._settings.version})
            case "/v1/models":
                card = {
                    "id": model,
                    "object": "model",
                    "owned_by": "vllm",
                    "root": model,
                    "max_model_len": 40960,
                }
                self._answer(200, {"object": "list", "data": [card]})
            case _:
                self._answer(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        request = self._request()
        model = self._settings.model
        if self.path != "/v1/completions":
            self._answer(404, {"detail": "Not Found"})
        elif request.get("model", model) != model:
            text = f"The model `{request['model']}` does not exist."
            self._answer(404, {"error": {"message": text, "type": "NotFoundError", "code": 404}})
        else:
            choice = {"index": 0, "text": " simulated", "logprobs": None, "finish_reason": "length"}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            head = {"id": "cmpl-1", "object": "text_completion", "created": int(time.time()), "model": model}
            self._answer(200, {**head, "choices": [choice], "usage": usage})

    def _request(self) -> dict[str, object]:
        try:
            found = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def _answer(self, status: int, body: dict[str, object] | bytes) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - http.server's name
        """Print what uvicorn's access log does."""
        client = f"{self.client_address[0]}:{self.client_address[1]}"
        print(f'INFO:     {client} - "{self.requestline}" {arguments[1]} OK', flush=True)  # noqa: T201
