"""Modes of the HTTP wire: redirects, streams without end, dripping and packed bodies, broken framing, odd sessions."""

import time

import rig_bombs
from rig_core import LONGEST_SECONDS, Cancelled
from rig_registry import mode
from rig_tools import text_result

_PIECE = b"a" * (64 << 10)


@mode("redirect", "T3, SH-19", hook="http", transports="http", when="every", options="`--status` (307), `--target` (the sentinel)",
      variants=("sentinel", "same_origin", "loop", "file", "no_location", "many_hops"))
def redirect(exchange):
    """Answers with a redirect: to the sentinel on another port or any `--target`, to the sentinel path of the same origin, to
    itself, to a file, without a place, or through 50 hops. `--when call` spares the handshake; `get` is the stream."""
    rig, variant = exchange.rig, exchange.rig.variant("redirect")
    step = int(exchange.query.partition("hop=")[2] or 0)
    place = {"sentinel": rig.option("target", rig.sentinel), "same_origin": "/sentinel", "loop": exchange.target, "file": "file:///etc/passwd",
             "no_location": None, "many_hops": f"/mcp?hop={step + 1}" if step < 50 else rig.sentinel}[variant]
    exchange.connection.respond(rig.option("status", 307), b"", None, [("Location", place)] if place else [])
    return True


@mode("endless_comments", "T4", transports="http", options="`--interval` (1), `--seconds` (120), `--bytes` (1: of each comment)")
def endless_comments(request):
    """Executes the call, then sends a comment each `--interval` on the answer's stream, for `--seconds`; no answer."""
    request.execute()
    comment = b":" + b"c" * (request.rig.option("bytes", 1) - 1) + b"\n"
    deadline = time.monotonic() + request.rig.seconds(LONGEST_SECONDS)
    while time.monotonic() < deadline:
        request.reply.write(comment)
        if request.wait(max(request.rig.option("interval", 1.0), 0.0005)):
            break
    raise Cancelled


