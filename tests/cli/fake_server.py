"""A program that behaves like a vLLM server that starts: it prints, then listens, or ends.

    fake_server.py SCRIPT [vllm serve ...]

SCRIPT is JSON: ``hold`` (whether to wait for a line on standard input first), ``lines`` (the text to
print, with the time of now in place of its own), ``listen`` (whether to answer at the end), ``exit``
(a status to end with instead). The port stands behind ``--port``.
"""

from __future__ import annotations

import http.server
import json
import re
import sys
import time


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        known = {"/health": b"", "/v1/models": json.dumps({"data": [{"id": "tiny"}]}).encode()}
        body = known.get(self.path, b"")
        self.send_response(200 if self.path in known else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    script = json.loads(sys.argv[1])
    if script["hold"]:
        sys.stdin.readline()
    for text in script["lines"]:
        time.sleep(0.02)
        print(re.sub(r"\d\d-\d\d \d\d:\d\d:\d\d", time.strftime("%m-%d %H:%M:%S"), text), flush=True)
    if script["listen"]:
        port = int(sys.argv[sys.argv.index("--port") + 1])
        http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
    if script["exit"] is not None:
        sys.exit(script["exit"])
    time.sleep(60)


main()
