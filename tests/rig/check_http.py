"""The checks of check_rig.py for modes of the HTTP wire."""

import gzip
import json
import socket
import threading
import time
import zlib

import rig_json
from check_client import OldHttpClient, until
from check_support import assert_equal, check, content_text, each_variant, elapsed, opened
from rig_registry import MODES

CALL = '{"name":"echo","arguments":{"value":1}}'


@check("redirect")
def redirect(transport):
    with opened(transport, "--mode", "redirect", handshake=False) as client:
        sentinel = f"http://127.0.0.1:{client.control_port}/sentinel"
        for variant in each_variant(client, "redirect"):
            response = client.post("tools/call", CALL, identity="1")
            assert_equal(response.status, 307, variant)
            place = {"sentinel": sentinel, "same_origin": "/sentinel", "loop": "/mcp", "file": "file:///etc/passwd", "no_location": None,
                     "many_hops": "/mcp?hop=1"}[variant]
            assert_equal(response.headers.get("location"), place)
        client.control("mode=redirect&status=302&when=call&target=http://example.invalid/x")
        assert client.handshake()
        assert_equal((client.post("tools/call", CALL, identity="2").status, client.last.headers["location"]), (302, "http://example.invalid/x"))
        assert_equal(client.records("sentinel"), [])
        client.exchange("GET", "/sentinel/page", headers={"Authorization": "Bearer x"}, port=client.control_port)
        assert_equal(client.records("sentinel"), ["GET\t/sentinel/page\tBearer x"])


@check("endless_comments")
def endless_comments(transport):
    with opened(transport, "--mode", "endless_comments", "--interval", "0.02") as client:
        response = client.post("tools/call", CALL, identity="1", enough=lambda response: response.body.count(b":\n") >= 5)
        assert response.body.count(b":\n") >= 5 and not response.whole and response.body.strip(b":\n") == b""
        assert_equal(client.wait_records("cancels")[0], "1\tstream_closed\tlive")


@check("endless_event")
def endless_event(transport):
    with opened(transport, "--mode", "endless_event") as client:
        for variant in each_variant(client, "endless_event"):
            response = client.post("tools/call", CALL, identity="1", limit=2_000_000)
            assert len(response.body) > 1_000_000 and b"\n\n" not in response.body, variant
        assert all(line.endswith("peer_closed") for line in client.wait_records("cutoffs", 4))
        client.control("mode=endless_event&bytes=100000")
        assert_equal(len(client.post("tools/call", CALL, identity="1").body), 100_006)


@check("never_closes")
def never_closes(transport):
    with opened(transport, "--mode", "never_closes") as client:
        answer, took = elapsed(client.call)
        assert answer and took < 1
        client.whole_streams = True
        assert client.call(seconds=1) and not client.last.whole


@check("drip")
def drip(transport):
    with opened(transport, "--mode", "drip") as client:
        for variant in each_variant(client, "drip", "interval=0.001"):
            if variant == "nothing":
                assert_equal(client.post("tools/call", CALL, 0.3, "1").raw, b"")
            else:
                assert client.call(), variant
        client.control("mode=drip&interval=0.1")
        got = len(client.post("tools/call", CALL, 1.5, "1").body)
        assert 1 <= got <= 20, got


@check("compressed")
def compressed(transport):
    with opened(transport, "--mode", "compressed") as client:
        for variant in each_variant(client, "compressed", "bytes=3000000"):
            response = client.post("tools/call", CALL, identity="1")
            assert response.whole and "content-encoding" in response.headers, variant
            body = response.body
            if variant in ("gzip", "gzip_members", "gzip_nested"):
                body = gzip.decompress(gzip.decompress(body) if variant == "gzip_nested" else body)
                assert_equal(len(json.loads(body)["result"]["content"][0]["text"]), 3_000_000, variant)
            elif variant == "deflate":
                assert len(json.loads(zlib.decompress(body))["result"]["content"][0]["text"]) == 3_000_000
            elif variant in ("br", "zstd"):
                assert len(body) < 400 and b'"jsonrpc":"2.0"' in body, variant
        client.control("mode=compressed&variant=zstd")
        assert len(client.post("tools/call", CALL, identity="1").body) < 17_000


