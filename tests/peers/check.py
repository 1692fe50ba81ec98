#!/usr/bin/env python3
"""Starts every installed MCP peer and asks it for its tools, so that a broken installation shows
here and not as a puzzling test failure.

    tests/peers/check.py [INSTALLED_FOLDER]

Each peer gets `initialize`, `notifications/initialized` and `tools/list`, has DEADLINE seconds for
all of it, and is stopped by its process id. Exits 1 if a peer does not answer as expected.
"""

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

DEADLINE = 30.0
PROTOCOL_VERSION = "2025-11-25"

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": PROTOCOL_VERSION,
        "capabilities": {},
        "clientInfo": {"name": "caliber-peer-check", "version": "0"},
    },
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
LIST_TOOLS = {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}}


class Failure(Exception):
    """A peer did not behave as expected."""


class Peer:
    """A started peer: its process and the lines it writes, as they come."""

    def __init__(self, command, folder, environment=None):
        self.deadline = time.monotonic() + DEADLINE
        self.lines = queue.Queue()
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        for stream in (self.process.stdout, self.process.stderr):
            threading.Thread(target=self._collect, args=(stream,), daemon=True).start()

    def _collect(self, stream):
        name = "stdout" if stream is self.process.stdout else "stderr"
        for line in stream:
            self.lines.put((name, line.rstrip("\n")))

    def remaining(self):
        return max(self.deadline - time.monotonic(), 0.01)

    def send(self, message):
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def line(self, wanted_stream, accept):
        """The first line of the stream for which `accept` returns something true: that result."""
        seen = []
        while True:
            try:
                stream, line = self.lines.get(timeout=self.remaining())
            except queue.Empty:
                raise Failure(f"no answer within {DEADLINE:.0f} s; last lines: {seen[-5:]}") from None
            seen.append(line[:200])
            if stream == wanted_stream and (result := accept(line)):
                return result

    def response(self, request_id):
        def accept(line):
            message = json.loads(line)
            return message if message.get("id") == request_id and "method" not in message else None

        return result_of(self.line("stdout", accept))

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def result_of(message):
    if "result" not in message:
        raise Failure(f"error answer: {message.get('error')}")
    return message["result"]


def ask_over_stdio(peer):
    peer.send(INITIALIZE)
    server = peer.response(1)
    peer.send(INITIALIZED)
    peer.send(LIST_TOOLS)
    return server, peer.response(2)["tools"]


def address_of(peer):
    prefix = "listening on "
    return peer.line("stderr", lambda line: line.startswith(prefix) and line[len(prefix) :])


def ask_over_http(peer):
    url = f"http://{address_of(peer)}/mcp"
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}

    def post(message):
        request = urllib.request.Request(url, json.dumps(message).encode(), headers)
        with urllib.request.urlopen(request, timeout=peer.remaining()) as response:
            if session := response.headers.get("mcp-session-id"):
                headers["mcp-session-id"] = session
            for line in response:
                event_data = line.decode().strip().removeprefix("data:").strip()
                if event_data.startswith("{") and json.loads(event_data).get("id") == message["id"]:
                    return result_of(json.loads(event_data))
        if "id" in message:
            raise Failure(f"the answer to {message['method']} held no response")
        return None

    server = post(INITIALIZE)
    headers["mcp-protocol-version"] = server["protocolVersion"]
    post(INITIALIZED)
    return server, post(LIST_TOOLS)["tools"]


def ask_over_sse(peer):
    base = f"http://{address_of(peer)}"
    with urllib.request.urlopen(f"{base}/sse", timeout=peer.remaining()) as stream:

        def next_data():
            for line in stream:
                if line.startswith(b"data:"):
                    return line.decode().removeprefix("data:").strip()
            raise Failure("the event stream ended")

        def post(message):
            request = urllib.request.Request(
                base + endpoint, json.dumps(message).encode(), {"content-type": "application/json"}
            )
            urllib.request.urlopen(request, timeout=peer.remaining()).close()

        def response(request_id):
            while True:
                message = json.loads(next_data())
                if message.get("id") == request_id and "method" not in message:
                    return result_of(message)

        endpoint = next_data()
        post(INITIALIZE)
        server = response(1)
        post(INITIALIZED)
        post(LIST_TOOLS)
        return server, response(2)["tools"]


def peers(installed, folder):
    """folder in INSTALLED, name, command, extra environment, how to ask, a tool that must be there"""
    node = os.path.join(installed, "node")
    everything = os.path.join(
        node, "node_modules", "@modelcontextprotocol", "server-everything", "dist", "index.js"
    )
    on_loopback = ["node", "--import", os.path.join(node, "loopback.mjs"), everything]
    any_port = {"PORT": "0"}
    yield "node", "server-everything, stdio", ["node", everything, "stdio"], {}, ask_over_stdio, "echo"
    yield "node", "server-everything, HTTP", [*on_loopback, "streamableHttp"], any_port, ask_over_http, "echo"
    yield "node", "server-everything, HTTP+SSE", [*on_loopback, "sse"], any_port, ask_over_sse, "echo"
    for where in ("python-mcp1", "python-mcp2"):
        python = os.path.join(installed, where, "bin", "python")
        time_server = [python, "-m", "mcp_server_time", "--local-timezone", "UTC"]
        git_server = [python, "-m", "mcp_server_git", "--repository", folder]
        yield where, "mcp-server-time", time_server, {}, ask_over_stdio, "get_current_time"
        yield where, "mcp-server-git", git_server, {}, ask_over_stdio, "git_log"


def check(command, environment, ask, tool, folder):
    peer = Peer(command, folder, environment)
    try:
        server, tools = ask(peer)
    finally:
        peer.stop()
    if tool not in (each["name"] for each in tools):
        raise Failure(f"no tool named {tool}")
    version = server["serverInfo"].get("version")
    return f"version {version}, protocol {server['protocolVersion']}, {len(tools)} tools"


def main():
    default = os.path.join(os.path.dirname(os.path.abspath(__file__)), "installed")
    installed = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else default)
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "init", "--quiet", folder], check=True)
        for where, name, command, environment, ask, tool in peers(installed, folder):
            if not os.path.exists(os.path.join(installed, where, ".stamp")):
                outcome = "not installed"
            else:
                try:
                    outcome = check(command, environment, ask, tool, folder)
                except (Failure, OSError, ValueError, KeyError) as problem:
                    failures += 1
                    outcome = f"FAILED: {problem}"
            print(f"peers: {where}: {name}: {outcome}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
