"""The checks of check_rig.py for what every fake server does when no mode is on."""

import json
import os
import tempfile
import threading
import time

import rig_json
from check_client import INITIALIZE, until
from check_support import assert_equal, check, content_text, opened, result_of
from rig_core import LEGACY_VERSIONS
from rig_registry import table

ODD_VALUES = ("9007199254740993", "1e400", "-0", "0.1000000000000000000000000000000000000001", "18446744073709551616", '"汉字 🔥 \\u0000 \u2028"',
              '{"a":1,"a":2, "b" : [ ]}', '"\\ud800"', "[" * 3000 + "]" * 3000, "1" * 20_000, "null")


@check("healthy tools")
def tools(transport):
    with opened(transport) as client:
        for value in ODD_VALUES:
            answer = client.call("echo", f'{{"value":{value}}}')
            assert_equal(rig_json.get(answer, "result", "structuredContent", "value"), value)
            assert_equal(content_text(answer), json.loads(value) if value.startswith('"') else value)
        assert_equal(rig_json.get(client.call("echo", '{"value":1,"meta":{"x":1e400}}'), "result", "_meta"), '{"x":1e400}')
        assert_equal([content_text(client.call("count", "{}")) for _ in range(3)], ["1", "2", "3"])
        assert_equal(rig_json.get(client.call("fail", '{"text":"no"}'), "result", "isError"), "true")
        assert_equal(len(content_text(client.call("big", '{"bytes":1000000}'))), 1_000_000)
        assert_equal(rig_json.get(client.call("structured", "{}"), "result", "structuredContent"), '{"count":3,"label":"three"}')
        facts = json.loads(rig_json.get(client.call("environment", "{}"), "result", "structuredContent"))
        assert facts["keys"] == sorted(os.environ) and "--state-dir" in facts["argv"] and "values" not in facts
        answer = client.call("progress", '{"count":4}', token="77")
        assert answer and (transport == "http" or sum('"progressToken":77' in text for text in client.messages) == 4)
        assert_equal(rig_json.get(client.call("nonsense"), "error", "code"), "-32602")
        assert_equal(rig_json.get(client.request("prompts/list"), "error", "code"), "-32601")
        executions = client.records("executions")
        assert_equal(executions[-1].split("\t")[0], "progress")
        assert all(len(line.split("\t")) == 3 for line in executions)
        assert client.request("ping")


@check("versions")
def versions(transport):
    for wanted, expected in (*((version, version) for version in LEGACY_VERSIONS), ("1999-01-01", "2025-11-25"), ("2026-07-28", "2025-11-25")):
        with opened(transport, handshake=False) as client:
            answer = client.request("initialize", INITIALIZE.replace("2025-11-25", wanted))
            assert_equal(rig_json.decode(rig_json.get(answer, "result", "protocolVersion")), expected)
            assert_equal([line.split("\t")[0] for line in client.records("initializes")], [wanted])
    with opened(transport, "--versions", "2024-11-05", handshake=False) as client:
        assert "2024-11-05" in client.request("initialize", INITIALIZE)


@check("eras")
def eras(transport):
    with opened(transport, era="modern") as client:
        listed = client.tools()
        assert_equal([rig_json.get(listed, key) for key in ("resultType", "ttlMs", "cacheScope")], ['"complete"', "0", '"private"'])
        assert_equal(rig_json.get(client.call(), "result", "resultType"), '"complete"')
        assert rig_json.get(client.request("ping"), "error"), "ping is gone"
    with opened(transport, "--legacy-discover", "method_not_found", handshake=False) as client:
        client.era = "modern"
        for how, code in (("method_not_found", "-32601"), ("invalid_params", "-32602"), ("invalid_request", "-32600"), ("server_error", "-32000"), ("odd_code", "7"),
                          ("silent", None)):
            client.control(f"legacy_discover={how}")
            answer = client.request("server/discover", seconds=0.3 if code is None else 5)
            assert_equal(answer and rig_json.get(answer, "error", "code"), code)
        client.era = "legacy"
        assert client.handshake() and client.call()
    with opened(transport, handshake=False, era="dual") as client:
        client.era = "modern"
        assert_equal(rig_json.items(rig_json.get(client.handshake(), "result", "supportedVersions"))[0], '"2026-07-28"')
        assert client.call()
        client.era = "legacy"
        assert client.handshake() and client.call()


@check("modern subscription", transports=("stdio",))
def modern_subscription(transport):
    with opened(transport, era="modern") as client:
        client.send(client.frame("subscriptions/listen", '{"notifications":{"toolsListChanged":true}}', '"sub"'))
        until(lambda: any("subscriptions/acknowledged" in text for text in client.messages), what="the acknowledgement")
        client.control("do=list_changed")
        notice = until(lambda: next((text for text in client.messages if "list_changed" in text), None), what="list_changed")
        assert_equal(rig_json.get(notice, "params", "_meta", "io.modelcontextprotocol/subscriptionId"), '"sub"')
        client.notify("notifications/cancelled", '{"requestId":"sub"}')
        client.wait_records("cancels")
        assert client.call()


