"""Unmodified clients against a running server: python client_checks.py BASE_URL [names...]. Exits 1 when a check fails.

The checks ask for shapes, not for clever answers, so that they hold for every model.
"""
import asyncio
import base64
import json
import struct
import sys
import traceback
import zlib

BASE = sys.argv[1].rstrip("/")
KEY = "sk-local"


def png(width=64, height=64):
    rows = b"".join(b"\0" + bytes([200, 30, 30]) * width for _ in range(height))
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


PNG_URI = "data:image/png;base64," + base64.b64encode(png()).decode()
TOOL = {"type": "function", "function": {"name": "add", "description": "Add two numbers", "parameters": {
    "type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]}}}
SCHEMA = {"type": "object", "properties": {"color": {"enum": ["red", "green", "blue"]}, "count": {"type": "integer", "minimum": 0, "maximum": 9}},
          "required": ["color", "count"], "additionalProperties": False}


def openai_client():
    import openai
    return openai.OpenAI(base_url=BASE + "/v1", api_key=KEY, max_retries=0)


def takes_images():
    return openai_client().models.list().data[0].accepts_images


def openai_chat():
    done = openai_client().chat.completions.create(model="any", messages=[{"role": "user", "content": "Say hello."}], max_tokens=24, temperature=0)
    assert done.choices[0].message.content is not None and done.usage.completion_tokens <= 24
    assert done.choices[0].finish_reason in ("stop", "length")


def openai_stream():
    client = openai_client()
    ask = dict(model="any", messages=[{"role": "user", "content": "Say hello."}], max_tokens=24, temperature=0)
    whole = client.chat.completions.create(**ask).choices[0].message.content
    chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 0
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole
    asyncio.run(openai_async(whole, ask))


async def openai_async(whole, ask):
    import openai
    async with openai.AsyncOpenAI(base_url=BASE + "/v1", api_key=KEY, max_retries=0) as client:
        answers = await asyncio.gather(*(client.chat.completions.create(**ask) for _ in range(8)))
    # Alone or in a batch, a greedy answer is the same.
    assert all(a.choices[0].message.content == whole for a in answers)


def openai_tools():
    client = openai_client()
    messages = [{"role": "user", "content": "Add 2 and 3."}]
    done = client.chat.completions.create(model="any", messages=messages, tools=[TOOL], tool_choice="required", max_tokens=200, temperature=0)
    call = done.choices[0].message.tool_calls[0]
    arguments = json.loads(call.function.arguments)
    assert call.function.name == "add" and set(arguments) >= {"a", "b"}, arguments
    messages += [done.choices[0].message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "5"}]
    assert client.chat.completions.create(model="any", messages=messages, tools=[TOOL], max_tokens=24, temperature=0).choices
    streamed = client.chat.completions.create(model="any", messages=messages[:1], tools=[TOOL], tool_choice="required", max_tokens=200, temperature=0, stream=True)
    text, ids = "", []
    for chunk in streamed:
        for piece in chunk.choices[0].delta.tool_calls or []:
            ids += [piece.id] if piece.id else []
            if piece.index == 0:
                text += piece.function.arguments or ""
    assert json.loads(text) == arguments and ids


def openai_parse():
    import pydantic
    from typing import Literal

    class Picture(pydantic.BaseModel):
        color: Literal["red", "green", "blue"]
        sure: bool

    done = openai_client().chat.completions.parse(model="any", messages=[{"role": "user", "content": "A red ball."}], response_format=Picture,
                                                       max_tokens=100, temperature=0)
    assert isinstance(done.choices[0].message.parsed, Picture)


def schema_50():
    import jsonschema
    client = openai_client()
    for i in range(50):
        done = client.chat.completions.create(model="any", messages=[{"role": "user", "content": f"Describe thing {i}."}], max_tokens=200, seed=i, temperature=1,
                                              response_format={"type": "json_schema", "json_schema": {"name": "t", "strict": True, "schema": SCHEMA}})
        assert done.choices[0].finish_reason == "stop", done
        jsonschema.validate(json.loads(done.choices[0].message.content), SCHEMA)


def openai_images():
    if not takes_images():
        return "the model takes no pictures"
    done = openai_client().chat.completions.create(model="any", max_tokens=24, temperature=0, messages=[{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": PNG_URI}}, {"type": "text", "text": "What color is it?"}]}])
    assert done.choices[0].message.content


def openai_embeddings():
    client = openai_client()
    vectors = client.embeddings.create(model="any", input=["one", "two words"])
    assert len(vectors.data) == 2 and len(vectors.data[0].embedding) == len(vectors.data[1].embedding) > 1
    plain = client.embeddings.create(model="any", input="one", encoding_format="float").data[0].embedding
    assert max(abs(a - b) for a, b in zip(plain, vectors.data[0].embedding)) < 1e-3 * max(map(abs, plain))


def openai_responses():
    client = openai_client()
    done = client.responses.create(model="any", input="Say hello.", max_output_tokens=24, temperature=0)
    assert done.output_text and done.usage.output_tokens <= 24
    kinds, text = [], ""
    for event in client.responses.create(model="any", input="Say hello.", max_output_tokens=24, temperature=0, stream=True):
        kinds.append(event.type)
        text += event.delta if event.type == "response.output_text.delta" else ""
    assert text == done.output_text and kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete")


def openai_errors():
    import openai
    client = openai_client()
    for stream in (False, True):
        try:
            client.chat.completions.create(model="any", messages=[{"role": "user", "content": "x"}], max_tokens=10_000_000, stream=stream)
        except openai.BadRequestError as error:
            assert error.code == "context_length_exceeded", error
        else:
            raise AssertionError("no error")


def openai_legacy():
    done = openai_client().completions.create(model="any", prompt="Once upon", max_tokens=8, logprobs=3, temperature=0)
    assert len(done.choices[0].logprobs.tokens) <= 8 and done.choices[0].text is not None


def anthropic_messages():
    import anthropic
    client = anthropic.Anthropic(base_url=BASE, api_key=KEY, max_retries=0)
    # This client has no parameter for the temperature any more; the API still takes it.
    greedy = {"extra_body": {"temperature": 0}}
    ask = dict(model="any", max_tokens=24, system="Be brief.", messages=[{"role": "user", "content": "Say hello."}], **greedy)
    done = client.messages.create(**ask)
    assert done.content[0].type == "text" and done.stop_reason in ("end_turn", "max_tokens")
    with client.messages.stream(**ask) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == done.content[0].text == final.content[0].text and final.usage.output_tokens == done.usage.output_tokens
    assert client.messages.count_tokens(model="any", messages=ask["messages"]).input_tokens > 0
    tool = {"name": "add", "description": "Add two numbers", "input_schema": TOOL["function"]["parameters"]}
    called = client.messages.create(model="any", max_tokens=200, **greedy, messages=[{"role": "user", "content": "Add 2 and 3."}], tools=[tool],
                                    tool_choice={"type": "any"})
    use = next(block for block in called.content if block.type == "tool_use")
    assert called.stop_reason == "tool_use" and use.name == "add" and set(use.input) >= {"a", "b"}


def litellm_chat():
    import os
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would fetch a price list otherwise
    import litellm
    litellm.telemetry = False
    done = litellm.completion(model="openai/any", api_base=BASE + "/v1", api_key=KEY, messages=[{"role": "user", "content": "Say hello."}], max_tokens=16)
    assert done.choices[0].message.content is not None
    parts = litellm.completion(model="openai/any", api_base=BASE + "/v1", api_key=KEY, messages=[{"role": "user", "content": "Say hello."}], max_tokens=16, stream=True)
    assert list(parts)


def langchain_chat():
    from langchain_openai import ChatOpenAI
    chat = ChatOpenAI(model="any", base_url=BASE + "/v1", api_key=KEY, max_tokens=120, temperature=0, max_retries=0)
    assert chat.invoke("Say hello.").content is not None
    assert "".join(piece.content for piece in chat.stream("Say hello.")) == chat.invoke("Say hello.").content
    called = chat.bind_tools([TOOL], tool_choice="required").invoke("Add 2 and 3.")
    assert called.tool_calls[0]["name"] == "add"


CHECKS = [openai_chat, openai_stream, openai_tools, openai_parse, openai_images, openai_embeddings, openai_responses, openai_errors, openai_legacy,
          schema_50, anthropic_messages, litellm_chat, langchain_chat]

if __name__ == "__main__":
    wanted = sys.argv[2:]
    failed = 0
    for check in CHECKS:
        if wanted and check.__name__ not in wanted:
            continue
        try:
            note = check()
            print(f"ok      {check.__name__}" + (f" ({note})" if note else ""), flush=True)
        except Exception:
            failed += 1
            print(f"FAILED  {check.__name__}\n{traceback.format_exc()}", flush=True)
    sys.exit(1 if failed else 0)
