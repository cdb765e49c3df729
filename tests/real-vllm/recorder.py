"""A relay in front of an engine that keeps the bodies of generation requests as they arrived."""

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# Headers of one connection, and those that the relay's own client writes.
NOT_FORWARDED = {"host", "connection", "content-length", "accept-encoding"}


class Recorder(ThreadingHTTPServer):
    """Listens on a free port of loopback; `with` ends it."""

    daemon_threads = True

    def __init__(self, engine_address):
        super().__init__(("127.0.0.1", 0), Handler)
        self.engine_address = engine_address
        # Path and body.
        self.requests = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.forward(None)

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.path in ("/v1/chat/completions", "/v1/completions"):
            self.server.requests.append((self.path, body))
        self.forward(body)

    def forward(self, body):
        """Sends the reply once it is whole."""
        headers = {name: value for name, value in self.headers.items() if name.lower() not in NOT_FORWARDED}
        connection = http.client.HTTPConnection(self.server.engine_address, timeout=120)
        try:
            connection.request(self.command, self.path, body, headers)
            reply = connection.getresponse()
            content = reply.read()
        except (OSError, http.client.HTTPException):
            # As if the engine had closed the connection itself.
            self.close_connection = True
            return
        finally:
            connection.close()
        self.send_response(reply.status)
        self.send_header("content-type", reply.getheader("content-type", "application/octet-stream"))
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        try:
            self.wfile.write(content)
        except OSError:
            self.close_connection = True

    def log_message(self, *_):
        pass
