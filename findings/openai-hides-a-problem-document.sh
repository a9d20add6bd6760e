#!/usr/bin/env bash
# The error that OpenAI's SDK for Python raises for a 429 shows nothing of a problem document but a
# member named `message`, at its top or in `error`; `title` and `detail` (RFC 9457) stay hidden.
#
# It is not the media type: as application/json they are hidden as well. Anthropic's SDK, which is
# made alike, shows the whole document.
#
# Seen with openai 3.57.0 and anthropic 2.14.0.
exec "$(dirname "$0")/support/python.sh" openai==3.57.0 anthropic==2.14.0 <<'PY'
import json

import anthropic
import denying
import openai


def shown(sdk, body, media="application/problem+json"):
    fields = {"Retry-After": "1", "content-type": media}
    server = denying.Server(1, fields, json.dumps(body).encode())
    try:
        sdk(api_key="none", base_url=server.url, max_retries=0).models.retrieve("any")
    except (openai.RateLimitError, anthropic.RateLimitError) as error:
        return str(error)


standard = {"title": "Quota exceeded", "detail": "Come back in a second"}
for media in ("application/problem+json", "application/json"):
    text = shown(openai.OpenAI, standard, media)
    denying.expect(f"openai, {media}: {text}", text == "Error code: 429")
for more in ({"message": "Too many"}, {"error": {"message": "Too many"}}):
    text = shown(openai.OpenAI, standard | more)
    denying.expect(f"openai, {more}: {text}", text == "Error code: 429 - Too many")
text = shown(anthropic.Anthropic, standard)
denying.expect(f"anthropic: {text}", "Come back in a second" in text)
PY
