"""A small raw MCP client for check_rig.py: it shows what came over the wire, whatever it was."""

import json
import os
import queue
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

import rig_json

HERE = os.path.dirname(os.path.abspath(__file__))
MODERN_META = ('"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"check","version":"1"},'
               '"io.modelcontextprotocol/clientCapabilities":{}}')
INITIALIZE = '{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"check","version":"1"}}'


def until(condition, seconds=5.0, what="condition"):
    """Waits for a condition; its value, or a failure after the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s for {what}")
        time.sleep(0.01)


class Client:
    """What the clients of all transports share."""

    def __init__(self, *arguments, era="legacy"):
        self.era = era
        self.folder = tempfile.mkdtemp(prefix="rig-check-")
        self.state = os.path.join(self.folder, "state")
        self.messages = []
        self.next_id = 0
        self.controls = 0
        self.lock = threading.Lock()
        self.start(["--era", era, "--state-dir", self.state, *map(str, arguments)])

    def records(self, name):
        try:
            with open(os.path.join(self.state, name), encoding="utf-8", errors="surrogateescape", newline="\n") as file:
                return file.read().split("\n")[:-1]
        except OSError:
            return []

    def wait_records(self, name, count=1, seconds=5.0):
        return until(lambda: len(self.records(name)) >= count and self.records(name), seconds, f"{count} lines in {name}")

    def new_id(self):
        with self.lock:
            self.next_id += 1
            return str(self.next_id)

    def frame(self, method, params, identity=None):
        if self.era == "modern":
            params = "{" + MODERN_META + ("}" if params == "{}" else "," + params[1:])
        identity = f'"id":{identity},' if identity else ""
        return f'{{"jsonrpc":"2.0",{identity}"method":"{method}","params":{params}}}'

    def handshake(self):
        if self.era == "modern":
            return self.request("server/discover")
        answer = self.request("initialize", INITIALIZE)
        if answer is not None:
            self.notify("notifications/initialized")
        return answer

    def call(self, tool="echo", arguments='{"value":1}', seconds=5.0, token=None, identity=None):
        meta = f',"_meta":{{"progressToken":{token}}}' if token and self.era == "legacy" else ""
        return self.request("tools/call", f'{{"name":{json.dumps(tool)},"arguments":{arguments}{meta}}}', seconds, identity)

    def tools(self, cursor=None):
        answer = self.request("tools/list", f'{{"cursor":{cursor}}}' if cursor else "{}")
        return answer and rig_json.get(answer, "result")

    def names(self):
        return [rig_json.decode(rig_json.get(raw, "name")) for raw in rig_json.items(rig_json.get(self.tools(), "tools"))]

    def close(self):
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream:
                stream.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class StdioClient(Client):
    transport = "stdio"

    def start(self, arguments):
        self.control_file = os.path.join(self.folder, "control")
        command = [sys.executable, os.path.join(HERE, "fake_stdio.py"), "--control", self.control_file, *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.folder)
        self.lines = queue.Queue()
        self.errors = b""
        self.pieces = []
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._drain, daemon=True).start()

    def _read(self):
        try:
            for line in self.process.stdout:
                self.pieces.append(line)
                self.messages.append(line.decode("utf-8", "surrogateescape").rstrip("\n"))
        except ValueError:
            pass
        self.pieces.append(None)

    def _drain(self):
        try:
            while data := os.read(self.process.stderr.fileno(), 1 << 16):
                self.errors += data
        except (OSError, ValueError):
            pass

    def ended(self):
        return bool(self.pieces) and self.pieces[-1] is None

    def send(self, text):
        try:
            self.process.stdin.write(text.encode("utf-8", "surrogateescape") + b"\n")
            self.process.stdin.flush()
        except OSError:
            pass

    def notify(self, method, params="{}"):
        self.send(self.frame(method, params))

    def request(self, method, params="{}", seconds=5.0, identity=None):
        """The line that answers, or None when the server ended or said nothing in time."""
        identity = identity or self.new_id()
        self.send(self.frame(method, params, identity))
        seen, deadline = 0, time.monotonic() + seconds
        while time.monotonic() < deadline:
            ended = self.ended()
            while seen < len(self.messages):
                text = self.messages[seen]
                seen += 1
                if len(text) < 1 << 22 and rig_json.get(text, "id") == identity and rig_json.get(text, "method") is None:
                    return text
                if len(text) >= 1 << 22 and f'"id":{identity},' in text[:200]:
                    return text
            if ended:
                return None
            time.sleep(0.002)
        return None

    def control(self, query):
        self.controls += 1
        query = f"{query}&nonce={self.controls}"
        with open(self.control_file + ".new", "w", encoding="utf-8") as file:
            file.write(query)
        os.replace(self.control_file + ".new", self.control_file)
        until(lambda: query in self.records("control"), what=f"control {query}")


class Response:
    """One HTTP answer, as far as it came."""

    def __init__(self, raw):
        self.raw = raw
        head, _, rest = raw.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        parts = lines[0].split(" ")
        self.status = int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else 0
        self.headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        self.whole = False
        if self.headers.get("transfer-encoding") == "chunked":
            self.body = self._dechunk(rest)
        else:
            self.body = rest
            length = self.headers.get("content-length", "")
            self.whole = length.isdigit() and len(rest) >= int(length) or self.status == 204

    def _dechunk(self, data):
        body = []
        while (end := data.find(b"\r\n")) >= 0:
            try:
                size = int(data[:end], 16)
            except ValueError:
                break
            if size == 0:
                self.whole = True
                break
            body.append(data[end + 2 : end + 2 + size])
            data = data[end + 4 + size :]
        return b"".join(body)

    def events(self):
        """The data of the complete message events."""
        text = self.body.decode("utf-8", "surrogateescape").lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
        found = []
        for block in text.split("\n\n")[:-1]:
            fields = [line.partition(":")[::2] for line in block.split("\n") if line and not line.startswith(":")]
            if dict(fields).get("event", " message").strip() == "message":
                data = [value.removeprefix(" ") for name, value in fields if name == "data"]
                found += ["\n".join(data)] if data else []
        return found

    def texts(self):
        if self.headers.get("content-type", "").startswith("text/event-stream"):
            return self.events()
        return [self.body.decode("utf-8", "surrogateescape")] if self.body else []


class HttpClient(Client):
    transport = "http"
    path = "/mcp"

    def start(self, arguments):
        command = [sys.executable, os.path.join(HERE, "fake_http.py"), *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        lines = [self.process.stdout.readline().decode().split() for _ in range(2)]
        assert lines[0][0] == "PORT" and lines[1][0] == "CONTROL", lines
        self.port, self.control_port = int(lines[0][1]), int(lines[1][1])
        self.session = None
        self.last = None

    def headers(self, method, params):
        found = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        if self.era == "modern":
            found |= {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method}
            if method == "tools/call":
                found["Mcp-Name"] = rig_json.decode(rig_json.get(params, "name"))
        elif method != "initialize":
            found["MCP-Protocol-Version"] = "2025-11-25"
            if self.session:
                found["Mcp-Session-Id"] = self.session
        return found

    def exchange(self, method, path, body=b"", headers=None, seconds=5.0, limit=32 << 20, enough=None, port=None):
        """One request on a connection of its own; reads until the answer is whole, `enough`, too long or late."""
        lines = [f"{method} {path} HTTP/1.1", "Host: rig", f"Content-Length: {len(body)}", *(f"{n}: {v}" for n, v in (headers or {}).items())]
        raw = bytearray()
        try:
            with socket.create_connection(("127.0.0.1", port or self.port), timeout=seconds) as sock:
                sock.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body)
                deadline, checked = time.monotonic() + seconds, 0
                while len(raw) < limit and (remaining := deadline - time.monotonic()) > 0:
                    sock.settimeout(remaining)
                    data = sock.recv(1 << 18)
                    if not data:
                        break
                    raw += data
                    # Looking at the whole each time would be slow for big answers.
                    if len(raw) < 1 << 20 or len(data) < 1 << 16 or len(raw) - checked > 1 << 20 or raw.endswith((b"0\r\n\r\n", b"}")):
                        checked = len(raw)
                        response = Response(bytes(raw))
                        if response.whole or (enough and enough(response)):
                            break
        except OSError:
            pass
        return Response(bytes(raw))

    def post(self, method, params="{}", seconds=5.0, identity=None, limit=32 << 20, enough=None, extra=None):
        body = self.frame(method, params, identity).encode("utf-8", "surrogateescape")
        headers = self.headers(method, params) | (extra or {})
        self.last = self.exchange("POST", self.path, body, headers, seconds, limit, enough)
        return self.last

    def notify(self, method, params="{}"):
        self.post(method, params)

    def request(self, method, params="{}", seconds=5.0, identity=None):
        identity = identity or self.new_id()
        mine = lambda response: next((text for text in response.texts() if f'"id":{identity},' in text[:300] and rig_json.get(text, "method") is None
                                      and (len(text) > 1 << 22 or rig_json.get(text, "id") == identity)), None)
        stream = lambda response: response.headers.get("content-type") == "text/event-stream" and not self.whole_streams and mine(response)
        response = self.post(method, params, seconds, identity, enough=stream)
        self.messages += response.texts()
        if method == "initialize" and "mcp-session-id" in response.headers:
            self.session = response.headers["mcp-session-id"]
        return mine(response)

    # Whether requests read event streams to their end, to see what comes after the answer.
    whole_streams = False

    def control(self, query):
        response = self.exchange("GET", f"/control?{query}", port=self.control_port)
        assert response.status == 200, response.body
        return response.body.decode()

    def open_get(self, seconds=3.0, enough=None):
        """Reads the GET stream of the session in a thread; what comes is added to `messages`."""

        def read():
            response = self.exchange("GET", "/mcp", headers={"Accept": "text/event-stream", "Mcp-Session-Id": self.session or ""}, seconds=seconds, enough=enough)
            self.get_response = response
            self.messages += response.events()

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        return thread


class OldHttpClient(HttpClient):
    """The old HTTP+SSE transport: one stream for all that comes back."""

    transport = "sse"

    def start(self, arguments):
        super().start(arguments)
        self.raw = bytearray()
        self.endpoint = None
        self.sock = socket.create_connection(("127.0.0.1", self.port), timeout=5)
        self.sock.sendall(b"GET /sse HTTP/1.1\r\nHost: rig\r\nAccept: text/event-stream\r\n\r\n")
        self.over = False
        threading.Thread(target=self._read, daemon=True).start()
        text = until(lambda: Response(bytes(self.raw)).body.decode(), what="the endpoint event")
        self.path = text.partition("data: ")[2].strip()

    def _read(self):
        self.sock.settimeout(30)
        try:
            while data := self.sock.recv(1 << 18):
                self.raw += data
        except OSError:
            pass
        self.over = True

    def request(self, method, params="{}", seconds=5.0, identity=None):
        identity = identity or self.new_id()
        self.post(method, params, seconds, identity)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            over = self.over
            self.messages = Response(bytes(self.raw)).events()
            for text in self.messages:
                if rig_json.get(text, "id") == identity and rig_json.get(text, "method") is None:
                    return text
            if over:
                return None
            time.sleep(0.005)
        return None

    def close(self):
        self.sock.close()
        super().close()


CLIENTS = {"stdio": StdioClient, "http": HttpClient, "sse": OldHttpClient}
