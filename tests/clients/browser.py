# SPDX-License-Identifier: Apache-2.0
"""Serves a page with transformers.js and an exported folder to a real browser, and waits for what the page posts."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

HERE = Path(__file__).parent
PAGE = "transformers_js.html"

#: Seconds that the page may take: it reads 90 MB of weights and compiles 20 MB of WASM.
PATIENCE = 240


def embed(browser: list[str], folder: Path, texts: list[str]) -> list[list[float]]:
    """The vectors of texts, by an exported folder in a page.

    Args:
        browser: Command of the browser, without the address.
        folder: An artifact made for transformers.js.
        texts: What to embed.
    """
    results: Queue[dict[str, Any]] = Queue()
    with _served(folder, {"name": folder.name, "texts": texts}, results) as address, _open(browser, address) as process:
        for _ in range(PATIENCE):
            try:
                result = results.get(timeout=1)
                break
            except Empty:
                assert process.poll() is None, "the browser ended before the page was done"
        else:
            raise AssertionError(f"the page gave nothing within {PATIENCE} s")
    assert "error" not in result, result["error"]
    vectors: list[list[float]] = result["vectors"]
    return vectors


@contextmanager
def _open(browser: list[str], address: str) -> Iterator[subprocess.Popen[bytes]]:
    # With a port for debugging a headless browser keeps its page open until it is told to end.
    command = [*browser, "--remote-debugging-port=0", address]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.terminate()


@contextmanager
def _served(folder: Path, order: dict[str, Any], results: Queue[dict[str, Any]]) -> Iterator[str]:
    class Handler(SimpleHTTPRequestHandler):
        def translate_path(self, path: str) -> str:
            wanted = Path(unquote(urlsplit(path).path).lstrip("/"))
            root = folder.parent if wanted.parts[:1] == ("models",) else HERE
            return str(root / Path(*wanted.parts[1:]) if root != HERE else root / wanted)

        def do_GET(self) -> None:
            if self.path == "/order.json":
                self._answer(json.dumps(order).encode())
            else:
                super().do_GET()

        def do_POST(self) -> None:
            results.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self._answer(b"{}")

        def log_message(self, *_: Any) -> None:
            """Nothing: a test that fails says what the page posted."""

        def _answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/{PAGE}"
        finally:
            server.shutdown()
