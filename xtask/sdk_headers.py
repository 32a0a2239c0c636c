"""The official SDKs of OpenAI and Anthropic, and the headers of a decision.

The headers are those of `earmark_policy::headers`, whose table test has the same values. A stub transport answers, so
nothing is sent. Run by `cargo xtask gateway`.
"""

import time

import anthropic
import httpx
import httpx2
import openai

# Headers of the first answer, its status, and the seconds that the SDK waits before the second one. None: it gives up.
CASES = [
    ({"retry-after-ms": "1500", "retry-after": "2"}, 429, 1.5),
    ({"retry-after-ms": "1", "retry-after": "1"}, 429, 0.001),
    ({"retry-after": "3"}, 429, 3),
    ({"x-should-retry": "false"}, 429, None),
    ({"x-should-retry": "false"}, 402, None),
    ({"x-should-retry": "false"}, 400, None),
    ({"x-should-retry": "false"}, 403, None),
    ({"retry-after-ms": "100", "retry-after": "1"}, 503, 0.1),
]

OPENAI = {
    "id": "c", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}],
}
ANTHROPIC = {
    "id": "m", "type": "message", "role": "assistant", "model": "m", "content": [{"type": "text", "text": "hi"}],
    "stop_reason": "end_turn", "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1},
}


def call(sdk, http, answer: dict, headers: dict, status: int) -> tuple[list[float], int]:
    """The waits of the SDK, and the number of its requests."""
    waits, requests = [], 0

    def handle(_):
        nonlocal requests
        requests += 1
        if requests == 1:
            return http.Response(status, headers=headers, json={"error": {"message": "denied"}})
        return http.Response(200, json=answer)

    transport = http.Client(transport=http.MockTransport(handle))
    client = sdk(api_key="k", base_url="http://stub", http_client=transport)
    sleep, time.sleep = time.sleep, waits.append
    try:
        if sdk is openai.OpenAI:
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        else:
            client.messages.create(model="m", max_tokens=1, messages=[{"role": "user", "content": "hi"}])
    except (openai.APIStatusError, anthropic.APIStatusError) as error:
        assert error.status_code == status, error
    finally:
        time.sleep = sleep
    return waits, requests


def main() -> None:
    for sdk, http, answer in [(openai.OpenAI, httpx, OPENAI), (anthropic.Anthropic, httpx2, ANTHROPIC)]:
        for headers, status, wait in CASES:
            found = call(sdk, http, answer, headers, status)
            expected = ([], 1) if wait is None else ([wait], 2)
            assert found == expected, f"{sdk.__name__} {status} {headers}: {found}, expected {expected}"
    print(f"sdk headers: {2 * len(CASES)} cases")


if __name__ == "__main__":
    main()