@check("unbounded_body")
def unbounded_body(transport):
    with opened(transport, "--mode", "unbounded_body") as client:
        for variant in each_variant(client, "unbounded_body"):
            response = client.post("tools/call", CALL, identity="1", limit=2_000_000)
            assert len(response.raw) >= 2_000_000 and not response.whole, variant
            assert_equal(response.status, 500 if variant == "error_text" else 200, variant)
        assert all(line.endswith("peer_closed") for line in client.wait_records("cutoffs", 4))


@check("bad_http")
def bad_http(transport):
    readable = {"set_cookie", "two_answers", "no_content_type", "many_continues", "http_1_0"}
    with opened(transport) as client:
        healthy = client.post("tools/call", CALL, 1, "1").raw
        for variant in each_variant(client, "bad_http"):
            raw = client.post("tools/call", CALL, 1, "1").raw
            assert raw and raw != healthy, variant
            if variant in readable:
                assert b'"structuredContent":{"value":1}' in raw, variant
        assert_equal(len(client.records("executions")), 1 + len(MODES["bad_http"].variants))


@check("unavailable")
def unavailable(transport):
    with opened(transport, "--mode", "unavailable", "--times", "2", handshake=False) as client:
        assert client.handshake() is None and client.last.status == 503
        assert client.handshake() is None
        assert client.handshake(), "back after --times"
        for variant in each_variant(client, "unavailable", "status=502"):
            response = client.post("tools/call", CALL, 1, "1")
            assert_equal(response.status, 0 if variant in ("drop", "reset") else 502, variant)


@check("auth_challenge")
def auth_challenge(transport):
    with opened(transport, "--mode", "auth_challenge", handshake=False) as client:
        for variant in each_variant(client, "auth_challenge"):
            response = client.post("initialize", "{}", identity="1")
            assert_equal((response.status, "www-authenticate" in response.headers), (401, variant != "no_header"), variant)
        client.control("mode=auth_challenge&target=http://10.0.0.1/meta&status=403")
        response = client.post("initialize", "{}", identity="1")
        assert response.status == 403 and "http://10.0.0.1/meta" in response.headers["www-authenticate"]


@check("forget_session_after")
def forget_session_after(transport):
    with opened(transport, "--mode", "forget_session_after") as client:
        assert client.call() and client.call()
        assert client.call() is None and client.last.status == 404
        assert_equal(len(client.records("executions")), 2)
        client.session = None
        assert client.handshake() and client.call()
        assert_equal(len(client.records("initializes")), 2)


@check("sessionless", "get_405", "delete_405", "no_session_header")
def sessions(transport, name):
    with opened(transport, "--mode", name) as client:
        without = name in ("sessionless", "no_session_header")
        assert_equal(client.session is None, without)
        assert client.call("count", "{}") and content_text(client.call("count", "{}")) == "2"
        headers = {"Mcp-Session-Id": client.session or ""}
        status = client.exchange("GET", "/mcp", headers=headers, enough=lambda response: response.status == 200).status
        assert_equal(status, 405 if name in ("sessionless", "get_405") else 200)
        if not without:
            assert_equal(client.exchange("DELETE", "/mcp", headers=headers).status, 405 if name == "delete_405" else 200)
            assert_equal(client.call() is None, name != "delete_405")
        assert_equal(len(client.records("refused_gets")), 0 if name == "no_session_header" else 1)


@check("bad_session_id")
def bad_session_id(transport):
    with opened(transport, "--mode", "bad_session_id", handshake=False) as client:
        seen = {}
        for variant in each_variant(client, "bad_session_id"):
            assert client.request("initialize", "{}")
            seen[variant] = client.session
        assert " " in seen["space"] and "\xe9" in seen["non_ascii"] and len(seen["long"]) > 100_000 and seen["same_for_all"] == "fixed-session"
        assert_equal(seen["empty"], "")