@mode("endless_event", "T4, peers 3", transports="http", options="`--bytes` (300000000)", variants=("data_line", "data_lines", "field_name", "comment"))
def endless_event(request):
    """Executes the call, then sends one event of that many bytes that never ends: one `data:` line, many of them, an endless
    field name, an endless comment. Stops when nobody reads; `cutoffs` says how much was taken."""
    request.execute()
    begin, piece = {"data_line": (b"data: ", _PIECE), "data_lines": (b"", b"data: " + b"a" * 1000 + b"\n"), "field_name": (b"", _PIECE),
                    "comment": (b": ", _PIECE)}[request.rig.variant("endless_event")]
    if begin:
        request.reply.write(begin)
    request.pour(piece * max(1, len(_PIECE) // len(piece)), request.rig.option("bytes", 300_000_000))
    _end_of_connection(request)


@mode("never_closes", "T4", transports="http", options="`--seconds` (120)")
def never_closes(request):
    """A valid answer on an event stream that then stays open, for `--seconds` or until the client closes."""
    request.reply.send(request.envelope(request.execute()))
    request.wait(request.rig.seconds(LONGEST_SECONDS))
    raise Cancelled


@mode("drip", "T5", transports="http", options="`--interval` (1), `--seconds` (120)", variants=("body", "headers", "stream", "nothing", "chunks"))
def drip(request):
    """Executes the call, then gives the answer one byte per `--interval`: the `body` of JSON, the `headers`, an event `stream`,
    JSON in `chunks`; or `nothing` at all."""
    rig, variant = request.rig, request.rig.variant("drip")
    answer = request.envelope(request.execute()).encode("utf-8", "surrogateescape")
    interval, deadline = max(rig.option("interval", 1.0), 0.0005), time.monotonic() + rig.seconds(LONGEST_SECONDS)
    if variant == "nothing":
        request.wait(rig.seconds(LONGEST_SECONDS))
        _end_of_connection(request)
        return
    if variant == "stream" or request.reply.kind != "post":
        before, after = request.reply.frame()
        write, data = request.reply.write, before + answer + after
    else:
        connection = request.reply.connection
        framing = ("Transfer-Encoding", "chunked") if variant == "chunks" else ("Content-Length", len(answer))
        head, write = connection.head(200, [("Content-Type", "application/json"), framing, *request.reply.headers]), connection.send
        data = head + answer if variant == "headers" else answer
        if variant == "chunks":
            write = lambda byte: connection.send(b"1\r\n" + byte + b"\r\n")
        if variant != "headers":
            connection.send(head)
    for at in range(len(data)):
        write(data[at : at + 1])
        if time.monotonic() > deadline or request.wait(interval):
            _end_of_connection(request)
            return
    if variant == "chunks":
        request.reply.connection.send(b"0\r\n\r\n")
    request.reply.done = variant != "stream"
    request.reply.finish()


def _end_of_connection(request):
    """Leaves the client with a broken answer rather than a finished one."""
    if request.reply.kind == "post":
        request.reply.done = True
        request.reply.connection.drop()
    elif request.session.stream is not None:
        request.session.stream.end()


@mode("compressed", "T6", transports="http", options="`--bytes` (536870912, unpacked)",
      variants=(*rig_bombs.PIECES, "label_only", "truncated", "corrupt", "unknown_label", "many_labels"))
def compressed(request):
    """Executes the call, then answers with a packed body, a valid answer whose text unpacks to `--bytes`: in one gzip member,
    in many, packed twice, deflate, brotli (512 MiB in 423 bytes), zstd (in 16 KiB). `label_only` says gzip but is plain;
    `truncated`, `corrupt`, `unknown_label` and `many_labels` (50 times gzip, plain) are broken. Whether the client asked
    for any packing stands in `http_log`. Streamable HTTP only; on `/sse` the answer is healthy."""
    result = request.execute()
    if request.reply.kind != "post":
        request.succeed(result)
        return
    variant, connection = request.rig.variant("compressed"), request.reply.connection
    request.reply.done = True
    before, after = request.envelope(text_result("@")).encode().split(b"@")
    fill = max(0, request.rig.option("bytes", 512 << 20))
    plain = request.envelope(result).encode("utf-8", "surrogateescape")
    if variant in rig_bombs.PIECES:
        pieces, label = rig_bombs.PIECES[variant](before, fill, after), rig_bombs.LABELS.get(variant, variant)
    elif variant in ("truncated", "corrupt"):
        whole = b"".join(rig_bombs.gzip_pieces(plain, 0, b""))
        pieces, label = [whole[: len(whole) // 2] if variant == "truncated" else whole[:12] + b"\xff" * 20 + whole[32:]], "gzip"
    else:
        pieces, label = [plain], {"label_only": "gzip", "unknown_label": "example-packing", "many_labels": ", ".join(["gzip"] * 50)}[variant]
    connection.send_head(200, [("Content-Type", "application/json"), ("Content-Encoding", label), ("Transfer-Encoding", "chunked"), *request.reply.headers])
    sent, complete = 0, True
    try:
        for piece in pieces:
            if piece:
                connection.send(b"%x\r\n%s\r\n" % (len(piece), piece))
                sent += len(piece)
        connection.send(b"0\r\n\r\n")
    except OSError:
        complete = False
    request.rig.records.add("cutoffs", request.id, sent, "complete" if complete else "peer_closed")


@mode("unbounded_body", "P8, T4", transports="http", options="`--bytes` (300000000), `--status` (200)",
      variants=("json", "error_text", "content_length", "headers"))
def unbounded_body(request):
    """Executes the call, then answers with a JSON body (or, with `error_text`, a text body of status 500) that does not end
    before `--bytes`; `content_length` announces 1 TiB; `headers` is an endless head. Stops when nobody reads."""
    request.execute()
    rig, variant = request.rig, request.rig.variant("unbounded_body")
    total = rig.option("bytes", 300_000_000)
    if request.reply.kind != "post":
        request.reply.write(request.reply.frame()[0])
        request.pour(_PIECE, total)
        _end_of_connection(request)
        return
    connection = request.reply.connection
    begin = request.envelope('{"content":[{"type":"text","text":"')[:-1].encode()
    if variant == "headers":
        connection.send(b"HTTP/1.1 200 OK\r\nX-Endless: ")
        request.pour(_PIECE, total, connection.send)
    else:
        failed = variant == "error_text"
        framing = ("Content-Length", 1 << 40) if variant == "content_length" else ("Transfer-Encoding", "chunked")
        connection.send_head(rig.option("status", 500 if failed else 200), [("Content-Type", "text/plain" if failed else "application/json"), framing])
        if variant == "content_length":
            connection.send(begin)
            request.pour(_PIECE, total, connection.send)
        else:
            write = lambda data: connection.send(b"%x\r\n%s\r\n" % (len(data), data))
            write(begin)
            request.pour(_PIECE, total, write)
    _end_of_connection(request)


_OK = b"HTTP/1.1 200 OK\r\n"
_JSON = b"Content-Type: application/json\r\n"
_BAD_HTTP = {
    "html": lambda a: _OK + b"Content-Type: text/html\r\nContent-Length: 24\r\n\r\n<html>canary-html</html>",
    "no_content_type": lambda a: _OK + b"Content-Length: %d\r\n\r\n" % len(a) + a,
    "odd_content_type": lambda a: _OK + b"Content-Type: Application/JSON ; charset=\"utf-16\"\r\nContent-Length: %d\r\n\r\n" % len(a) + a,
    "two_content_types": lambda a: _OK + _JSON + b"Content-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(a) + a,
    "stream_type_json_body": lambda a: _OK + b"Content-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(a) + a,
    "json_type_stream_body": lambda a: _OK + _JSON + b"Content-Length: %d\r\n\r\n" % (len(a) + 8) + b"data: " + a + b"\n\n",
    "status_202": lambda a: b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n",
    "status_204": lambda a: b"HTTP/1.1 204 No Content\r\n\r\n",
    "status_206": lambda a: b"HTTP/1.1 206 Partial Content\r\n" + _JSON + b"Content-Length: %d\r\n\r\n" % len(a) + a,
    "status_299": lambda a: b"HTTP/1.1 299 \r\n" + _JSON + b"Content-Length: %d\r\n\r\n" % len(a) + a,
    "status_500_json": lambda a: b"HTTP/1.1 500 Oops\r\n" + _JSON + b"Content-Length: %d\r\n\r\n" % len(a) + a,
    "status_999": lambda a: b"HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n",
    "status_101": lambda a: b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    "status_line_garbage": lambda a: b"HELLO WORLD\r\n\r\n",
    "http_0_9": lambda a: a,
    "http_1_0": lambda a: b"HTTP/1.0 200 OK\r\n" + _JSON + b"\r\n" + a,
    "tls_alert": lambda a: b"\x15\x03\x01\x00\x02\x02\x28",
    "empty_body": lambda a: _OK + _JSON + b"Content-Length: 0\r\n\r\n",
    "empty_stream": lambda a: _OK + b"Content-Type: text/event-stream\r\nContent-Length: 0\r\n\r\n",
    "length_too_long": lambda a: _OK + _JSON + b"Content-Length: %d\r\n\r\n" % (len(a) + 100) + a,
    "length_too_short": lambda a: _OK + _JSON + b"Content-Length: %d\r\n\r\n" % (len(a) // 2) + a,
    "length_negative": lambda a: _OK + _JSON + b"Content-Length: -5\r\n\r\n" + a,
    "length_text": lambda a: _OK + _JSON + b"Content-Length: many\r\n\r\n" + a,
    "two_lengths": lambda a: _OK + _JSON + b"Content-Length: %d\r\nContent-Length: 3\r\n\r\n" % len(a) + a,
    "length_and_chunked": lambda a: _OK + _JSON + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(a), a),
    "chunk_size_garbage": lambda a: _OK + _JSON + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + a,
    "chunk_size_huge": lambda a: _OK + _JSON + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n" + a,
    "chunk_extension_huge": lambda a: _OK + _JSON + b"Transfer-Encoding: chunked\r\n\r\n3;" + b"x" * 1_000_000 + b"\r\n",
    "many_headers": lambda a: _OK + b"".join(b"X-%d: y\r\n" % n for n in range(10_000)) + _JSON + b"Content-Length: %d\r\n\r\n" % len(a) + a,
    "huge_header": lambda a: _OK + b"X-Huge: " + b"h" * 1_000_000 + b"\r\n" + _JSON + b"Content-Length: %d\r\n\r\n" % len(a) + a,
    "header_garbage": lambda a: _OK + b"no colon here\r\n\x00\x01: \xff\r\n" + _JSON + b"Content-Length: %d\r\n\r\n" % len(a) + a,
    "bare_newlines": lambda a: (_OK + _JSON + b"Content-Length: %d\r\n\r\n" % len(a)).replace(b"\r\n", b"\n") + a,
    "many_continues": lambda a: b"HTTP/1.1 100 Continue\r\n\r\n" * 1000 + _OK + _JSON + b"Content-Length: %d\r\n\r\n" % len(a) + a,
    "set_cookie": lambda a: _OK + b"Set-Cookie: canary=1; Path=/\r\n" + _JSON + b"Content-Length: %d\r\n\r\n" % len(a) + a,
    "two_answers": lambda a: (_OK + _JSON + b"Content-Length: %d\r\n\r\n" % len(a) + a) * 2,
}


@mode("bad_http", "T4, J4, T6", transports="http", variants=tuple(_BAD_HTTP))
def bad_http(request):
    """Executes the call, then answers with the raw HTTP bytes that the variant names and closes the connection (`set_cookie`,
    `two_answers`, `no_content_type`, `many_continues` and `http_1_0` can be read; the rest is wrong in some way).
    Streamable HTTP only; on `/sse` the answer is healthy."""
    result = request.execute()
    if request.reply.kind != "post":
        request.succeed(result)
        return
    answer = request.envelope(result).encode("utf-8", "surrogateescape")
    request.reply.done = True
    request.reply.connection.send(_BAD_HTTP[request.rig.variant("bad_http")](answer))
    request.reply.connection.drop()


@mode("unavailable", "P7, peers 5c", hook="http", transports="http", when="every", options="`--status` (503), `--after`, `--times`",
      variants=("text", "html", "json", "drop", "reset"))
def unavailable(exchange):
    """Every request is answered with `--status`, or its connection is dropped or reset. (A server that refuses connections:
    control action `down`.)"""
    variant = exchange.rig.variant("unavailable")
    if variant in ("drop", "reset"):
        exchange.connection.drop(reset=variant == "reset")
        return True
    body, kind = {"text": (b"upstream canary-unavailable at 10.9.8.7", "text/plain"), "html": (b"<html><h1>canary-unavailable</h1></html>", "text/html"),
                  "json": (b'{"error":"canary-unavailable"}', "application/json")}[variant]
    exchange.connection.respond(exchange.rig.option("status", 503), body, kind, [("Retry-After", "1")])
    return True


@mode("auth_challenge", "T3, R-54", hook="http", transports="http", when="every", options="`--status` (401), `--target` (http://169.254.169.254/latest)",
      variants=("resource_metadata", "no_header", "malformed", "basic", "huge", "insufficient_scope"))
def auth_challenge(exchange):
    """Every request is answered with 401 (or `--status`) and a challenge, the default one naming a place to fetch."""
    target = exchange.rig.option("target", "http://169.254.169.254/latest")
    challenge = {"resource_metadata": f'Bearer resource_metadata="{target}"', "no_header": None, "malformed": 'Bearer resource_metadata="unclosed, =,;',
                 "basic": 'Basic realm="rig"', "huge": f'Bearer scope="{"s" * 100_000}"',
                 "insufficient_scope": f'Bearer error="insufficient_scope", scope="admin", resource_metadata="{target}"'}[exchange.rig.variant("auth_challenge")]
    exchange.connection.respond(exchange.rig.option("status", 401), b'{"error":"canary-challenge"}', "application/json",
                                [("WWW-Authenticate", challenge)] if challenge else [])
    return True


@mode("forget_session_after", "SH-05, SH-07, C4", hook="http", transports="http", when="every", options="`--calls` (2)")
def forget_session_after(exchange):
    """Each session is forgotten after `--calls` calls: whatever comes next with its id gets 404 and is not executed. A new
    session works again, as long."""
    session = exchange.rig.sessions.get(exchange.header("mcp-session-id"))
    if session is None or exchange.method == "DELETE" or session.calls < exchange.rig.option("calls", 2):
        return False
    exchange.rig.forget_session(session)
    exchange.connection.respond_unknown_session()
    return True


def _refuse(exchange):
    exchange.rig.records.add("refused_gets", exchange.method)
    exchange.connection.respond(405, b"", None, [("Allow", "POST")])
    return True


@mode("sessionless", "SH-06", hook="http", transports="http", when="get,delete")
def sessionless(exchange):
    """initialize is answered without a session header and GET with 405. `refused_gets` counts the tries."""
    return _refuse(exchange)


@mode("get_405", "SH-06, peers 19", hook="http", transports="http", when="get")
def get_405(exchange):
    """Sessions as usual, but GET is answered with 405. `refused_gets` counts the tries."""
    return _refuse(exchange)


@mode("delete_405", "R-42", hook="http", transports="http", when="delete")
def delete_405(exchange):
    """Sessions cannot be ended by the client: DELETE is answered with 405."""
    return _refuse(exchange)


@mode("no_session_header", "SH-06", hook="flag", transports="http")
def no_session_header():
    """initialize is answered without a session header; all clients without one share one state; GET opens a stream."""


@mode("bad_session_id", "T2, J4", hook="flag", transports="http",
      variants=("space", "non_ascii", "long", "empty", "comma", "same_for_all", "path", "tab"))
def bad_session_id():
    """Session ids that break the rules (or, `same_for_all`, are not unique)."""


@mode("get_stream", "T4, SH-06", hook="http", transports="http", when="get", options="`--interval` (0.1), `--seconds` (120), `--bytes` (300000000)",
      variants=("ends_at_once", "status_500", "json", "endless_comments", "endless_event", "retry_zero", "not_messages"))
def get_stream(exchange):
    """The GET stream misbehaves: ends at once with 200, is an error, is JSON, is comments or one event without end, asks for
    reconnection after 0 ms and ends, or holds events that are no messages. `streams` counts the tries."""
    rig, connection, variant = exchange.rig, exchange.connection, exchange.rig.variant("get_stream")
    rig.records.add("streams", "odd", exchange.header("mcp-session-id") or "-")
    if variant in ("status_500", "json"):
        connection.respond(500 if variant == "status_500" else 200, b'{"stream":"canary-no-stream"}', "application/json")
        return True
    connection.send_head(200, [("Content-Type", "text/event-stream"), ("Transfer-Encoding", "chunked")])
    write = lambda data: connection.send(b"%x\r\n%s\r\n" % (len(data), data))
    deadline = time.monotonic() + rig.seconds(LONGEST_SECONDS)
    if variant == "endless_comments":
        while time.monotonic() < deadline and not connection.peer_closed():
            write(b":\n")
            time.sleep(max(rig.option("interval", 0.1), 0.0005))
    elif variant == "endless_event":
        sent, total = 0, rig.option("bytes", 300_000_000)
        write(b"data: ")
        try:
            while sent < total and time.monotonic() < deadline:
                write(_PIECE[: total - sent])
                sent += len(_PIECE)
        except OSError:
            pass
        rig.records.add("cutoffs", "get", min(sent, total), "complete" if sent >= total else "peer_closed")
    elif variant == "retry_zero":
        write(b"retry: 0\nid: 1\ndata: \n\n")
    elif variant == "not_messages":
        write(b'data: not JSON\n\ndata: []\n\ndata: {"jsonrpc":"2.0"}\n\nevent: endpoint\ndata: /elsewhere\n\ndata: \xff\xfe\n\n')
    if not connection.peer_closed():
        connection.send(b"0\r\n\r\n")
    connection.drop()
    return True


@mode("sse_style", "R-43, T4", hook="flag", transports="http",
      variants=("crlf", "cr", "no_space", "multiple_data", "comments", "ids", "unknown_events", "byte_order_mark", "split", "plain"))
def sse_style():
    """Healthy answers, always as event streams, in one of the spellings that the format allows; `split` sends each byte as a
    chunk of its own."""


@mode("foreign_endpoint", "T3", hook="flag", transports="http",
      variants=("absolute", "scheme_relative", "userinfo", "file", "empty", "newline", "huge", "own_absolute"))
def foreign_endpoint():
    """The old transport's `endpoint` event names the sentinel on another port in some spelling, a file, a header injection or
    a megabyte, or does not come (`empty`); `own_absolute` is right, only written in full."""