@check("paging and catalog")
def paging_and_catalog(transport):
    with opened(transport, "--pages", "3") as client:
        pages, cursor = [], None
        while True:
            page = client.tools(cursor)
            pages.append(len(rig_json.items(rig_json.get(page, "tools"))))
            cursor = rig_json.get(page, "nextCursor")
            if cursor is None:
                break
        assert_equal(pages, [3, 3, 3])
        assert client.tools('"nonsense"') is None
        assert_equal(client.records("lists")[1].split("\t")[0], '"page-2"')
        path = os.path.join(client.folder, "catalog.json")
        with open(path, "w", encoding="utf-8") as file:
            file.write('[{"name":"mine","inputSchema":{"maximum":1e400}},{"name":"echo","inputSchema":{}}]')
        client.control(f"catalog={path}&pages=")
        assert_equal(client.names(), ["mine", "echo"])
        assert "1e400" in client.tools() and content_text(client.call("mine", '{"value":"x"}')) == "x"
        assert client.call("count", "{}"), "tools that are hidden still answer"
        with open(path, "w", encoding="utf-8") as file:
            file.write("this is no list")
        if transport == "http":
            assert "this is no list" in "".join(client.post("tools/list", identity="1").texts())
    with opened(transport, "--instance", "blue", "--tools", "search,find", "--server-name", "other") as client:
        assert {"search", "find"} < set(client.names())
        assert_equal(content_text(client.call("search")), "blue:search")


@check("catalog change", transports=("stdio",))
def catalog_change(transport):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "catalog.json")
        with open(path, "w", encoding="utf-8") as file:
            file.write('[{"name":"one","inputSchema":{"type":"object"}}]')
        with opened(transport, "--catalog", path, "--list-changed-on-catalog-change") as client:
            assert_equal(client.names(), ["one"])
            time.sleep(0.15)
            with open(path, "w", encoding="utf-8") as file:
                file.write('[{"name":"two","inputSchema":{"type":"object"}}]')
            until(lambda: any("list_changed" in text for text in client.messages), what="list_changed")
            assert_equal(client.names(), ["two"])


@check("cancel")
def cancel(transport):
    with opened(transport) as client:
        found = {}
        thread = threading.Thread(target=lambda: found.update(answer=client.call("sleep", '{"seconds":20}', seconds=1.5 if transport == "stdio" else 5, identity='"mine"')))
        begin = time.monotonic()
        thread.start()
        client.wait_records("executions")
        client.notify("notifications/cancelled", '{"requestId":"mine"}')
        thread.join()
        assert found["answer"] is None and (transport == "stdio" or time.monotonic() - begin < 4), "a cancelled call ends without an answer"
        assert_equal(client.records("cancels"), ['"mine"\tnotification\tlive'])
        client.notify("notifications/cancelled", '{"requestId":404}')
        until(lambda: client.records("cancels")[-1] == "404\tnotification\tunknown", what="the second record")


@check("side by side")
def side_by_side(transport):
    with opened(transport) as client:
        begin = time.monotonic()
        answers = []
        threads = [threading.Thread(target=lambda: answers.append(client.call("sleep", '{"seconds":0.5}'))) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len([answer for answer in answers if result_of(answer)]) == 20 and time.monotonic() - begin < 3


@check("records")
def records(transport):
    with opened(transport) as client:
        body = client.frame("tools/call", '{"name":"echo","arguments":{"value":"\\n{\\"id\\":1}"}}', "5")
        if transport == "stdio":
            client.send(body)
        else:
            client.exchange("POST", "/mcp", body.encode(), client.headers("tools/call", "{}"))
        assert_equal(client.wait_records("requests", 3)[-1], body)
        client.wait_records("answers")
        assert client.records("pids")[0].split("\t") == [str(client.process.pid), "server"]


@check("end of input", transports=("stdio",))
def end_of_input(transport):
    with opened(transport) as client:
        client.send(client.frame("tools/call", '{"name":"sleep","arguments":{"seconds":20}}', "5"))
        client.wait_records("executions")
        client.process.stdin.close()
        assert_equal(client.process.wait(2), 0)
    with opened(transport) as client:
        client.control("do=forget_sessions")
        assert_equal(rig_json.get(client.call(), "error", "code"), "-32600")
        assert client.handshake() and client.call()
        client.send("not JSON")
        until(lambda: any('"code":-32600,"message":"not' in text for text in client.messages), what="the refusal")


@check("README", transports=("stdio",))
def readme(_transport):
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "README.md"), encoding="utf-8") as file:
        assert table() in file.read(), "README.md does not hold the table of modes as `--list-modes` prints it"
