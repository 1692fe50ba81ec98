"""The checks of check_rig.py for modes of a call and its answer."""

import json
import threading
import time

import rig_json
from check_client import until
from check_support import assert_equal, check, each_variant, opened, raw_call, result_of
from rig_registry import MODES
from rig_results import NUMBERS


@check("silent_start")
def silent_start(transport):
    with opened(transport, "--mode", "silent_start", handshake=False) as client:
        assert client.request("initialize", '{"protocolVersion":"2025-11-25"}', seconds=0.4) is None
        client.wait_records("requests")


@check("slow_start")
def slow_start(transport):
    with opened(transport, "--mode", "slow_start", "--seconds", "0.3", handshake=False) as client:
        begin = time.monotonic()
        assert client.handshake() and time.monotonic() - begin >= 0.3
        assert client.call()


@check("silent_call")
def silent_call(transport):
    with opened(transport, "--mode", "silent_call") as client:
        assert client.call(seconds=0.3) is None
        assert_equal(len(client.wait_records("executions")), 1)
        client.control("mode=healthy")
        assert client.call()


@check("late_answer")
def late_answer(transport):
    with opened(transport, "--mode", "late_answer", "--seconds", "1.2") as client:
        found = {}
        thread = threading.Thread(target=lambda: found.update(late=client.call(identity='"late"')))
        thread.start()
        client.wait_records("executions")
        client.notify("notifications/cancelled", '{"requestId":"late"}')
        begin = time.monotonic()
        assert client.call() and time.monotonic() - begin < 1, "the second call is not held up"
        thread.join()
        assert found["late"], "cancelled, and yet it answers"
        assert_equal(client.records("cancels"), ['"late"\tnotification\tlive'])


@check("ignore_cancel")
def ignore_cancel(transport):
    with opened(transport, "--mode", "ignore_cancel", "--seconds", "1", "--variant", "answer") as client:
        found = {}
        thread = threading.Thread(target=lambda: found.update(answer=client.call(identity='"x"')))
        thread.start()
        client.wait_records("executions")
        client.notify("notifications/cancelled", '{"requestId":"x"}')
        assert_equal(client.wait_records("cancels"), ['"x"\tnotification\tlive'])
        thread.join()
        assert found["answer"], "cancelled, and yet it answers"
        client.control("mode=ignore_cancel&variant=never&seconds=0.2")
        assert client.call(seconds=0.5) is None


@check("progress_storm")
def progress_storm(transport):
    with opened(transport, "--mode", "progress_storm") as client:
        client.whole_streams = True

        def steps(query):
            client.control(f"mode=progress_storm&{query}")
            client.messages.clear()
            answer = client.call(token='"mine"')
            assert answer, query
            client.call("fail", "{}") if query.endswith("after_answer") and transport == "stdio" else None
            found = [text for text in client.messages if rig_json.get(text, "method") == '"notifications/progress"']
            return [(rig_json.get(text, "params", "progressToken"), rig_json.get(text, "params", "progress")) for text in found]

        assert_equal(steps("variant=wrong_token")[0], ('"unknown-1"', "1"))
        assert_equal([step for _, step in steps("variant=decreasing")], ["9", "8", "7", "6", "5"])
        assert_equal([step for _, step in steps("variant=same")], ["1"] * 5)
        assert_equal(len(steps("variant=bad_types")), 5)
        assert len(steps("variant=after_answer")) >= 5
        assert_equal(len(steps("variant=flood&count=500&rate=10000")), 500)
        assert 2 <= len(steps("variant=forever&interval=0.05&seconds=0.3")) <= 7


@check("answer_ids")
def answer_ids(transport):
    with opened(transport, "--mode", "answer_ids") as client:
        client.whole_streams = True

        def check_ids(variant, expected):
            client.control(f"mode=answer_ids&variant={variant}&seconds=0.3")
            client.messages.clear()
            params = '{"name":"echo","arguments":{"value":1}}'
            if transport == "stdio":
                client.send(client.frame("tools/call", params, "500"))
                until(lambda: len(client.messages) >= len(expected), what=f"the answers of {variant}")
            else:
                client.request("tools/call", params, identity="500")
            assert_equal([rig_json.get(text, "id") for text in client.messages], expected, variant)

        check_ids("wrong_first", ["501", "500"])
        check_ids("only_wrong", ["501"])
        check_ids("twice", ["500", "500"])
        check_ids("unknown", ["987654321", "500"])
        check_ids("string", ['"500"'])
        check_ids("float", ["500.0"])
        check_ids("null", ["null"])
        check_ids("error_then_result", ["500", "500"])
        client.control("mode=answer_ids&variant=reversed&seconds=3")
        client.messages.clear()
        first = threading.Thread(target=client.call, kwargs={"identity": '"first"'})
        first.start()
        client.wait_records("executions", 9)
        assert client.call(identity='"second"')
        first.join()
        order = [rig_json.get(text, "id") for text in client.messages]
        # Over HTTP each answer has a connection of its own, and which of two threads reads first is left to the system.
        assert_equal(order if transport == "stdio" else sorted(order, reverse=True), ['"second"', '"first"'])


