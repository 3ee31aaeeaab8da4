"""A bucket of Google Cloud Storage on this machine, which can be told to fail.

It has the part of the JSON API that gcsfs, google-cloud-storage and TensorStore use:
objects are listed, described, read by range, uploaded at once or resumably, copied and
removed, with preconditions on their generation.
"""

import base64
import collections
import hashlib
import json
import re
import socket
import struct
import threading
import time
import urllib.parse

from tests import local_server


class Bucket(local_server.Service):
    """The objects of all buckets, and what goes wrong with the next requests.

    Attributes:
      objects: content by "bucket/name".
      faults: by a regular expression of "METHOD path", what the next such requests
        get, one after the other: an HTTP status, or "reset".
      answered: how often each fault was given.
      requests: "METHOD path" of all, in order.
      delay: seconds before each answer.
    """

    def __init__(self, *names: str):
        """Creates empty buckets."""
        super().__init__(_Handler, bucket=self)
        self.names = set(names)
        self.objects: dict[str, bytes] = {}
        self.generations: dict[str, int] = {}
        self.uploads: dict[str, tuple[str, dict, bytearray]] = {}
        self.faults: dict[str, list[int | str]] = {}
        self.answered: collections.Counter[int | str] = collections.Counter()
        self.requests: list[str] = []
        self.delay = 0.0
        self._lock = threading.Lock()
        self.environment = {
            "STORAGE_EMULATOR_HOST": self.url,  # gcsfs, google-cloud-storage
            "TENSORSTORE_GCS_HTTP_URL": self.url,
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "a-token",
        }

    def put(self, name: str, content: bytes, condition: str | None = None) -> bool:
        """Writes an object; returns False if its generation is not `condition`."""
        with self._lock:
            now = self.generations.get(name, 0) if name in self.objects else 0
            if condition is not None and int(condition) != now:
                return False
            self.objects[name] = content
            self.generations[name] = time.time_ns() // 1000
            return True

    def fault(self, request: str) -> int | str | None:
        """Returns what a request gets in place of an answer, if anything."""
        with self._lock:
            self.requests.append(request)
            for pattern, left in self.faults.items():
                if left and re.search(pattern, request):
                    self.answered[left[0]] += 1
                    return left.pop(0)
        return None


