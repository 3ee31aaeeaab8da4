"""The Hugging Face Hub on this machine: the endpoints that the real client calls here.

Reading: repository, tree and paths, files by range through a signed address. Writing:
account, creation, upload modes, LFS objects, commits, branches and tags. Xet, which is
another protocol, is off, as it is with HF_HUB_DISABLE_XET=1.
"""

import base64
import dataclasses
import hashlib
import json
import pathlib
import re
import urllib.parse

from tests import local_server

TOKEN = "hf_made_up_token_of_a_test"
SIGNATURE = "Signature=made-up-signature"


def digest(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclasses.dataclass
class Repository:
    """A repository.

    Attributes:
      commits: the files of each commit, by its digest.
      refs: the commit of each branch and tag.
      private: whether it was created as private; None for the account's default.
      is_gated: whether its files need a token.
    """

    commits: dict[str, dict[str, bytes]]
    refs: dict[str, str]
    private: bool | None = None
    is_gated: bool = False

    def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        content = {path: digest(data) for path, data in files.items()}
        text = json.dumps([len(self.commits), content]).encode()
        commit = hashlib.sha1(text).hexdigest()
        self.commits[commit], self.refs[branch] = dict(files), commit
        return commit

    def files(self, revision: str) -> dict[str, bytes] | None:
        return self.commits.get(self.refs.get(revision, revision))


class Hub(local_server.Service):
    """The repositories, and what goes wrong with the next requests.

    Attributes:
      repositories: by "datasets/OWNER/NAME" or "models/OWNER/NAME".
      faults: by a regular expression of "METHOD path", the HTTP statuses that the next
        such requests get.
      requests: "METHOD path" of all requests, with its range if it has one.
      renamed: new names of models by their old names, to which requests are redirected.
    """

    def __init__(self):
        super().__init__(_Handler, hub=self)
        self.repositories: dict[str, Repository] = {}
        self.faults: dict[str, list[int]] = {}
        self.requests: list[str] = []
        self.renamed: dict[str, str] = {}
        self.objects: dict[str, bytes] = {}
        # Another host, because the client follows redirects within the Hub's.
        self.cdn = self.url.replace("127.0.0.1", "localhost") + "/cdn"

    def add(self, name: str, files: dict[str, bytes], **settings) -> Repository:
        repository = self.repositories[name] = Repository({}, {}, **settings)
        repository.commit(files)
        return repository

    def environment(self, directory, token: str | None = TOKEN) -> dict[str, str]:
        """The environment of a command that speaks to this Hub."""
        environment = {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(directory),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "no_proxy": "127.0.0.1,localhost",
        }
        return environment | ({"HF_TOKEN": token} if token else {})

    def use(self, monkeypatch, token: str | None = TOKEN) -> None:
        """Makes the client in this process speak to this Hub."""
        from huggingface_hub import constants

        monkeypatch.setattr(constants, "ENDPOINT", self.url)
        template = self.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
        monkeypatch.setenv("HF_TOKEN", token or "")
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nonexistent")

    def count(self, pattern: str) -> int:
        return sum(bool(re.search(pattern, request)) for request in self.requests)


class _Handler(local_server.Handler):
    hub: Hub

    def _dispatch(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urllib.parse.urlsplit(self.path)
        path = urllib.parse.unquote(url.path)
        request = f"{self.command} {path}"
        self.hub.requests.append(f"{request} {self.headers.get('Range') or ''}".strip())
        for pattern, left in self.hub.faults.items():
            if left and re.search(pattern, request):
                return self._json({"error": "made up"}, left.pop(0))
        for old, new in self.hub.renamed.items():
            if match := re.match(rf"(/api/models)?/{old}(?=/)", path):
                renamed = f"{match[1] or ''}/{new}{path[match.end() :]}"
                return self._answer(307, b"", Location=f"{renamed}?{url.query}")
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        for pattern, (needs_token, serve) in _ROUTES.items():
            if match := re.fullmatch(pattern, request):
                if needs_token and token != TOKEN:
                    return self._error(401, "", "Invalid credentials")
                return serve(self, match, body, token == TOKEN)
        if path.startswith("/api/models/"):
            return self._error(401, "RepoNotFound", "Repository not found")
        return self._error(404, "", f"nothing at {request}")

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _dispatch

    # ------------------------------------------------------------------------ reading

    def _found(self, match: re.Match):
        """Returns a repository and the files of a revision, or answers an error."""
        name = match["repository"]
        if not name.startswith(("datasets/", "models/")):
            name = f"models/{name}"
        repository = self.hub.repositories.get(name)
        if repository is None:
            self._error(401, "RepoNotFound", "Repository not found")
            return None
        files = repository.files(match.groupdict().get("revision") or "main")
        if files is None:
            self._error(404, "RevisionNotFound", "Invalid rev id")
            return None
        return repository, files

    def info(self, match, body, is_known):
        if found := self._found(match):
            revision = match["revision"] or "main"
            self._json(
                {
                    "id": match["repository"].partition("/")[2],
                    "sha": found[0].refs.get(revision, revision),
                    "private": bool(found[0].private),
                }
            )

    def tree(self, match, body, is_known):
        if found := self._found(match):
            directories = {
                str(parent)
                for path in found[1]
                for parent in list(pathlib.PurePosixPath(path).parents)[:-1]
            }
            self._json(
                [
                    {"type": "directory", "path": path, "oid": digest(path.encode())}
                    for path in sorted(directories)
                ]
                + [_described(path, data) for path, data in found[1].items()]
            )

    def paths(self, match, body, is_known):
        if found := self._found(match):
            asked = urllib.parse.parse_qs(body.decode())["paths"]
            self._json([_described(p, found[1][p]) for p in asked if p in found[1]])

    def resolve(self, match, body, is_known):
        if not (found := self._found(match)):
            return
        repository, files = found
        if repository.is_gated and not is_known:
            return self._error(401, "GatedRepo", "Access is restricted")
        if match["path"] not in files:
            return self._error(404, "EntryNotFound", "Entry not found")
        content = files[match["path"]]
        self.hub.objects[digest(content)] = content
        headers = {
            "Location": f"{self.hub.cdn}/{digest(content)}?{SIGNATURE}",
            "X-Repo-Commit": repository.refs.get(match["revision"], match["revision"]),
            "X-Linked-ETag": f'"{digest(content)}"',
            "X-Linked-Size": str(len(content)),
        }
        self._answer(302, b"", **headers)

    def cdn(self, match, body, is_known):
        assert not is_known, "the token went to another host"
        content = self.hub.objects[match["digest"]]
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if not asked:
            return self._answer(200, content)
        end = int(asked[2] or len(content)) + 1
        self._answer(206, content[int(asked[1]) : end])

    # ------------------------------------------------------------------------ writing

    def account(self, match, body, is_known):
        self._json({"type": "user", "name": "user", "auth": {"accessToken": {}}})

    def create(self, match, body, is_known):
        asked = json.loads(body)
        owner = asked["organization"] or "user"
        if owner not in ("user", "team"):
            return self._error(403, "", "You don't have the rights to create a model")
        name = f"{owner}/{asked['name']}"
        if f"models/{name}" in self.hub.repositories:
            return self._json({"error": "exists", "url": f"{self.hub.url}/{name}"}, 409)
        private = {"private": True, "public": False}.get(asked.get("visibility"))
        self.hub.add(f"models/{name}", {}, private=private)
        self._json({"url": f"{self.hub.url}/{name}"})

    def validate(self, match, body, is_known):
        assert json.loads(body)["content"].startswith("---\n")
        self._json({"errors": [], "warnings": []})

    def upload_modes(self, match, body, is_known):
        if found := self._found(match):
            files = []
            for file in json.loads(body)["files"]:
                path, content = file["path"], found[1].get(file["path"])
                is_large = path.endswith((".safetensors", ".png"))
                described = {"path": path, "shouldIgnore": False}
                described["uploadMode"] = "lfs" if is_large else "regular"
                if content is not None:
                    sha256 = hashlib.sha256(content).hexdigest()
                    described["oid"] = sha256 if is_large else digest(content)
                files.append(described)
            self._json({"files": files})

    def batch(self, match, body, is_known):
        objects = []
        for asked in json.loads(body)["objects"]:
            if asked["oid"] not in self.hub.objects:
                href = f"{self.hub.url}/upload/{asked['oid']}?{SIGNATURE}"
                asked["actions"] = {"upload": {"href": href}}
            objects.append(asked)
        self._json({"transfer": "basic", "objects": objects})

    def upload(self, match, body, is_known):
        assert hashlib.sha256(body).hexdigest() == match["digest"]
        self.hub.objects[match["digest"]] = body
        self._answer(200, b"")

    def commit(self, match, body, is_known):
        if not (found := self._found(match)):
            return
        repository, files = found[0], dict(found[1])
        summary = ""
        for item in map(json.loads, body.splitlines()):
            value = item["value"]
            if item["key"] == "header":
                summary = value["summary"]
            elif item["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif item["key"] == "lfsFile":
                files[value["path"]] = self.hub.objects[value["oid"]]
        assert summary
        commit = repository.commit(files, match["revision"])
        name = match["repository"].removeprefix("models/")
        url = f"{self.hub.url}/{name}/commit/{commit}"
        self._json({"commitUrl": url, "commitOid": commit, "success": True})

    def refs(self, match, body, is_known):
        repository = self.hub.repositories[match["repository"]]
        found = {"branches": [], "tags": [], "converts": []}
        for name, commit in repository.refs.items():
            kind = "tags" if "step-" in name else "branches"
            found[kind].append({"name": name, "ref": name, "targetCommit": commit})
        self._json(found)

    def create_ref(self, match, body, is_known):
        asked = json.loads(body)
        repository = self.hub.repositories[match["repository"]]
        name = asked.get("tag") or match["name"]
        if name in repository.refs:
            return self._error(409, "", "Reference already exists")
        start = match["name"] if "tag" in asked else asked.get("startingPoint", "main")
        repository.refs[name] = repository.refs.get(start, start)
        self._json({})

    def delete_tag(self, match, body, is_known):
        repository = self.hub.repositories[match["repository"]]
        if repository.refs.pop(match["name"], None) is None:
            return self._error(404, "RevisionNotFound", "no such tag")
        self._json({})

    # ---------------------------------------------------------------------- answering

    def _json(self, value, status: int = 200):
        self._answer(status, json.dumps(value).encode())

    def _error(self, status: int, code: str, message: str):
        headers = {"X-Error-Code": code, "X-Error-Message": message}
        self._answer(status, b"{}", **{name: x for name, x in headers.items() if x})

    def _answer(self, status: int, body: bytes, **headers: str):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _described(path: str, content: bytes) -> dict:
    return {"type": "file", "path": path, "size": len(content), "oid": digest(content)}


_REPOSITORY = r"(?P<repository>(datasets|models)/[^/]+/[^/]+)"
_MODEL = r"(?P<repository>models/[^/]+/[^/]+)"
_RESOLVED = r"(?P<repository>(datasets/)?[^/]+/[^/]+)"  # of a model, without models/
# By "METHOD path": whether a token is needed, and what answers.
_ROUTES = {
    rf"GET /api/{_REPOSITORY}(/revision/(?P<revision>.+))?": (False, _Handler.info),
    rf"GET /api/{_MODEL}/refs": (False, _Handler.refs),
    rf"GET /api/{_REPOSITORY}/tree/(?P<revision>.+)": (False, _Handler.tree),
    rf"POST /api/{_REPOSITORY}/paths-info/(?P<revision>.+)": (False, _Handler.paths),
    rf"(GET|HEAD) /{_RESOLVED}/resolve/(?P<revision>[^/]+)/(?P<path>.+)": (
        *(False, _Handler.resolve),
    ),
    r"(GET|HEAD) /cdn/(?P<digest>\w+)": (False, _Handler.cdn),
    r"GET /api/whoami-v2": (True, _Handler.account),
    r"POST /api/repos/create": (True, _Handler.create),
    r"POST /api/validate-yaml": (True, _Handler.validate),
    rf"POST /api/{_MODEL}/preupload/(?P<revision>.+)": (True, _Handler.upload_modes),
    r"POST /[^/]+/[^/]+\.git/info/lfs/objects/batch": (True, _Handler.batch),
    r"PUT /upload/(?P<digest>\w+)": (False, _Handler.upload),
    rf"POST /api/{_MODEL}/commit/(?P<revision>.+)": (True, _Handler.commit),
    rf"POST /api/{_MODEL}/(branch|tag)/(?P<name>.+)": (True, _Handler.create_ref),
    rf"DELETE /api/{_MODEL}/tag/(?P<name>.+)": (True, _Handler.delete_tag),
}
