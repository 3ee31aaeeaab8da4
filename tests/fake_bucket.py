"""A bucket of Google Cloud Storage on this machine, which can be told to fail.

TensorFlow speaks to www.googleapis.com and storage.googleapis.com alone, so this is an
HTTPS proxy that answers in their place, under a certificate of its own making. Of the
JSON API there is what TensorFlow 2.21 asks: objects are listed, described, read by
range, uploaded resumably, copied and removed.
"""

import collections
import hashlib
import http.server
import json
import pathlib
import re
import socket
import socketserver
import ssl
import struct
import threading
import urllib.parse

import trustme

HOSTS = ("www.googleapis.com", "storage.googleapis.com")


class Bucket:
    """The objects of all buckets, and what goes wrong with the next requests.

    Attributes:
      objects: content by "bucket/name".
      faults: by a regular expression of "METHOD path", what the next such requests
        get, one after the other: an HTTP status, or "reset".
      answered: how often each fault was given.
      requests: "METHOD path" of all, in order.
    """

    def __init__(self, directory: pathlib.Path):
        self.objects: dict[str, bytes] = {}
        self.faults: dict[str, list[int | str]] = {}
        self.answered: collections.Counter[int | str] = collections.Counter()
        self.requests: list[str] = []
        authority = trustme.CA()
        authority.cert_pem.write_to_path(directory / "ca.pem")
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(*HOSTS).configure_cert(self._tls)
        bucket, self._lock = self, threading.Lock()

        class Handler(_Handler):
            def __init__(self, *args):
                self.bucket, self.tls = bucket, bucket._tls
                super().__init__(*args)

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.environment = {
            "https_proxy": f"http://127.0.0.1:{self._server.server_address[1]}",
            "no_proxy": "localhost,127.0.0.1",
            "CURL_CA_BUNDLE": str(directory / "ca.pem"),
            "TMPDIR": str(directory),  # for scratch files, named after the URL alone
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "a-token",
            "GCS_READ_CACHE_MAX_SIZE_MB": "0",
            "GCS_STAT_CACHE_MAX_AGE": "0",
            "GCS_MATCHING_PATHS_CACHE_MAX_AGE": "0",
            # TensorFlow's own attempts would hide ours.
            "GCS_RETRY_CONFIG_MAX_RETRIES": "0",
        }

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    def fault(self, request: str) -> int | str | None:
        """Returns what a request gets in place of an answer, if anything."""
        with self._lock:
            self.requests.append(request)
            for pattern, left in self.faults.items():
                if left and re.search(pattern, request):
                    self.answered[left[0]] += 1
                    return left.pop(0)
        return None


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass  # connections that were reset


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    bucket: Bucket
    tls: ssl.SSLContext

    def log_message(self, format, *args):
        pass

    def do_CONNECT(self):
        if self.path.partition(":")[0] not in HOSTS:
            return self._answer(502)
        self.send_response(200)
        self.end_headers()
        self.connection = self.request = self.tls.wrap_socket(
            self.connection, server_side=True
        )
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb", 0)
        self.close_connection = False

    def _dispatch(self):
        body = self._body()
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        fault = self.bucket.fault(f"{self.command} {self.path}")
        if fault == "reset":
            linger = struct.pack("ii", 1, 0)  # the next close sends RST
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.close_connection = True
            socket.close(self.connection.detach())
        elif fault is not None:
            self._json({"error": {"code": fault, "message": "made up"}}, int(fault))
        else:
            self._serve(url.path, query, body)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    do_GET = do_POST = do_PUT = do_DELETE = _dispatch

    def _serve(self, path: str, query: dict[str, str], body: bytes):
        objects = self.bucket.objects
        if upload := re.fullmatch(r"/upload/storage/v1/b/([^/]+)/o", path):
            name = f"{upload[1]}/{query['name']}"
            if self.command == "POST" and query["uploadType"] == "resumable":
                place = (
                    f"https://www.googleapis.com{path}?{urllib.parse.urlencode(query)}"
                )
                return self._answer(200, headers={"Location": place})
            objects[name] = body
            return self._json(self._described(name))
        if listed := re.fullmatch(r"/storage/v1/b/([^/]+)/o", path):
            return self._json(self._list(listed[1], query))
        if bucket := re.fullmatch(r"/storage/v1/b/([^/]+)/?", path):
            return self._json({"name": bucket[1], "location": "HERE"})
        copy = re.fullmatch(
            r"/storage/v1/b/([^/]+)/o/([^/]+)/rewriteTo/b/([^/]+)/o/([^/]+)", path
        )
        if copy:
            source, target = (
                f"{copy[i]}/{urllib.parse.unquote(copy[i + 1])}" for i in (1, 3)
            )
            if source not in objects:
                return self._json({}, 404)
            objects[target] = objects[source]
            return self._json({"done": True, "resource": self._described(target)})
        named = re.fullmatch(r"/storage/v1/b/([^/]+)/o/([^/]+)", path)
        name = f"{named[1]}/{named[2]}" if named else path.removeprefix("/")
        name = urllib.parse.unquote(name)
        if name not in objects:
            return self._json({"error": {"code": 404}}, 404)
        if self.command == "DELETE":
            del objects[name]
            return self._answer(204)
        if named and query.get("alt") != "media":
            return self._json(self._described(name))
        return self._range(objects[name])

    def _range(self, content: bytes):
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        if not asked:
            return self._answer(200, content)
        first, last = int(asked[1]), int(asked[2])
        if first >= len(content):
            return self._answer(416)
        return self._answer(206, content[first : last + 1])

    def _list(self, bucket: str, query: dict[str, str]) -> dict:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        items, prefixes = [], set()
        for name in sorted(self.bucket.objects):
            if not name.startswith(f"{bucket}/{prefix}"):
                continue
            rest = name.removeprefix(f"{bucket}/{prefix}")
            if delimiter and delimiter in rest:
                prefixes.add(prefix + rest.partition(delimiter)[0] + delimiter)
            else:
                items.append(self._described(name))
        most = int(query.get("maxResults", 1000))
        return {"items": items[:most], "prefixes": sorted(prefixes)}

    def _described(self, name: str) -> dict:
        content = self.bucket.objects[name]
        generation = int(hashlib.sha256(content).hexdigest()[:12], 16)
        return {
            "name": name.partition("/")[2],
            "size": str(len(content)),
            "generation": str(generation),
            "updated": "2026-01-01T00:00:00.000Z",
        }

    def _json(self, value: dict, status: int = 200):
        self._answer(status, json.dumps(value).encode())

    def _answer(self, status: int, body: bytes = b"", headers: dict | None = None):
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
