#!/usr/bin/env python3
"""A fake MCP server over HTTP (`/mcp` streamable, `/sse` the old HTTP+SSE): healthy, or hostile in one of the ways that README.md lists.

Prints `PORT n`, then `CONTROL n`. On the control port `/control?...` changes the server at run time, and every other path is a
sentinel: a hit there is recorded and means that the client followed a link it must not follow.
"""

import os
import secrets
import socket
import sys
import threading
import time
from urllib.parse import parse_qs

from rig_core import LEGACY_VERSIONS, Message, Rig, Session, load_modes, parse_arguments
from rig_http import Connection, EventStream, PostReply, StreamReply, modern_problem
from rig_request import Request

STREAM_KEEPALIVE_SECONDS = 15.0


class Server:
    """The listeners of one fake server, and what it does with each request."""

    def __init__(self, rig):
        self.rig = rig
        self.listener = None
        self.port = rig.settings.port
        self.connections = set()
        self.lock = threading.Lock()
        self.modern = Session("modern", "modern")
        self.sessionless = Session("sessionless")
        rig.standing_sessions.append(self.sessionless)
        rig.actions.update(down=self.down, up=self.up, restart=self.restart, drop_connections=self.drop_connections,
                           drop_streams=self.drop_streams)

    def up(self):
        """Listens on the port it had before, if it had one."""
        with self.lock:
            if self.listener is not None:
                return
            self.listener = listen(self.rig.settings.host, self.port)
            self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self.listener, self.handle), daemon=True).start()

    def down(self):
        """Refuses connections and drops those that are open; sessions stay."""
        with self.lock:
            listener, self.listener = self.listener, None
        if listener is not None:
            # Closing alone would leave the port open while another thread waits in accept.
            try:
                listener.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            listener.close()
        self.drop_connections()

    def restart(self):
        """Goes down, forgets all sessions, comes up again."""
        self.down()
        self.rig.forget_sessions()
        self.up()

    def drop_connections(self):
        with self.lock:
            connections = list(self.connections)
        for connection in connections:
            connection.drop()

    def drop_streams(self):
        with self.rig.lock:
            sessions = list(self.rig.sessions.values())
        for session in sessions:
            if session.stream is not None:
                session.stream.end()

    def open_control(self):
        """The second listener: control queries and the sentinel."""
        listener = listen(self.rig.settings.host, 0)
        port = listener.getsockname()[1]
        if self.rig.sentinel is None:
            self.rig.sentinel = f"http://{self.rig.settings.host}:{port}/sentinel"
        self.control_port = port
        threading.Thread(target=self._accept, args=(listener, self.handle_control), daemon=True).start()
        return port

    def _accept(self, listener, handler):
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            connection = Connection(self.rig, sock)
            if handler == self.handle:
                with self.lock:
                    self.connections.add(connection)
            threading.Thread(target=self._converse, args=(connection, handler), daemon=True).start()

    def _converse(self, connection, handler):
        try:
            while (exchange := connection.read_exchange()) is not None:
                handler(exchange)
                if connection.dropped or exchange.header("connection").lower() == "close":
                    break
        except (OSError, ValueError):
            # Gone, or speaks no HTTP.
            pass
        finally:
            connection.drop()
            connection.sock.close()
            with self.lock:
                self.connections.discard(connection)

    def handle_control(self, exchange):
        if exchange.path == "/control":
            self._obey(exchange)
        else:
            self.sentinel_hit(exchange)

    def _obey(self, exchange):
        query = exchange.query + (("&" + exchange.body.decode()) if exchange.body else "")
        try:
            exchange.connection.respond(200, self.rig.control(query).encode(), "application/json")
        except ValueError as problem:
            exchange.connection.respond(400, f"{problem}\n".encode(), "text/plain")

    def sentinel_hit(self, exchange):
        """Somebody came where only a followed link leads; answers like a server that would be worth the trip."""
        self.rig.records.add("sentinel", exchange.method, exchange.target, exchange.header("authorization") or "-")
        self.rig.records.add("sentinel_log", exchange.head + b"\r\n")
        exchange.connection.respond(200, b'{"type":"object","sentinel":"canary-sentinel-body"}', "application/json")

    def handle(self, exchange):
        """Answers one HTTP request on the main port."""
        rig, connection = self.rig, exchange.connection
        rig.records.add("http_log", exchange.head + b"\r\n")
        if exchange.path == "/control":
            self._obey(exchange)
            return
        if exchange.path.startswith("/sentinel"):
            self.sentinel_hit(exchange)
            return
        hook = rig.hook("http", exchange)
        if hook and hook(exchange):
            return
        if not self._authorized(exchange):
            connection.respond(401, b'{"error":"unauthorized"}', "application/json", [("WWW-Authenticate", "Bearer")])
        elif exchange.path == "/mcp" and exchange.method == "POST":
            self._post(exchange)
        elif exchange.path == "/mcp" and exchange.method == "GET":
            self._get(exchange)
        elif exchange.path == "/mcp" and exchange.method == "DELETE":
            self._delete(exchange)
        elif exchange.path == "/sse" and exchange.method == "GET":
            self._open_old_stream(exchange)
        elif exchange.path == "/messages" and exchange.method == "POST":
            self._post_old(exchange)
        else:
            connection.respond(405 if exchange.path in ("/mcp", "/sse", "/messages") else 404, b"", "text/plain")

    def _authorized(self, exchange):
        required = self.rig.settings.require_header
        if not required:
            return True
        name, _, value = required.partition(":")
        return exchange.header(name.strip()) == value.strip()

    def _message(self, exchange):
        """The JSON-RPC message of a POST, or None after it was refused."""
        self.rig.records.add("requests", exchange.body)
        message = Message(exchange.body.decode("utf-8", "surrogateescape"))
        if message.kind == "invalid":
            exchange.connection.respond_error(400, -32600, "not a JSON-RPC message")
            return None
        return message

    def _post(self, exchange):
        rig, connection = self.rig, exchange.connection
        message = self._message(exchange)
        if message is None:
            return
        era = rig.era_of(message)
        if era == "modern" and message.kind == "request" and message.method != "initialize":
            problem = modern_problem(rig, exchange, message)
            if problem:
                connection.respond_error(*problem, identity=message.id)
                return
        session = self.modern if era == "modern" else self._legacy_session(exchange, message)
        if session is None:
            return
        if message.kind != "request":
            rig.receive(session, message, None, era)
            connection.respond(202, b"", None)
            return
        reply = PostReply(connection, exchange)
        if message.method == "initialize" and era == "legacy" and session is not self.sessionless:
            reply.headers.append(("Mcp-Session-Id", session.name))
        Request(rig, session, message, reply, era).run()

    def _legacy_session(self, exchange, message):
        """The session of a legacy POST (a new one for initialize), or None after it was refused."""
        rig, connection = self.rig, exchange.connection
        version = exchange.header("mcp-protocol-version")
        if version and message.method not in ("initialize", "server/discover") and version not in LEGACY_VERSIONS:
            connection.respond_error(400, -32000, f"Unsupported protocol version {version}")
            return None
        if rig.has("no_session_header") or rig.has("sessionless"):
            return self.sessionless
        identity = exchange.header("mcp-session-id")
        if message.method == "initialize":
            return self._new_session()
        if identity:
            session = rig.sessions.get(identity)
            if session is None:
                connection.respond_unknown_session()
            return session
        if message.method == "server/discover":
            # A legacy server meets the probe before there is a session.
            return Session("probe")
        connection.respond_error(400, -32000, "Mcp-Session-Id header is required")
        return None

    def _new_session(self):
        rig = self.rig
        name = secrets.token_hex(16)
        if rig.has("bad_session_id"):
            name = {"space": f"{name} x", "non_ascii": f"{name}\xe9", "long": name * 4096, "empty": "", "comma": f"{name},{name}",
                    "same_for_all": "fixed-session", "path": f"../{name}", "tab": f"{name}\tx"}[rig.variant("bad_session_id")]
        session = Session(name)
        with rig.lock:
            rig.sessions[name] = session
        rig.records.add("sessions", "open", name)
        return session

    def _get(self, exchange):
        rig, connection = self.rig, exchange.connection
        if rig.settings.era == "modern":
            connection.respond(405, b"", None, [("Allow", "POST")])
            return
        session = self.sessionless if rig.has("no_session_header") else rig.sessions.get(exchange.header("mcp-session-id"))
        if session is None:
            connection.respond_unknown_session()
            return
        stream = EventStream(connection)
        connection.send_head(200, EventStream.HEADERS)
        self._hold(session, stream)

    def _hold(self, session, stream):
        """Keeps the stream of a session open until one side ends it."""
        rig = self.rig
        session.stream = stream
        rig.records.add("streams", "open", session.name)
        if session.initialized:
            rig.session_ready(session.push)
        while not stream.wait_for_close(STREAM_KEEPALIVE_SECONDS):
            stream.write(b": keep-alive\n\n")
        if session.stream is stream:
            session.stream = None
        rig.records.add("streams", "close", session.name)
        stream.end()

    def _delete(self, exchange):
        rig = self.rig
        session = rig.sessions.get(exchange.header("mcp-session-id"))
        if rig.settings.era == "modern":
            exchange.connection.respond(405, b"", None, [("Allow", "POST")])
        elif session is None:
            exchange.connection.respond_unknown_session()
        else:
            with rig.lock:
                rig.sessions.pop(session.name, None)
            rig.records.add("sessions", "delete", session.name)
            if session.stream is not None:
                session.stream.end()
            exchange.connection.respond(200, b"", None)

    def _open_old_stream(self, exchange):
        """The GET of the old HTTP+SSE transport: a session, the place to post to, then the answers."""
        session = Session(secrets.token_hex(16))
        with self.rig.lock:
            self.rig.sessions[session.name] = session
        self.rig.records.add("sessions", "open", session.name)
        # A client may post as soon as it knows where.
        stream = session.stream = EventStream(exchange.connection)
        exchange.connection.send_head(200, EventStream.HEADERS)
        endpoint = f"/messages?session={session.name}"
        if self.rig.has("foreign_endpoint"):
            host = f"{self.rig.settings.host}:{self.control_port}"
            endpoint = {"absolute": f"http://{host}/messages", "scheme_relative": f"//{host}/messages", "userinfo": f"http://localhost:{self.port}@{host}/messages",
                        "file": "file:///etc/passwd", "empty": "", "own_absolute": f"http://{self.rig.settings.host}:{self.port}{endpoint}",
                        "newline": f"{endpoint}\r\nX-Evil: 1", "huge": "/" + "e" * 1_000_000}[self.rig.variant("foreign_endpoint")]
        if not (self.rig.has("foreign_endpoint") and self.rig.variant("foreign_endpoint") == "empty"):
            stream.write(f"event: endpoint\ndata: {endpoint}\n\n".encode())
        try:
            self._hold(session, stream)
        finally:
            session.stream = None
            with self.rig.lock:
                self.rig.sessions.pop(session.name, None)
                orphans = [request for request in self.rig.in_flight if request.session is session]
            self.rig.records.add("sessions", "close", session.name)
            for request in orphans:
                request.record_close()
                request.cancelled.set()

    def _post_old(self, exchange):
        rig, connection = self.rig, exchange.connection
        name = parse_qs(exchange.query).get("session", [""])[0]
        session = rig.sessions.get(name)
        if session is None or session.stream is None:
            connection.respond(404, b"no such session", "text/plain")
            return
        message = self._message(exchange)
        if message is None:
            return
        connection.respond(202, b"Accepted", "text/plain")
        if message.kind != "request":
            rig.receive(session, message, None, "legacy")
            return
        request = Request(rig, session, message, StreamReply(session.stream, exchange.head), "legacy")
        if rig.may_be_slow(request):
            threading.Thread(target=request.run, daemon=True).start()
        else:
            request.run()


def listen(host, port):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    deadline = time.monotonic() + 2
    while True:
        try:
            listener.bind((host, port))
            break
        except OSError:
            if port == 0 or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
    listener.listen(1024)
    return listener


def end_with_parent(lifetime):
    """Exits when the process that started this one is gone, and after the lifetime in any case."""
    parent, deadline = os.getppid(), time.monotonic() + lifetime
    while os.getppid() == parent and time.monotonic() < deadline:
        time.sleep(0.5)
    os._exit(0)


def main():
    load_modes()
    settings = parse_arguments("http", sys.argv[1:])
    rig = Rig(settings, "http")
    server = Server(rig)
    rig.server = server
    server.up()
    control_port = server.open_control()
    rig.start_watchers()
    print(f"PORT {server.port}\nCONTROL {control_port}", flush=True)
    end_with_parent(settings.lifetime)


if __name__ == "__main__":
    main()
