"""Python's clients of the OpenAI API, unchanged, through the router. argv[1]: the router's URL. A line a case."""

import asyncio
import importlib
import json
import os
import sys
import time
import urllib.request

# It would ask the network for its price list.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

URL = sys.argv[1]
MODEL = "fake-llm"
MESSAGES = [{"role": "user", "content": "hello"}]
TOOLS = [{"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}]
BODY = {"model": MODEL, "messages": MESSAGES, "max_tokens": 6}
CASES = []


def case(library, name):
    def keep(function):
        CASES.append((library, name, function))
        return function

    return keep


def expect(condition, what):
    if not condition:
        raise AssertionError(what)


def rejects(error, call):
    try:
        call()
    except error as caught:
        return caught
    raise AssertionError(f"no {error.__name__}")


def openai_client(key="python", **more):
    from openai import OpenAI

    return OpenAI(base_url=f"{URL}/v1", api_key=key, **{"max_retries": 0, "timeout": 20, **more})


def ask(client=None, **more):
    return (client or openai_client()).chat.completions.create(**{**BODY, **more})


def idle_within(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with urllib.request.urlopen(f"{URL}/engines", timeout=5) as answer:
            if all(engine["in_flight"] == 0 for engine in json.load(answer)):
                return True
        time.sleep(0.05)
    return False


@case("openai", "chat")
def _():
    expect(ask().choices[0].message.content, "no content")


@case("openai", "completion, embeddings, models")
def _():
    client = openai_client()
    expect(client.completions.create(model=MODEL, prompt="hello", max_tokens=4).choices[0].text, "no text")
    expect(client.embeddings.create(model=MODEL, input="hello").data[0].embedding, "no vector")
    expect(client.models.list().data[0].id == MODEL, "no model")


@case("openai", "stream with usage")
def _():
    chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    expect(len(chunks) >= 6 and chunks[-1].usage.completion_tokens == 6, chunks)


@case("openai", "tools, and unknown fields")
def _():
    expect(ask(tools=TOOLS, tool_choice="auto", extra_body={"unknown": [1]}).choices, "no choices")


@case("openai", "a cancelled stream, then the next request")
def _():
    client = openai_client()
    stream = ask(client, stream=True, max_tokens=1000)
    next(iter(stream))
    stream.close()
    # The engine would talk for five seconds.
    expect(idle_within(2), "the engine still works for a client that has gone")
    expect(ask(client).choices, "no choices")


@case("openai", "a time-out is APITimeoutError")
def _():
    import openai

    begun = time.monotonic()
    rejects(openai.APITimeoutError, lambda: ask(openai_client(timeout=0.3), extra_headers={"X-Fault": "hang"}))
    expect(time.monotonic() - begun < 5, "it waited")


@case("openai", "400, 401, 404, 429, 500 have their classes")
def _():
    import openai

    missing = rejects(openai.NotFoundError, lambda: ask(model="nobody"))
    expect(missing.code == "model_not_found" and "nobody" in missing.message, missing.body)
    rejects(openai.BadRequestError, lambda: openai_client().post("/chat/completions", cast_to=object, body=[]))
    for status, error in [(400, "BadRequestError"), (401, "AuthenticationError"), (429, "RateLimitError"), (500, "InternalServerError")]:
        rejects(getattr(openai, error), lambda: ask(extra_headers={"X-Fault": f"status={status}"}))


@case("openai", "the router's own 429 is retried until there is room")
def _():
    import openai

    client = openai_client(key="busy", max_retries=6)
    held = [iter(ask(client, stream=True, max_tokens=150)) for _ in range(4)]
    [next(stream) for stream in held]
    limited = rejects(openai.RateLimitError, lambda: ask(openai_client(key="busy")))
    expect(limited.response.headers["retry-after"] == "1", limited.response.headers)
    expect(ask(client).choices, "no choices")
    [list(stream) for stream in held]


@case("openai", "async: 20 at once, and a stream")
def _():
    from openai import AsyncOpenAI

    async def run():
        async def one(number):
            async with AsyncOpenAI(base_url=f"{URL}/v1", api_key=f"async-{number}", max_retries=0) as client:
                answer = await client.chat.completions.create(**BODY)
                expect(answer.choices, "no choices")
                stream = await client.chat.completions.create(**BODY, stream=True)
                return len([chunk async for chunk in stream])

        expect(min(await asyncio.gather(*map(one, range(20)))) >= 6, "a stream was short")

    asyncio.run(run())


@case("anthropic", "messages reach /v1/messages")
def _():
    # The fake engine echoes this path: what is shown is that the request came whole.
    from anthropic import Anthropic

    client = Anthropic(base_url=URL, api_key="python", max_retries=0)
    answer = client.messages.with_raw_response.create(model=MODEL, max_tokens=4, messages=MESSAGES)
    expect(json.loads(answer.http_response.content)["path"] == "/v1/messages", answer.http_response.content)


@case("anthropic", "404 is NotFoundError")
def _():
    import anthropic

    client = anthropic.Anthropic(base_url=URL, api_key="python", max_retries=0)
    rejects(anthropic.NotFoundError, lambda: client.messages.create(model="nobody", max_tokens=4, messages=MESSAGES))


@case("langchain_openai", "invoke, stream, tools")
def _():
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(base_url=f"{URL}/v1", api_key="python", model=MODEL, max_tokens=6, max_retries=0)
    expect(chat.invoke("hello").content, "no content")
    expect("".join(chunk.content for chunk in chat.stream("hello")), "no content")
    expect(chat.bind_tools(TOOLS).invoke("hello").content, "no content")


@case("litellm", "completion, stream, 404")
def _():
    import litellm

    litellm.suppress_debug_info = True
    where = {"model": f"openai/{MODEL}", "api_base": f"{URL}/v1", "api_key": "python", "messages": MESSAGES, "max_tokens": 6}
    expect(litellm.completion(**where).choices[0].message.content, "no content")
    expect(len(list(litellm.completion(**where, stream=True))) >= 6, "a short stream")
    rejects(litellm.NotFoundError, lambda: litellm.completion(**{**where, "model": "openai/nobody"}))


@case("requests", "a session, a generator as body, a stream")
def _():
    import requests

    with requests.Session() as session:
        chat = f"{URL}/v1/chat/completions"
        expect(session.post(chat, json=BODY, timeout=20).status_code == 200, "status")
        text = json.dumps(BODY).encode()
        headers = {"Content-Type": "application/json"}
        pieces = session.post(chat, data=iter([text[:9], text[9:]]), headers=headers, timeout=20)
        expect(pieces.status_code == 200, pieces.text)
        lines = session.post(chat, json={**BODY, "stream": True}, stream=True, timeout=20).iter_lines()
        expect([line for line in lines if line][-1] == b"data: [DONE]", "no end")


@case("aiohttp", "30 on one session, and one that leaves")
def _():
    import aiohttp

    async def run():
        chat = f"{URL}/v1/chat/completions"
        async with aiohttp.ClientSession() as session:

            async def one(number):
                headers = {"Authorization": f"Bearer {number}"}
                async with session.post(chat, json=BODY, headers=headers) as answer:
                    return answer.status, await answer.json()

            answers = await asyncio.gather(*map(one, range(30)))
            expect(all(status == 200 for status, _ in answers), answers)
            limit = aiohttp.ClientTimeout(total=0.3)
            try:
                await session.post(chat, json=BODY, headers={"X-Fault": "hang"}, timeout=limit)
                raise AssertionError("no time-out")
            except asyncio.TimeoutError:
                pass
            expect((await one(0))[0] == 200, "after the one that left")

    asyncio.run(run())


def main():
    failed = False
    missing = set()
    for library, name, run in CASES:
        try:
            importlib.import_module(library)
        except ImportError:
            if library not in missing:
                missing.add(library)
                print(f"skip  {library}: not installed")
            continue
        try:
            run()
            print(f"ok    {library}: {name}", flush=True)
        except Exception as error:
            failed = True
            print(f"FAIL  {library}: {name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
    return int(failed)


sys.exit(main())
