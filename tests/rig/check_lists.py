"""The checks of check_rig.py for modes of tools/list: sizes, cursors, changes, and catalogs of odd tools."""

import json
import time

import rig_json
from check_client import until
from check_support import assert_equal, check, content_text, each_variant, opened, tool_named, tools_of
from rig_registry import MODES


@check("duplicate_descriptor_keys")
def duplicate_descriptor_keys(transport):
    with opened(transport, "--mode", "duplicate_descriptor_keys") as client:
        for variant in each_variant(client, "duplicate_descriptor_keys"):
            keys = [key for key, _ in rig_json.members(tools_of(client)[1])]
            assert len({key.casefold() for key in keys}) < len(keys), variant


@check("many_tools")
def many_tools(transport):
    with opened(transport, "--mode", "many_tools", "--pages", "4") as client:
        names, cursor = [], None
        while True:
            page = client.tools(cursor)
            names += [rig_json.decode(rig_json.get(raw, "name")) for raw in rig_json.items(rig_json.get(page, "tools"))]
            cursor = rig_json.get(page, "nextCursor")
            if cursor is None:
                break
        assert_equal((len(names), len(set(names)), len(client.records("lists"))), (10_000, 10_000, 4))
        client.control("mode=many_tools&count=100&bytes=5000")
        assert len(client.tools("\"page-2\"")) > 100_000
        assert client.call("tool_00007")


@check("big_description")
def big_description(transport):
    with opened(transport, "--mode", "big_description") as client:
        for variant in each_variant(client, "big_description", "bytes=3000000"):
            tools = tools_of(client)
            assert len(tools) == 2 and len(tools[1]) > 3_000_000, variant
            json.loads(tools[1])


@check("cursor")
def cursor(transport):
    with opened(transport, "--mode", "cursor") as client:

        def walk(variant, limit=6):
            client.control(f"mode=cursor&variant={variant}&count=4&bytes=5000")
            found, tools, position = [], [], None
            for _ in range(limit):
                answer = client.request("tools/list", f'{{"cursor":{position}}}' if position else "{}")
                page = rig_json.get(answer, "result")
                if page is None:
                    return found + ["error"], tools
                tools += [rig_json.decode(rig_json.get(raw, "name")) for raw in rig_json.items(rig_json.get(page, "tools"))]
                position = rig_json.get(page, "nextCursor")
                found.append(position)
                if position in (None, "null"):
                    break
            return found, tools

        assert_equal(walk("same")[0], ['"x"'] * 6)
        cursors, tools = walk("same_new_tools")
        assert set(cursors) == {'"x"'} and len(set(tools)) == 24
        cursors, tools = walk("new")
        assert len(set(cursors)) == 6 and len(set(tools)) == 24
        assert_equal(walk("alternate")[0], ['"c1"', '"c2"', '"c1"', '"c2"', '"c1"', '"c2"'])
        assert_equal(walk("empty_forever")[0], ['""'] * 6)
        cursors, tools = walk("empty_once")
        assert_equal((cursors, len(set(tools))), (['""', None], 8))
        assert_equal(walk("number")[0][0], "7")
        assert_equal(walk("null")[0], ["null"])
        assert_equal(walk("object")[0][0], '{"page":2}')
        cursors, tools = walk("huge")
        assert len(cursors[0]) == 5002 and len(tools) == 8
        assert len(walk("odd_text")[1]) == 8
        cursors, tools = walk("empty_pages")
        assert len(set(cursors)) == 6 and len(tools) == 4
        assert_equal((len(walk("many")[0]), len(walk("many")[1])), (4, 4))
        assert_equal(walk("error_on_second")[0], ['"c1"', "error"])


@check("changing_pages")
def changing_pages(transport):
    with opened(transport, "--mode", "changing_pages") as client:
        for variant in each_variant(client, "changing_pages"):
            first, second = client.tools(), client.tools('"page-2"')
            names = [rig_json.decode(rig_json.get(raw, "name")) for page in (first, second) if page for raw in rig_json.items(rig_json.get(page, "tools"))]
            if variant == "shrink":
                assert second is None
            elif variant == "across_lists":
                assert rig_json.get(first, "nextCursor") is None and names.count("search") >= 2
            else:
                assert_equal(names.count("search"), 1 if variant == "rename" else 2, variant)
                same = rig_json.items(rig_json.get(first, "tools"))[1] in rig_json.items(rig_json.get(second, "tools"))
                assert_equal(same, variant in ("reorder", "duplicate"), variant)


def _list_changes(client):
    if client.transport == "http" and hasattr(client, "get_response"):
        return [text for text in client.get_response.events() if "list_changed" in text]
    return [text for text in client.messages if rig_json.get(text, "method") == '"notifications/tools/list_changed"']


