"""HTTP/1.1 on raw sockets: reading requests, writing answers and event streams with every byte under control."""

import base64
import re
import select
import socket
import struct
import threading

import rig_json
import rig_tools
from rig_core import META_CAPABILITIES, META_VERSION, MODERN_VERSION, POINTS

LONGEST_HEAD = 1 << 20
LONGEST_BODY = 256 << 20
IDLE_SECONDS = 300.0
REASONS = {200: "OK", 202: "Accepted", 204: "No Content", 301: "Moved Permanently", 302: "Found", 303: "See Other", 307: "Temporary Redirect",
           308: "Permanent Redirect", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed",
           500: "Internal Server Error", 502: "Bad Gateway", 503: "Service Unavailable"}


class Exchange:
    """One HTTP request as received."""

    def __init__(self, connection, head, body):
        self.connection = connection
        self.rig = connection.rig
        self.head = head
        self.body = body
        lines = head.split(b"\r\n")
        self.method, self.target = (lines[0].decode("latin-1").split(" ") + ["", ""])[:2]
        self.path, _, self.query = self.target.partition("?")
        self.headers = {}
        for line in lines[1:]:
            name, _, value = line.decode("latin-1").partition(":")
            if name:
                self.headers.setdefault(name.strip().lower(), value.strip())

    def header(self, name):
        return self.headers.get(name.lower(), "")

    @property
    def point(self):
        """What the exchange is about, in the words of `--when`."""
        if self.method != "POST":
            return self.method.lower()
        return POINTS.get(rig_json.decode(rig_json.get(self.body.decode("utf-8", "replace"), "method")), "other")


class Connection:
    """One TCP connection, kept alive over many exchanges."""

    def __init__(self, rig, sock):
        self.rig = rig
        self.sock = sock
        self.buffer = bytearray()
        self.dropped = False
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(IDLE_SECONDS)

    def read_exchange(self):
        """The next request, or None when the client is done or speaks no HTTP."""
        while (end := self.buffer.find(b"\r\n\r\n")) < 0:
            if len(self.buffer) > LONGEST_HEAD or not self._fill():
                return None
        head = bytes(self.buffer[:end])
        del self.buffer[: end + 4]
        lowered = head.lower()
        if b"\r\nexpect: 100-continue" in lowered:
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        if b"\r\ntransfer-encoding: chunked" in lowered:
            body = self._read_chunked()
        else:
            length = re.search(rb"\r\ncontent-length:[ \t]*([0-9]+)", lowered)
            body = self._read_exactly(min(int(length.group(1)), LONGEST_BODY) if length else 0)
        return None if body is None else Exchange(self, head, body)

    def _fill(self):
        data = self.sock.recv(1 << 18)
        self.buffer += data
        return bool(data)

    def _read_exactly(self, count):
        while len(self.buffer) < count:
            if not self._fill():
                return None
        data = bytes(self.buffer[:count])
        del self.buffer[:count]
        return data

    def _read_line(self):
        while (end := self.buffer.find(b"\r\n")) < 0:
            if len(self.buffer) > LONGEST_HEAD or not self._fill():
                return None
        return self._read_exactly(end + 2)[:-2]

    def _read_chunked(self):
        body = bytearray()
        while (line := self._read_line()) is not None and len(body) <= LONGEST_BODY:
            size = int(line.split(b";")[0], 16)
            chunk = self._read_exactly(size + 2)
            if chunk is None:
                return None
            if size == 0:
                return bytes(body)
            body += chunk[:-2]
        return None

    def send(self, data):
        self.sock.sendall(data)

    def head(self, status, headers):
        lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Status')}", *(f"{name}: {value}" for name, value in headers)]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def send_head(self, status, headers):
        self.send(self.head(status, headers))

    def respond(self, status, body, content_type, headers=()):
        """A whole answer in one write."""
        fields = [("Content-Type", content_type)] if content_type else []
        fields += [("Content-Length", len(body)), *headers]
        self.send(self.head(status, fields) + body)

    def respond_error(self, status, code, text, data=None, identity=None):
        data = f',"data":{data}' if data else ""
        body = f'{{"jsonrpc":"2.0","id":{identity or "null"},"error":{{"code":{code},"message":{rig_json.quote(text)}{data}}}}}'
        self.respond(status, body.encode("utf-8", "surrogateescape"), "application/json")

    def respond_unknown_session(self):
        self.respond_error(404, -32001, "Session not found")

    def peer_closed(self):
        """Whether the client has closed the connection; does not wait."""
        if self.dropped:
            return True
        if self.buffer:
            return False
        try:
            readable, _, _ = select.select([self.sock], [], [], 0)
            return bool(readable) and self.sock.recv(1, socket.MSG_PEEK) == b""
        except (OSError, ValueError):
            return True

    def drop(self, reset=False):
        """Ends the connection at once, with a TCP reset if asked."""
        if self.dropped:
            return
        self.dropped = True
        try:
            if reset:
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                # The reset goes out when nobody reads from it any more; this wakes a reader and sends nothing.
                self.sock.shutdown(socket.SHUT_RD)
            else:
                # Wakes up whoever reads from it; a bare close would not.
                self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        if reset:
            self.sock.close()


