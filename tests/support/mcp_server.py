"""MCP server over standard input and output, written from the protocol's page. It runs in sandboxes and imports nothing."""

import json
import sys

TOOLS = [
    {
        "name": "add",
        "description": "Add two integers.",
        "inputSchema": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
    {"name": "fail", "description": "Fail.", "inputSchema": {"type": "object", "propertyNames": {"maxLength": 3}}},
    {"name": "exit", "inputSchema": {"type": "object"}},
    {"name": "hang", "inputSchema": {"type": "object"}},
]
calls = 0


def answer(method, params):
    global calls
    if method == "initialize":
        assert params["protocolVersion"]
        return {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "sums", "version": "1"},
        }
    if method == "tools/list":
        first = int(params.get("cursor", 0))
        return {"tools": TOOLS[first : first + 3], **({"nextCursor": str(first + 3)} if first + 3 < len(TOOLS) else {})}
    calls += 1
    if params["name"] == "add":
        print("this line is no message", flush=True)
        send({"id": "ping-1", "method": "ping"})
        assert json.loads(sys.stdin.readline()) == {"jsonrpc": "2.0", "id": "ping-1", "result": {}}
        total = params["arguments"]["a"] + params["arguments"]["b"]
        return {"content": [{"type": "text", "text": f"{total}, call {calls}"}, {"type": "image", "data": ""}]}
    if params["name"] == "fail":
        return {"content": [{"type": "text", "text": "no such place"}], "isError": True}
    if params["name"] == "hang":
        sys.stdin.read()
    sys.exit("the server gives up")


def send(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def main():
    initialized = False
    for line in iter(sys.stdin.readline, ""):
        request = json.loads(line)
        initialized |= request["method"] == "notifications/initialized"
        if "id" in request:
            assert initialized or request["method"] == "initialize"
            send({"id": request["id"], "result": answer(request["method"], request["params"])})


if __name__ == "__main__":
    main()