@check("get_stream")
def get_stream(transport):
    with opened(transport, "--mode", "get_stream") as client:
        for variant in each_variant(client, "get_stream", "interval=0.02&seconds=1"):
            response = client.exchange("GET", "/mcp", headers={"Mcp-Session-Id": client.session}, limit=3_000_000,
                                       enough=lambda response: response.body.startswith(b":\n:\n"))
            assert_equal(response.status, 500 if variant == "status_500" else 200)
            assert_equal(response.whole, variant not in ("endless_comments", "endless_event"), variant)
        assert_equal(len(client.records("streams")), len(MODES["get_stream"].variants))
        assert client.call()


@check("sse_style")
def sse_style(transport):
    with opened(transport, "--mode", "sse_style") as client:
        for variant in each_variant(client, "sse_style"):
            assert client.call(), variant
            assert_equal(client.last.headers["content-type"], "text/event-stream")
        client.control("mode=sse_style&variant=multiple_data")
        client.call()
        assert client.last.body.count(b"data:") == 2


@check("foreign_endpoint")
def foreign_endpoint(transport):
    for variant in MODES["foreign_endpoint"].variants:
        if variant == "empty":
            continue
        with OldHttpClient("--mode", "foreign_endpoint", "--variant", variant) as client:
            place = client.path
            if variant in ("absolute", "scheme_relative", "userinfo"):
                assert f":{client.control_port}/messages" in place, place
            elif variant == "own_absolute":
                assert place.startswith(f"http://127.0.0.1:{client.port}/messages?session="), place


# The server as a whole, over HTTP.


@check("control actions", transports=("http",))
def control_actions(transport):
    with opened(transport) as client:
        assert client.call()
        client.control("do=forget_sessions")
        assert client.call() is None and client.last.status == 404
        client.session = None
        assert client.handshake()
        client.control("do=down")
        assert client.call() is None and client.last.raw == b""
        client.control("do=up")
        assert client.call(), "sessions survive down and up"
        client.control("do=restart")
        assert client.call() is None and client.last.status == 404
        client.session = None
        assert client.handshake()
        thread = client.open_get(5)
        client.wait_records("streams")
        assert json.loads(client.control(""))["streams"] == 1
        client.control("do=list_changed&do=drop_streams")
        thread.join(2)
        assert not thread.is_alive() and any("list_changed" in text for text in client.get_response.events())
        assert_equal(client.exchange("GET", "/control?mode=nonsense", port=client.control_port).status, 400)
        assert_equal(client.exchange("GET", "/control?do=nonsense").status, 400)


@check("keep-alive", transports=("http",))
def keep_alive(transport):
    with opened(transport) as client, socket.create_connection(("127.0.0.1", client.port)) as sock:
        body = client.frame("tools/call", CALL, "1").encode()
        head = "".join(f"{name}: {value}\r\n" for name, value in client.headers("tools/call", "{}").items())
        request = f"POST /mcp HTTP/1.1\r\nHost: rig\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        begin = time.monotonic()
        for _ in range(100):
            sock.sendall(request)
            assert b'"value":1' in sock.recv(1 << 16)
        assert time.monotonic() - begin < 2, "one connection serves many requests without delay"
        pieces = f"POST /mcp HTTP/1.1\r\n{head}Transfer-Encoding: chunked\r\n\r\n".encode()
        sock.sendall(pieces + b"%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n" % (10, body[:10], len(body) - 10, body[10:]))
        assert b'"value":1' in sock.recv(1 << 16)


@check("two sessions", transports=("http",))
def two_sessions(transport):
    with opened(transport) as client:
        first = client.session
        assert content_text(client.call("count", "{}")) == "1"
        client.handshake()
        assert client.session != first
        assert content_text(client.call("count", "{}")) == "1"
        client.session = first
        assert content_text(client.call("count", "{}")) == "2"
        assert_equal(client.exchange("DELETE", "/mcp", headers={"Mcp-Session-Id": first}).status, 200)
        assert client.call() is None and client.last.status == 404
        client.session = None
        assert client.call() is None and client.last.status == 400
        assert_equal([line.split("\t")[0] for line in client.records("sessions")], ["open", "open", "delete"])