def format_event(rig, text):
    """A message as a server-sent event, plain or in one of the odd but valid styles of mode `sse_style`."""
    style = rig.variant("sse_style") if rig.has("sse_style") else "plain"
    if style == "multiple_data" and text.startswith("{"):
        return f"event: message\ndata: {{\ndata: {text[1:]}\n\n"
    if style == "no_space":
        return f"data:{text}\n\n"
    event = f"event: message\ndata: {text}\n\n"
    if style in ("crlf", "cr"):
        return event.replace("\n", "\r\n" if style == "crlf" else "\r")
    return {"comments": f": a comment\n:\n{event}: another\n\n",
            "ids": f"id: {len(text)}\nretry: 1\n{event}",
            "unknown_events": f"event: ping\ndata: {{}}\n\nevent: example\ndata: not JSON\n\n{event}unknown: field\n\n",
            "byte_order_mark": f"\ufeff{event}",
            "no_final_newline": event}.get(style, event)


class EventStream:
    """A chunked stream of server-sent events on a connection; threads may share it."""

    HEADERS = (("Content-Type", "text/event-stream"), ("Cache-Control", "no-store"), ("Transfer-Encoding", "chunked"))

    def __init__(self, connection):
        self.connection = connection
        self.rig = connection.rig
        self.lock = threading.RLock()
        self.ended = False

    def write(self, data):
        if self.rig.has("sse_style") and self.rig.variant("sse_style") == "split":
            pieces = [data[at : at + 1] for at in range(len(data))]
        else:
            pieces = [data]
        with self.lock:
            if self.ended:
                raise BrokenPipeError("the stream has ended")
            for piece in pieces:
                if piece:
                    self.connection.send(b"%x\r\n%s\r\n" % (len(piece), piece))

    def send(self, text):
        self.write(format_event(self.rig, text).encode("utf-8", "surrogateescape"))

    def finish(self):
        """Ends the stream in good order; the connection can go on."""
        with self.lock:
            if not self.ended:
                self.ended = True
                self.connection.send(b"0\r\n\r\n")

    def end(self, reset=False):
        """Ends the stream and its connection."""
        with self.lock:
            if not self.ended:
                self.ended = True
                if not reset:
                    try:
                        self.connection.send(b"0\r\n\r\n")
                    except OSError:
                        pass
        self.connection.drop(reset)

    def closed(self):
        return self.ended or self.connection.peer_closed()

    def wait_for_close(self, seconds):
        """Waits; True when the client or we have ended the stream."""
        try:
            readable, _, _ = select.select([self.connection.sock], [], [], seconds)
        except (OSError, ValueError):
            return True
        return bool(readable) or self.ended