@check("execute_then")
def execute_then(transport):
    for variant in MODES["execute_then"].variants if transport == "http" else ("drop", "half_answer"):
        with opened(transport, "--mode", "execute_then", "--variant", variant) as client:
            assert client.call(seconds=2) is None, variant
            assert_equal(len(client.records("executions")), 1, variant)
            if transport == "stdio" or variant == "exit":
                assert client.process.wait(2) == 1
            elif variant == "status":
                assert_equal(client.last.status, 502)
            elif variant == "forget_session":
                assert_equal(client.last.status, 404)
                assert client.call() is None and client.last.status == 404, "the session stays forgotten"
                client.session = None
                assert client.handshake()
            elif variant in ("drop", "reset"):
                assert_equal(client.last.raw, b"")
            elif variant == "empty_stream":
                assert client.last.whole and client.last.body == b""


@check("server_requests")
def server_requests(transport):
    with opened(transport, "--mode", "server_requests", "--seconds", "0.1") as client:
        client.whole_streams = True

        def requests(query):
            client.control(f"mode=server_requests&seconds=0.1&{query}")
            client.messages.clear()
            assert client.call(identity='"live"'), query
            return [text for text in client.messages if rig_json.get(text, "method") is not None]

        methods = {rig_json.decode(rig_json.get(text, "method")) for text in requests("variant=all")}
        assert {"sampling/createMessage", "elicitation/create", "roots/list", "ping", "example/unknown"} <= methods, methods
        assert "javascript:" in requests("variant=elicitation_url")[0]
        assert_equal(rig_json.get(requests("variant=live_id")[0], "id"), '"live"')
        assert_equal(rig_json.get(requests("variant=null_id")[0], "id"), "null")
        assert_equal(len(requests("variant=flood&count=300")), 300)
        assert len(requests("variant=odd_notifications")) == 5
        client.control("mode=server_requests&variant=roots&seconds=3")
        done = threading.Thread(target=client.call)
        begin = time.monotonic()
        done.start()
        client.wait_records("executions", 7)
        reply = '{"jsonrpc":"2.0","id":"rig-roots-0","error":{"code":-32601,"message":"no"}}'
        if transport == "stdio":
            client.send(reply)
        else:
            client.exchange("POST", "/mcp", reply.encode(), client.headers("", "{}"))
        done.join()
        assert time.monotonic() - begin < 2 and client.records("client_responses") == [reply]


@check("input_required")
def input_required(transport):
    with opened(transport, "--mode", "input_required", era="modern") as client:
        first = result_of(client.call())
        assert_equal(rig_json.get(first, "resultType"), '"input_required"')
        state = rig_json.get(first, "requestState")
        params = f'{{"name":"echo","arguments":{{"value":1}},"inputResponses":{{}},"requestState":{state}}}'
        assert_equal(rig_json.get(result_of(client.request("tools/call", params)), "resultType"), '"complete"')
        assert_equal(client.records("request_states"), [state])
        client.control("mode=input_required&variant=forever")
        assert_equal(rig_json.get(result_of(client.request("tools/call", params)), "resultType"), '"input_required"')
        client.control("mode=input_required&variant=unknown_result_type")
        assert_equal(rig_json.get(result_of(client.call()), "resultType"), '"example_unknown"')
        client.control("mode=input_required&variant=on_list&when=list")
        assert_equal(rig_json.get(client.tools(), "resultType"), '"input_required"')


@check("duplicate_keys")
def duplicate_keys(transport):
    with opened(transport, "--mode", "duplicate_keys") as client:
        for variant in each_variant(client, "duplicate_keys"):
            pairs, lower = [], []

            def collect(found):
                pairs.append([key for key, _ in found])
                lower.append([key.casefold().replace("\uff43", "c") for key, _ in found])
                return dict(found)

            json.loads(raw_call(client), object_pairs_hook=collect)
            assert any(len(set(keys)) < len(keys) for keys in lower), variant
            exact = any(len(set(keys)) < len(keys) for keys in pairs)
            assert exact == (not variant.endswith("case") and variant != "look_alike"), variant
        assert_equal(len(client.records("executions")), len(MODES["duplicate_keys"].variants))


