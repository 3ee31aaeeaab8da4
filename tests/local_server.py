"""HTTP servers on this machine, in place of services that tests cannot call."""

import http.server
import sys
import threading


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a body would wait 40 ms for an ACK

    def log_message(self, format, *args):
        pass


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128

    def handle_error(self, request, client_address):
        if not isinstance(sys.exception(), OSError):  # a connection that was reset
            super().handle_error(request, client_address)


class Service:
    """A server that runs in a thread, as a context.

    Attributes:
      url: its address.
    """

    def __init__(self, handler: type[Handler], **attributes):
        """Gives the handlers of requests these attributes."""
        made = type("Handler", (handler,), attributes)
        self._server = _Server(("127.0.0.1", 0), made)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        serve, options = self._server.serve_forever, {"poll_interval": 0.02}
        threading.Thread(target=serve, kwargs=options, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