class PostReply:
    """The answer to one POST: JSON, or an event stream as soon as something comes before the answer."""

    kind = "post"
    poll_seconds = 0.05

    def __init__(self, connection, exchange):
        self.connection = connection
        self.rig = connection.rig
        self.request_head = exchange.head
        self.headers = []
        self.stream = None
        self.done = False
        self.lock = threading.RLock()

    def begin(self):
        """Turns the answer into an event stream."""
        with self.lock:
            if self.stream is None:
                self.connection.send_head(200, [*EventStream.HEADERS, *self.headers])
                self.stream = EventStream(self.connection)
        return self.stream

    def send(self, text):
        self.begin().send(text)

    def write(self, data):
        self.begin().write(data)

    def frame(self):
        """What stands before and after a message that is written in pieces."""
        return b"data: ", b"\n\n"

    def finish(self, text=None):
        with self.lock:
            if self.done:
                return
            self.done = True
            if self.stream is None and text is not None and self.rig.settings.answer != "sse" and not self.rig.has("sse_style"):
                self.connection.respond(200, text.encode("utf-8", "surrogateescape"), "application/json", self.headers)
                return
            stream = self.begin()
            if text is not None:
                stream.send(text)
            stream.finish()

    def refuse(self, status, text):
        with self.lock:
            if self.done:
                return
            if self.stream is not None:
                self.finish(text)
                return
            self.done = True
            self.connection.respond(status, text.encode("utf-8", "surrogateescape"), "application/json")

    def abandon(self):
        """Ends without an answer."""
        try:
            self.finish()
        except OSError:
            pass

    def close(self):
        if not self.done and not self.connection.dropped:
            self.abandon()

    def closed(self):
        return self.connection.peer_closed()


class StreamReply:
    """The answer to one POST of the old transport: it travels on the session's stream."""

    kind = "stream"
    poll_seconds = 0.05

    def __init__(self, stream, request_head):
        self.stream = stream
        self.request_head = request_head
        self.send = stream.send
        self.write = stream.write
        self.closed = stream.closed

    def frame(self):
        return b"event: message\ndata: ", b"\n\n"

    def finish(self, text=None):
        if text is not None:
            self.stream.send(text)

    def refuse(self, _status, text):
        self.stream.send(text)

    def abandon(self):
        pass

    def close(self):
        pass


def _unwrapped(value):
    """A mirrored header value, decoded if it is wrapped as Base64."""
    if value.startswith("=?base64?") and value.endswith("?="):
        try:
            return base64.b64decode(value[9:-2], validate=True).decode("utf-8")
        except ValueError:
            return None
    return value


def modern_problem(rig, exchange, message):
    """Why a modern request must be refused, as (status, code, text, data), or None."""
    version = rig_json.decode(rig_json.get(message.params, "_meta", META_VERSION))
    if version is None or rig_json.get(message.params, "_meta", META_CAPABILITIES) is None:
        return 400, -32602, "_meta lacks protocolVersion or clientCapabilities", None
    if version != MODERN_VERSION:
        data = f'{{"supported":["{MODERN_VERSION}"],"requested":{rig_json.quote(str(version))}}}'
        return 400, -32022, "Unsupported protocol version", data
    expected = {"MCP-Protocol-Version": version, "Mcp-Method": message.method}
    if message.method == "tools/call":
        expected["Mcp-Name"] = rig_json.decode(rig_json.get(message.params, "name"))
        expected.update(_mirrored(rig, message, expected["Mcp-Name"]))
    for name, value in expected.items():
        if name.lower() not in exchange.headers or _unwrapped(exchange.header(name)) != value:
            return 400, -32020, f"header {name} does not match the body", None
    return None


def _mirrored(rig, message, tool):
    """The `Mcp-Param-*` headers that a call of this tool must carry: top-level arguments with a sound annotation."""
    for raw in rig_tools.advertised(rig) or []:
        if "x-mcp-header" not in raw or rig_json.decode(rig_json.get(raw, "name")) != tool or tool.startswith("bad_"):
            continue
        found = {}
        for key, schema in rig_json.members(rig_json.get(raw, "inputSchema", "properties") or "{}"):
            header = rig_json.decode(rig_json.get(schema, "x-mcp-header"))
            value = rig_json.get(message.params, "arguments", key)
            if isinstance(header, str) and value not in (None, "null"):
                found[f"Mcp-Param-{header}"] = rig_json.decode(value) if value.startswith('"') else value
        return found
    return {}