@check("deep")
def deep(transport):
    with opened(transport, "--mode", "deep") as client:
        for variant in each_variant(client, "deep", "depth=300"):
            text = raw_call(client)
            opening = text.count("[") + text.count("{")
            assert opening >= 300, (variant, opening)
            if variant != "unclosed":
                json.loads(text)
        client.control("mode=deep&variant=structured_objects&depth=200000")
        assert raw_call(client).count('{"a":') == 200_000
        client.control("mode=deep&depth=500&when=list")
        assert client.tools().count("[") >= 500


@check("numbers")
def numbers(transport):
    with opened(transport, "--mode", "numbers") as client:
        values = rig_json.items(rig_json.get(client.call(), "result", "structuredContent", "values"))
        assert_equal(tuple(values), NUMBERS)
        client.control("mode=numbers&variant=meta")
        assert_equal(len(rig_json.items(rig_json.get(client.call(), "result", "_meta", "values"))), len(NUMBERS))
        client.control("mode=numbers&variant=long_integer&bytes=100000")
        assert_equal(len(rig_json.get(client.call(), "result", "structuredContent", "values")), 100_002)
        client.control("mode=numbers&variant=not_numbers")
        assert "NaN" in raw_call(client)


_NOT_JSON = {"truncated", "trailing_garbage", "two_values", "single_quotes", "not_json", "raw_control", "byte_order_mark", "invalid_utf8"}


@check("bad_answer")
def bad_answer(transport):
    with opened(transport, "--mode", "bad_answer") as client:
        for variant in each_variant(client, "bad_answer"):
            text = raw_call(client)
            try:
                json.loads(text.encode("utf-8", "surrogateescape").decode("utf-8"))
                valid = True
            except ValueError:
                valid = False
            assert valid == (variant not in _NOT_JSON), (variant, text)
            assert '"value":1}}}' not in text or '"jsonrpc":"2.0"' not in text or "id_" in variant or variant in (
                "no_id", "error_and_result", "answer_with_method", "array_batch", *_NOT_JSON), (variant, text)
        assert_equal(len(client.records("executions")), len(MODES["bad_answer"].variants))
        client.control("mode=bad_answer&variant=result_string&when=list")
        assert_equal(client.tools(), '"text"')
        assert client.call(), "calls are spared"


@check("bad_initialize")
def bad_initialize(transport):
    with opened(transport, "--mode", "bad_initialize", handshake=False) as client:
        for variant in each_variant(client, "bad_initialize", "bytes=100000"):
            answer = client.request("initialize", '{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"c","version":"1"}}')
            result = rig_json.get(answer, "result")
            if variant == "error":
                assert_equal(rig_json.get(answer, "error", "code"), "-32603")
            elif variant == "huge_instructions":
                assert len(result) > 100_000
            else:
                sound = rig_json.get(result, "protocolVersion") == '"2025-06-18"' and rig_json.get(result, "capabilities") == '{"tools":{}}' and \
                    rig_json.get(result, "serverInfo")
                assert not sound, variant


@check("line_of")
def line_of(transport):
    with opened(transport, "--mode", "line_of", "--bytes", "70000") as client:
        assert_equal(len(client.call()), 70_000)
        client.control("mode=line_of&bytes=8388609")
        assert_equal(len(client.call()), 8_388_609)


@check("output")
def output(transport):
    with opened(transport, "--mode", "output") as client:
        seen = {variant: result_of(client.call("structured", "{}")) for variant in each_variant(client, "output")}
        structured = {variant: rig_json.decode(rig_json.get(result, "structuredContent")) for variant, result in seen.items()}
        assert_equal(structured["matching"], {"count": 3, "label": "three"})
        assert_equal(structured["wrong_type"]["count"], "three")
        assert_equal((structured["array"], structured["scalar"], structured["missing"]), ([1, 2, 3], 42, None))
        assert "structuredContent" not in seen["missing"] and '"structuredContent":null' in seen["null"]
        assert rig_json.get(seen["error_other_shape"], "isError") == "true" and "extra" in structured["extra_field"]


@check("odd_result")
def odd_result(transport):
    with opened(transport, "--mode", "odd_result") as client:
        for variant in each_variant(client, "odd_result", "count=2000&bytes=5000000"):
            result = result_of(client.call())
            decoded = json.loads(result)
            if variant == "many_items":
                assert_equal(len(decoded["content"]), 2000)
            elif variant == "many_keys":
                assert_equal(len(decoded["structuredContent"]), 2000)
            elif variant == "big_text":
                assert_equal(len(decoded["content"][0]["text"]), 5_000_000)
            elif variant == "unknown_fields":
                assert '"unknownInBlock":{"x":1e400}' in result and '"z":-0' in result
            elif variant == "http_link" and transport == "http":
                assert str(client.control_port) in result
            elif variant == "texts":
                assert "\u2028" in result and "\\u0000" in result
