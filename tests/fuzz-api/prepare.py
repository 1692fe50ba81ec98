"""Fills a fresh installation for the API fuzzing run, so that its requests reach what lies behind a name: a server that
runs, discovered and classified tools, a request for consent, a grant, a code tool.

    prepare.py URL NAME ADMIN_TOKEN VIEWER_TOKEN DATABASE_SERVER DATABASE SOURCE OUT

Appends to OUT, a configuration of the fuzzer, the values of path parameters by the names that they have there. Requests
that remove or change a thing keep made-up identifiers, so that it stays what it is for the others.
"""

import json
import sys
import urllib.error
import urllib.request

PREFIX = "/ajax-api/2.0/mlflow/caliber"

SERVER = f"{PREFIX}/mcp-servers/{{server_id}}"
TOOL = f"{PREFIX}/tools/{{tool_id}}"
# Operations that meet a thing that is there, with the parameters that name it.
REACHED = {
    f"GET {SERVER}": ["server_id"],
    f"GET {SERVER}/history": ["server_id"],
    f"GET {SERVER}/invocations": ["server_id"],
    f"GET {SERVER}/tools": ["server_id"],
    f"GET {SERVER}/tools/{{tool_name}}": ["server_id", "tool_name"],
    f"GET {SERVER}/tools/{{tool_name}}/diff": ["server_id", "tool_name"],
    f"POST {SERVER}/invoke-tool": ["server_id"],
    f"POST {SERVER}/discover-tools": ["server_id"],
    f"POST {SERVER}/test-connection": ["server_id"],
    f"GET {PREFIX}/invocations/{{invocation_id}}": ["invocation_id"],
    f"GET {PREFIX}/approvals/{{approval_id}}": ["approval_id"],
    f"POST {PREFIX}/approvals/{{approval_id}}/approve": ["approval_id"],
    f"GET {TOOL}": ["tool_id"],
    f"PATCH {TOOL}": ["tool_id"],
    f"GET {TOOL}/source": ["tool_id"],
    f"GET {TOOL}/usage": ["tool_id"],
    f"GET {TOOL}/versions": ["tool_id"],
    f"GET {TOOL}/invocations": ["tool_id"],
    f"POST {TOOL}/test-run": ["tool_id"],
}


def main(url, name, admin, viewer, server, database, source, out):
    def call(method, path, body=None, token=admin, expect=(200, 201, 204)):
        request = urllib.request.Request(
            url + PREFIX + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as refusal:
            status, text = refusal.code, refusal.read()
        if status not in expect:
            sys.exit(f"fuzz-api: {method} {path} answered {status}: {text[:500]!r}")
        return json.loads(text) if text else {}

    definition = {
        "name": name,
        "transport": "stdio",
        "command": server,
        "args": ["relational", "--database", database],
        "visibility": "public",
    }
    made = {"server_id": call("POST", "/mcp-servers", definition)["data"]["server_id"]}
    base = f"/mcp-servers/{made['server_id']}"
    found = call("POST", f"{base}/discover-tools")["data"]
    tools = [tool["name"] for tool in found["tools"]]
    made["tool_name"] = "run_query"
    assert made["tool_name"] in tools, tools
    policy = {"allowed": True, "side_effect_level": "read", "requires_approval": False}
    for offered in tools:
        call("PATCH", f"{base}/tools/{offered}/policy", policy)
    query = {"tool_name": made["tool_name"], "arguments": {"sql": "SELECT 1"}}
    made["invocation_id"] = call("POST", f"{base}/invoke-tool", query)["data"]["invocation_id"]
    # Consent that waits for a decision.
    call("PATCH", f"{base}/tools/list_tables/policy", {**policy, "requires_approval": True})
    waiting = call("POST", f"{base}/invoke-tool", {"tool_name": "list_tables"}, expect=(409,))
    made["approval_id"] = waiting["approval_id"]
    grant = {"server_id": made["server_id"], "subject": "viewer"}
    made["grant_id"] = call("POST", "/grants", grant)["data"]["grant_id"]
    spare = {"subject": "spare", "scopes": ["viewer"]}
    made["token_id"] = call("POST", "/tokens", spare)["data"]["token_id"]
    tool = {
        "name": name, "version": "1.0.0", "module_path": "greetings", "callable_name": "hello",
        "source_roots": [source], "visibility": "public",
    }
    # Without a sandbox on this machine nothing can be registered, and its routes answer so.
    registered = call("POST", "/tools", tool, expect=(201, 503))
    made["tool_id"] = registered.get("data", {}).get("tool_id")
    # The viewer's own call, through its grant.
    call("POST", f"{base}/invoke-tool", query, token=viewer)
    with open(out, "a", encoding="utf-8") as file:
        for path, names in REACHED.items():
            values = {name: made[name] for name in names if made.get(name)}
            if values:
                pairs = ", ".join(f'"path.{name}" = "{value}"' for name, value in values.items())
                file.write(f'\n[[operations]]\ninclude-name = "{path}"\nparameters = {{ {pairs} }}\n')


if __name__ == "__main__":
    main(*sys.argv[1:])
