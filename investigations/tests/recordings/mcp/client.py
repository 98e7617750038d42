"""The public client of MCP lists what a server has, calls every tool, and prints the answers as JSON.

client.py stdio ARGUMENTS COMMAND...  or  client.py http ARGUMENTS URL TOKEN
ARGUMENTS is a JSON object of tools' arguments by name."""

import asyncio
import json
import sys

import httpx2
from mcp.client.session import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client


async def call(session, name, arguments):
    try:
        result = await session.call_tool(name, arguments)
    except Exception as error:  # The test checks what the client makes of a refusal.
        return {"refused": str(error)}
    return {"error": bool(result.is_error), "text": "".join(block.text for block in result.content)}


async def talk(streams, arguments):
    async with ClientSession(streams[0], streams[1]) as session:
        begun = await session.initialize()
        tools = (await session.list_tools()).tools
        prompts = (await session.list_prompts()).prompts
        prompt = await session.get_prompt("investigate", {"symptom": "p99 is up"})
        answers = {}
        for tool in tools:
            answers[tool.name] = await call(session, tool.name, arguments.get(tool.name, {}))
        seen = {
            "instructions": begun.instructions,
            "read_only": {tool.name: tool.annotations.read_only_hint for tool in tools},
            "prompts": [one.name for one in prompts],
            "prompt": prompt.messages[0].content.text,
            "answers": answers,
            "unknown_tool": await call(session, "rm_rf", {}),
            "unknown_field": await call(session, "get_causal_chains", {"sql": "x"}),
        }
    print(json.dumps(seen))


async def main():
    transport, arguments, rest = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3:]
    if transport == "stdio":
        server = StdioServerParameters(command=rest[0], args=rest[1:])
        async with stdio_client(server) as streams:
            await talk(streams, arguments)
        return
    headers = {"Authorization": f"Bearer {rest[1]}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as client:
        async with streamable_http_client(rest[0], http_client=client) as streams:
            await talk(streams, arguments)


asyncio.run(main())
