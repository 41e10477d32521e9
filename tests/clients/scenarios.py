"""The scenarios of the Python clients. Each prints its observations, one JSON object a line.

The parameters contain the differences between the clients: a session with the interface that
all of them share, and `kit` with a few functions.
"""

import json
import os

import anyio


def saw(kind, **more):
    print(json.dumps({"saw": kind, **more}), flush=True)


async def log(params):
    """The fixture logs each number that it counts."""
    saw("log", level=params.level, data=params.data)


def failed(error):
    saw("error", code=getattr(getattr(error, "error", None), "code", None), message=str(error))


async def tour(session, kit):
    """Each common operation once."""
    saw("tools", names=[tool.name for tool in (await session.list_tools()).tools])
    saw("resources", uris=[str(resource.uri) for resource in (await session.list_resources()).resources])
    saw("prompts", names=[prompt.name for prompt in (await session.list_prompts()).prompts])
    read = await session.read_resource(kit.uri("test://static-text"))
    saw("read", text=read.contents[0].text)
    got = await session.get_prompt("test_simple_prompt")
    saw("prompt", text=got.messages[0].content.text)
    result = await session.call_tool("test_simple_text", {})
    saw("result", text=result.content[0].text)
    await session.send_ping()
    saw("pong")
    try:
        await session.call_tool("no_such_tool", {})
    except kit.error as error:
        failed(error)


async def count(session, kit):
    """Numbered progress. Tests that cut the connection use this scenario, too."""
    await counted(session, {"n": 10, "interval_ms": 30})


async def two(session, kit):
    """Two calls at once, each with its own progress."""
    async with anyio.create_task_group() as calls:
        for who in ("left", "right"):
            calls.start_soon(counted, session, {"n": 10, "interval_ms": 30}, who)


async def sampling(session, kit):
    result = await session.call_tool("test_sampling", {"prompt": "What is it?"})
    saw("result", text=result.content[0].text)


async def elicitation(session, kit):
    result = await session.call_tool("test_elicitation", {"message": "Who are you?"})
    saw("result", text=result.content[0].text)


async def cancel(session, kit):
    """Cancels a call after its third step; the session continues."""
    with anyio.CancelScope() as patience:
        async def step(progress, total, message):
            saw("progress", progress=progress)
            if progress == 3:
                await kit.give_up(session, patience)

        arguments = {"n": 500, "interval_ms": 20}
        await kit.call(session, "rh_count", arguments, step)
        saw("result")
    saw("error", message="given up")
    # The notification and the next call are two requests, so their order is not guaranteed.
    cancelled, tries = "0", 0
    while cancelled == "0" and tries < 100:
        cancelled = (await session.call_tool("rh_cancelled", {})).content[0].text
        tries += 1
        await anyio.sleep(0.02)
    saw("after", cancelled=cancelled)


async def counted(session, arguments, who=None):
    async def step(progress, total, message):
        saw("progress", progress=progress, total=total, message=message, who=who)

    result = await session.call_tool("rh_count", arguments, progress_callback=step)
    saw("result", text=result.content[0].text, who=who)


def goes_on():
    """Whether the scenario continues: until the test removes the file that it has named."""
    return os.path.exists(os.environ["STORY_GOES_ON"])


def has_begun():
    """Whether the test has begun what the scenario waits for."""
    return os.path.exists(os.environ["STORY_GOES_ON"] + ".begun")


async def hold(session, kit):
    """Calls and streams in one session, until the test ends it."""
    turns = 0
    while goes_on():
        result = await session.call_tool("rh_echo", {"turn": turns})
        assert json.loads(result.content[0].text) == {"turn": turns}, result
        await counted(session, {"n": 10, "interval_ms": 50}, turns)
        turns += 1
        saw("turn", turns=turns)


async def idle(session, kit):
    """A session without requests, until the test ends it."""
    await session.call_tool("test_simple_text", {})
    saw("turn")
    while goes_on():
        await anyio.sleep(0.05)
    await after(session)


async def long(session, kit):
    """One long stream, which begins when the test has begun it. The session continues after any final
    response of the stream, when the test ends it: a call at that time would be another one in flight
    when a node dies."""
    saw("ready")
    while not has_begun():
        await anyio.sleep(0.02)
    try:
        await counted(session, {"n": 60, "interval_ms": 50})
    except kit.error as error:
        failed(error)
    while goes_on():
        await anyio.sleep(0.05)
    await after(session)


async def after(session):
    for _ in range(4):
        result = await session.call_tool("test_simple_text", {})
    saw("after", text=result.content[0].text)


ALL = {play.__name__: play for play in (tour, count, two, sampling, elicitation, cancel, hold, idle, long)}