@check("list_changed_storm")
def list_changed_storm(transport):
    with opened(transport, "--mode", "list_changed_storm", "--count", "3000", "--rate", "20000") as client:
        if transport == "http":
            client.open_get(4, enough=lambda response: response.body.count(b"list_changed") >= 3000).join()
        client.wait_records("storms")
        until(lambda: len(_list_changes(client)) == 3000, what="the storm")
        assert client.call(), "calls go on"


@check("list_changed_on_list")
def list_changed_on_list(transport):
    with opened(transport, "--mode", "list_changed_on_list") as client:
        client.whole_streams = True
        assert len(client.names()) > 5 and len(client.names()) > 5
        assert_equal(len(_list_changes(client)), 2)


@check("toggling_tool")
def toggling_tool(transport):
    with opened(transport, "--mode", "toggling_tool") as client:
        if transport == "http":
            thread = client.open_get(3, enough=lambda response: b"list_changed" in response.body)
            client.wait_records("streams")
        assert "added" not in client.names()
        assert client.call()
        assert "added" in client.names()
        if transport == "http":
            thread.join()
        assert_equal(len(_list_changes(client)), 1)
        client.call()
        assert "added" not in client.names()


@check("slow_list")
def slow_list(transport):
    with opened(transport, "--mode", "slow_list", "--seconds", "0.3") as client:
        begin = time.monotonic()
        assert client.names() and time.monotonic() - begin >= 0.3


@check("rug_pull")
def rug_pull(transport):
    for variant in MODES["rug_pull"].variants if transport == "stdio" else ("description", "reserialized"):
        with opened(transport, "--mode", "rug_pull", "--variant", variant) as client:
            before, after = (list(map(json.loads, tools_of(client))) for _ in range(2))
            if variant == "reordered_list":
                assert_equal(before, after[::-1])
            elif variant in ("reserialized", "number_spelling"):
                assert_equal(before, after)
            else:
                changed = [key for key in before[1].keys() | after[1].keys() if before[1].get(key) != after[1].get(key)]
                assert_equal(len(changed), 1, variant)
                assert_equal(before[0], after[0])


@check("schema_refs", "schema_bombs", "schema_patterns", "schema_dialects", "broken_schemas", "header_tools", "poisoned")
def catalogs(transport, name):
    with opened(transport, "--mode", name) as client:
        variants = [variant for variant in MODES[name].variants if variant != "all"]
        tools = [json.loads(raw) for raw in tools_of(client)]
        names = [tool.get("name") for tool in tools]
        assert names[0] == "echo" and set(variants) <= set(names) and len(set(names)) == len(names), names
        assert client.call(names[1] if transport == "stdio" else "echo", '{"value":"x"}'), "its tools can be called"
        if variants:
            client.control(f"mode={name}&variant={variants[-1]}")
            assert variants[-1] in client.names() and len(client.names()) <= 3
        if name == "poisoned":
            assert_equal(sum(found.startswith("poisoned_") and "IMPORTANT" in json.dumps(tool) for found, tool in zip(names, tools)), 9)
        if name == "schema_refs" and transport == "http":
            client.control("mode=schema_refs&variant=http")
            assert f":{client.control_port}/sentinel" in tool_named(client, "http")
        if name == "header_tools":
            client.control("mode=header_tools")
            assert rig_json.get(client.call("good", '{"region":"x"}'), "result", "structuredContent", "head") is not None


@check("one_broken")
def one_broken(transport):
    with opened(transport, "--mode", "one_broken") as client:
        for variant in each_variant(client, "one_broken"):
            tools = tools_of(client)
            assert_equal((len(tools), sum('"sound_' in raw for raw in tools)), (10, 9), variant)


@check("odd_names")
def odd_names(transport):
    with opened(transport, "--mode", "odd_names") as client:
        names = client.names()
        assert_equal(len(names), 2 + len(MODES["odd_names"].variants) - 1)
        assert {"", "s" * 129, "sea\0rch", "search\x1b[2J\x1b[31m", "sea\u202ehcr", "se\u0430rch", "search\U000e0041\U000e0042"} <= set(names)
        assert "search" in content_text(client.call("search", '{"value":"search"}'))
        client.control("mode=odd_names&variant=nul")
        assert client.call("sea\0rch", '{"value":2}')
        assert '"sea\\u0000rch"' in client.records("executions")[-1]


@check("odd_texts")
def odd_texts(transport):
    with opened(transport, "--mode", "odd_texts") as client:
        for variant in each_variant(client, "odd_texts"):
            assert "sea\u200brch" in tool_named(client, "text_zero_width"), variant
