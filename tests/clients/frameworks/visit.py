"""Uses tenants through a Python framework or client: `visit.py FRAMEWORK TENANTS`.

`TENANTS` is a JSON list; each entry names a tenant, its endpoint and what to ask of it. The scenario
is the same for every framework. What a framework does not have, its adapter does not define, and
the scenario prints that it lacks it. Each observation is a line of JSON.
"""

import asyncio
import json
import sys

sys.dont_write_bytecode = True

import adapters  # noqa: E402


async def visit(client, tenant):
    def saw(kind, **more):
        print(json.dumps({"saw": kind, "tenant": tenant["name"], **more}), flush=True)

    def can(operation):
        if not hasattr(client, operation):
            saw("lacks", what=operation)
        return hasattr(client, operation)

    saw("tools", names=await client.tools())
    saw("call", text=await client.call(tenant["call"]["tool"], tenant["call"]["arguments"]))
    if many := tenant.get("many"):
        calls = (client.call(many["tool"], {**many["arguments"], many["number"]: n} if many["number"] else {})
                 for n in range(1, many["times"] + 1))
        saw("many", texts=await asyncio.gather(*calls))
    if big := tenant.get("big"):
        saw("big", length=len(await client.call(big["tool"], big["arguments"])))
    if error := tenant.get("error"):
        try:
            saw("no error", text=await client.call(error["tool"], error["arguments"]))
        except Exception as raised:
            saw("error", text=str(raised))
    if (progress := tenant.get("progress")) and can("progress"):
        saw("progress", steps=await client.progress(progress["tool"], progress["arguments"]))
    if resource := tenant.get("resource"):
        if can("resources"):
            saw("resources", names=await client.resources())
        if can("read"):
            saw("read", text=await client.read(resource))
    if prompt := tenant.get("prompt"):
        if can("prompts"):
            saw("prompts", names=await client.prompts())
        if can("prompt"):
            saw("prompt", text=await client.prompt(prompt))


async def main(framework, tenants):
    for tenant in json.loads(tenants):
        async with adapters.ALL[framework](tenant["url"]) as client:
            await visit(client, tenant)


asyncio.run(main(*sys.argv[1:]))
