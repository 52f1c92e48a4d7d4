"""A server on this machine that behaves as badly as real ones do."""

import threading
from collections.abc import Collection, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class Server(ThreadingHTTPServer):
    """Serves `files`, their content by name, in a `with` block, and keeps the requests.

    Args:
        cut: bytes at most in the first answer.
        resumes: whether it knows ranges.
        status: of every answer, instead of a file.
        no_head: names of which it refuses to send the size alone.
    """

    def __init__(
        self,
        files: Mapping[str, bytes],
        cut: int | None = None,
        resumes: bool = True,
        status: int | None = None,
        no_head: Collection[str] = (),
    ) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.cut, self.resumes, self.status = dict(files), cut, resumes, status
        self.no_head = no_head
        self.asked: list[tuple[str, str]] = []
        self.ranges: list[str | None] = []

    def __enter__(self) -> "Server":
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    @property
    def url(self) -> str:
        """The address of all files together."""
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    """Answers of a `Server`."""

    server: Server

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self.answer(with_content=False)

    def do_GET(self) -> None:
        self.answer(with_content=True)

    def answer(self, with_content: bool) -> None:
        """Send a file, the rest of it, or a status."""
        server, name = self.server, urlsplit(self.path).path.lstrip("/")
        wanted = self.headers.get("Range")
        server.asked.append((self.command, name))
        server.ranges.append(wanted)
        content = server.files.get(name)
        refused = 405 if not with_content and name in server.no_head else None
        if status := server.status or refused or (404 if content is None else None):
            self.send_error(status)
            return
        size = len(content)
        start = int(wanted[6:-1]) if wanted and server.resumes else 0
        if wanted and start >= size:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{size}")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
        self.send_header("Content-Length", str(size - start))
        self.end_headers()
        if with_content:
            end, server.cut = server.cut or size, None
            self.wfile.write(content[start:end])
