"""The server that core's gateway suite asks for: echo, counter, sleep, fail and text, over stdio or streamable HTTP.

usage: conformance_server.py stdio|http STATE_FOLDER

In the folder: `arrived` and `cancelled` get a line for each call that came or was to stop; `description` holds what
`echo` is described with.
"""

import http.server
import json
import os
import sys
import threading
import uuid

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "..", "tests", "rig"))
import rig_json

FOLDER = sys.argv[2]


def note(name):
    with open(os.path.join(FOLDER, name), "a", encoding="utf-8") as file:
        file.write("1\n")


def tools():
    with open(os.path.join(FOLDER, "description"), encoding="utf-8") as file:
        description = file.read()
    names = {"echo": description, "counter": "", "sleep": "", "fail": "", "text": ""}
    return [
        {"name": name, "description": text, "inputSchema": {"type": "object"}} for name, text in names.items()
    ]


class Session:
    def __init__(self):
        self.count = 0
        self.lock = threading.Lock()
        self.running = {}

    def answer(self, text):
        """The answer to a message as text; None for a notification, and for a call that was cancelled."""
        raw = dict(rig_json.members(text))
        method = json.loads(raw["method"])
        params = dict(rig_json.members(raw["params"])) if "params" in raw else {}
        if method == "notifications/cancelled":
            self.cancel(params["requestId"])
        if "id" not in raw:
            return None
        result = self.result(method, params, raw["id"])
        if result is None:
            return None
        key = "error" if result.startswith('{"code"') else "result"
        return f'{{"jsonrpc":"2.0","id":{raw["id"]},"{key}":{result}}}'

    def cancel(self, identity):
        note("cancelled")
        with self.lock:
            event = self.running.get(identity)
        if event:
            event.set()

    def result(self, method, params, identity):
        if method == "initialize":
            return json.dumps(
                {
                    "protocolVersion": json.loads(params["protocolVersion"]),
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "conformance", "version": "1"},
                }
            )
        if method == "ping":
            return "{}"
        if method == "tools/list":
            return json.dumps({"tools": tools()})
        if method != "tools/call":
            return '{"code":-32601,"message":"there is no such method"}'
        return self.call(json.loads(params["name"]), params.get("arguments", "{}"), identity)

    def call(self, name, arguments, identity):
        event = threading.Event()
        with self.lock:
            self.running[identity] = event
        note("arrived")
        try:
            if name == "echo":
                return f'{{"content":[],"structuredContent":{arguments}}}'
            if name == "counter":
                with self.lock:
                    self.count += 1
                    return f'{{"content":[],"structuredContent":{{"count":{self.count}}}}}'
            if name == "sleep":
                stopped = event.wait(json.loads(arguments)["ms"] / 1000)
                return None if stopped else '{"content":[]}'
            if name == "fail":
                return '{"content":[],"isError":true}'
            size = json.loads(arguments)["bytes"]
            return json.dumps({"content": [{"type": "text", "text": "x" * size}]})
        finally:
            with self.lock:
                del self.running[identity]


def serve_stdio():
    session = Session()
    lock = threading.Lock()

    def run(line):
        answer = session.answer(line)
        if answer is not None:
            with lock:
                sys.stdout.buffer.write(answer.encode("utf-8", "surrogatepass") + b"\n")
                sys.stdout.buffer.flush()

    for line in sys.stdin.buffer:
        line = line.decode("utf-8")
        threading.Thread(target=run, args=(line,), daemon=True).start() if "tools/call" in line else run(line)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    sessions = {}

    def setup(self):
        super().setup()
        self.connection.setsockopt(6, 1, 1)

    def log_message(self, *_):
        pass

    def reply(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        text = self.rfile.read(int(self.headers["Content-Length"])).decode("utf-8")
        name = self.headers["Mcp-Session-Id"]
        if '"initialize"' in text[:200]:
            name = uuid.uuid4().hex
            self.sessions[name] = Session()
        elif name not in self.sessions:
            return self.reply(404 if name else 400)
        answer = self.sessions[name].answer(text)
        if answer is None:
            return self.reply(202)
        self.reply(200, answer.encode("utf-8"), Content_Type="application/json", Mcp_Session_Id=name)

    def do_GET(self):
        self.reply(405)

    def do_DELETE(self):
        self.sessions.pop(self.headers["Mcp-Session-Id"], None)
        self.reply(200)


def serve_http():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    server.serve_forever()


serve_stdio() if sys.argv[1] == "stdio" else serve_http()