class _Handler(local_server.Handler):
    bucket: Bucket

    def _dispatch(self):
        body = self._body()
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        time.sleep(self.bucket.delay)
        request = f"{self.command} {self.path}"
        if query.get("uploadType") == "multipart":  # its name is in the body
            found = re.search(rb'"name": ?"([^"]+)"', body)
            name = found[1].decode() if found else ""
            request += f"&name={urllib.parse.quote(name, safe='')}"
        fault = self.bucket.fault(request)
        if fault == "reset":
            linger = struct.pack("ii", 1, 0)  # the next close sends RST
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.close_connection = True
            socket.close(self.connection.detach())
        elif fault is not None:
            self._error(int(fault))
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
        path = re.sub("^/download", "", path)
        if upload := re.fullmatch(r"/upload/storage/v1/b/([^/]+)/o", path):
            return self._upload(upload[1], query, body)
        if listed := re.fullmatch(r"/storage/v1/b/([^/]+)/o/?", path):
            if listed[1] not in self.bucket.names:
                return self._error(404)
            return self._json(self._list(listed[1], query))
        if found := re.fullmatch(r"/storage/v1/b/([^/]+)/?", path):
            if found[1] not in self.bucket.names:
                return self._error(404)
            return self._json({"name": found[1], "location": "HERE"})
        copy = re.fullmatch(
            r"/storage/v1/b/([^/]+)/o/([^/]+)/rewriteTo/b/([^/]+)/o/([^/]+)", path
        )
        if copy:
            source, target = (
                f"{copy[i]}/{urllib.parse.unquote(copy[i + 1])}" for i in (1, 3)
            )
            if source not in objects:
                return self._error(404)
            self.bucket.put(target, objects[source])
            return self._json({"done": True, "resource": self._described(target)})
        named = re.fullmatch(r"/storage/v1/b/([^/]+)/o/([^/]+)", path)
        name = urllib.parse.unquote(f"{named[1]}/{named[2]}") if named else ""
        if name not in objects:
            return self._error(404)
        if self.command == "DELETE":
            objects.pop(name, None)
            return self._answer(204)
        if query.get("alt") != "media":
            return self._json(self._described(name))
        return self._range(name)

    def _upload(self, bucket: str, query: dict[str, str], body: bytes):
        if bucket not in self.bucket.names:
            return self._error(404)
        if key := query.get("upload_id"):  # the next part of a resumable upload
            name, query, parts = self.bucket.uploads[key]
            parts += body
            range_, total = (self.headers.get("Content-Range") or "/*").split("/")
            if total == "*":
                return self._answer(308, headers={"Range": f"bytes=0-{len(parts) - 1}"})
            del self.bucket.uploads[key]
            return self._put(name, bytes(parts), query)
        kind = query["uploadType"]
        if kind == "media":
            return self._put(f"{bucket}/{query['name']}", body, query)
        if kind == "multipart":
            # A boundary, JSON, a boundary, the content, a boundary.
            boundary = re.search(
                r"boundary=['\"]?([^'\";]+)", self.headers["Content-Type"]
            )
            assert boundary
            _, head, content, *_ = body.split(f"--{boundary[1]}".encode())
            (name, data) = (
                re.split(rb"\r?\n\r?\n", x, maxsplit=1)[1] for x in (head, content)
            )
            data = re.sub(rb"\r?\n\Z", b"", data)
            return self._put(f"{bucket}/{json.loads(name)['name']}", data, query)
        name = query.get("name") or json.loads(body)["name"]
        key = hashlib.sha256(f"{name}{time.time_ns()}".encode()).hexdigest()
        self.bucket.uploads[key] = f"{bucket}/{name}", query, bytearray()
        place = f"{self.bucket.url}/upload/storage/v1/b/{bucket}/o?upload_id={key}"
        return self._answer(200, headers={"Location": place})

    def _put(self, name: str, content: bytes, query: dict[str, str]):
        if not self.bucket.put(name, content, query.get("ifGenerationMatch")):
            return self._error(412)
        return self._json(self._described(name))

    def _range(self, name: str):
        content = self.bucket.objects[name]
        headers = {"x-goog-generation": str(self.bucket.generations.get(name, 1))}
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range") or "")
        if not asked:
            return self._answer(200, content, headers)
        if not asked[1]:
            first, last = max(0, len(content) - int(asked[2])), len(content) - 1
        else:
            first, last = int(asked[1]), int(asked[2] or len(content) - 1)
        if first >= len(content):
            return self._answer(416)
        last = min(last, len(content) - 1)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        return self._answer(206, content[first : last + 1], headers)

    def _list(self, bucket: str, query: dict[str, str]) -> dict:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        start, end = query.get("startOffset", ""), query.get("endOffset")
        items, prefixes = [], set()
        for name in sorted(list(self.bucket.objects)):
            if not name.startswith(f"{bucket}/{prefix}"):
                continue
            inner = name.removeprefix(f"{bucket}/")
            if inner < start or (end and inner >= end):
                continue
            rest = name.removeprefix(f"{bucket}/{prefix}")
            if delimiter and delimiter in rest:
                prefixes.add(prefix + rest.partition(delimiter)[0] + delimiter)
            elif name in self.bucket.objects:
                items.append(self._described(name))
        most = int(query.get("maxResults", 1000))
        return {"items": items[:most], "prefixes": sorted(prefixes)}

    def _described(self, name: str) -> dict:
        content = self.bucket.objects[name]
        bucket, _, inner = name.partition("/")
        generation = str(self.bucket.generations.get(name, 1))
        return {
            "kind": "storage#object",
            "bucket": bucket,
            "name": inner,
            "size": str(len(content)),
            "generation": generation,
            "metageneration": "1",
            "md5Hash": base64.b64encode(hashlib.md5(content).digest()).decode(),
            "timeCreated": "2026-01-01T00:00:00.000Z",
            "updated": "2026-01-01T00:00:00.000Z",
        }

    def _error(self, status: int):
        message = {"code": status, "message": "made up"}
        self._json({"error": message}, status)

    def _json(self, value: dict, status: int = 200):
        headers = {"Content-Type": "application/json"}
        self._answer(status, json.dumps(value).encode(), headers)

    def _answer(self, status: int, body: bytes = b"", headers: dict | None = None):
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