@check("disconnect", transports=("http",))
def disconnect(transport):
    for era in ("legacy", "modern"):
        with opened(transport, era=era) as client:
            assert client.call("sleep", '{"seconds":20}', seconds=0.2, identity='"gone"') is None
            assert_equal(client.wait_records("cancels"), ['"gone"\tstream_closed\tlive'])


@check("modern rules", transports=("http",))
def modern_rules(transport):
    with opened(transport, era="modern") as client:
        call = lambda **extra: client.post("tools/call", CALL, identity="1", extra={name.replace("_", "-"): value for name, value in extra.items()})
        code = lambda response: rig_json.get(response.body.decode(), "error", "code")
        assert_equal((call().status, client.last.headers.get("mcp-session-id")), (200, None))
        assert_equal((call(Mcp_Name="other").status, code(client.last)), (400, "-32020"))
        assert_equal((call(Mcp_Method="tools/list").status, code(client.last)), (400, "-32020"))
        assert_equal(call(Mcp_Name="=?base64?ZWNobw==?=").status, 200)
        assert_equal((client.post("example/unknown", identity="1").status, code(client.last)), (404, "-32601"))
        assert_equal(client.exchange("GET", "/mcp").status, 405)
        client.era = "legacy"
        assert_equal((client.post("tools/list", identity="1").status, code(client.last)), (400, "-32602"))
        assert_equal((client.post("initialize", identity="1").status, code(client.last)), (400, "-32022"))
    with opened(transport, "--mode", "header_tools", "--variant", "good", era="modern") as client:
        params = '{"name":"good","arguments":{"region":"north"}}'
        assert_equal(client.post("tools/call", params, identity="1").status, 400)
        assert_equal(client.post("tools/call", params, identity="1", extra={"Mcp-Param-Region": "north"}).status, 200)


@check("required header", transports=("http",))
def required_header(transport):
    with opened(transport, "--require-header", "Authorization: Bearer secret", handshake=False) as client:
        assert client.handshake() is None and client.last.status == 401
        assert_equal(client.post("initialize", "{}", identity="1", extra={"Authorization": "Bearer secret"}).status, 200)


@check("lifetime", transports=("http",))
def lifetime(transport):
    with opened(transport, "--lifetime", "0.3") as client:
        assert_equal(client.process.wait(3), 0)


@check("old transport", transports=("sse",))
def old_transport(transport):
    with opened(transport) as client:
        assert len(client.names()) > 5 and content_text(client.call("count", "{}")) == "1"
        begin = time.monotonic()
        threads = [threading.Thread(target=client.call, args=("sleep", '{"seconds":0.6}')) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert time.monotonic() - begin < 2.4, "calls run beside each other"
        client.post("tools/call", '{"name":"sleep","arguments":{"seconds":20}}', identity='"gone"')
        client.wait_records("executions", 7)
        client.sock.shutdown(socket.SHUT_RDWR)
        assert_equal(client.wait_records("cancels"), ['"gone"\tstream_closed\tlive'])
    for name, answers in (("late_answer", True), ("execute_then", False), ("never_closes", True), ("compressed", True), ("bad_http", True), ("line_of", True),
                          ("endless_event", False), ("list_changed_storm", True), ("sse_style", True), ("drip", True), ("server_requests", True)):
        settings = ("--seconds", "5" if name == "drip" else "0.1", "--bytes", "200000", "--interval", "0.001", "--count", "50")
        with opened(transport, "--mode", name, *settings) as client:
            assert_equal(client.call(seconds=2 if answers else 0.4) is not None, answers, name)
            if name == "list_changed_storm":
                until(lambda: Ellipsis if sum("list_changed" in text for text in client.messages) == 50 else client.call() and False, what="the storm")
