#!/usr/bin/env bash
# The SDKs of OpenAI and Anthropic for Python prefer `retry-after-ms`, which no standard knows, to
# Retry-After; of the draft's RateLimit they read nothing.
#
# With Retry-After alone nobody can tell them less than a second.
#
# Seen with openai 3.57.0 and anthropic 2.14.0: `Retry-After: 2` beside `Retry-After-Ms: 300` is a
# wait of 0.3 s, alone one of 2 s; RateLimit with t=4 is not heeded (0.4 to 1 s of their own).
exec "$(dirname "$0")/support/python.sh" openai==3.57.0 anthropic==2.14.0 <<'PY'
import anthropic
import denying
import openai

SDKS = {"openai": openai.OpenAI, "anthropic": anthropic.Anthropic}
CASES = [
    ({"Retry-After": "2", "Retry-After-Ms": "300"}, 0.3, 0.9),
    ({"Retry-After": "2"}, 2.0, 2.9),
    ({"RateLimit": '"requests";r=0;t=4'}, 0.2, 2.9),
]
for name, sdk in SDKS.items():
    for fields, least, most in CASES:
        server = denying.Server(1, fields)
        sdk(api_key="none", base_url=server.url).models.retrieve("any")
        [waited] = server.waits()
        denying.expect(f"{name}, {fields}: waits {waited} s", least <= waited <= most)
PY
