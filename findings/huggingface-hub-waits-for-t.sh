#!/usr/bin/env bash
# huggingface_hub waits for `t` of the draft's RateLimit field, and one second more, where a response
# has Retry-After as well.
#
# The draft wants Retry-After to take precedence (draft-ietf-httpapi-ratelimit-headers-10, section 7).
# So a server whose `t` is the time until all of the quota is back keeps this client waiting for all
# of it; one whose `t` is shorter than Retry-After is asked too early. Before the first wait it asks
# once more at once.
#
# Seen with huggingface_hub 2.4.0: Retry-After 2 and t=4: waits of 0 and 5 s; Retry-After 3 and t=1:
# 0 and 2 s; Retry-After 2 alone: 0 and 3 s.
exec "$(dirname "$0")/support/python.sh" huggingface_hub==2.4.0 <<'PY'
import logging

import denying
from huggingface_hub import hf_hub_download

logging.disable(logging.CRITICAL)
for number, (retry_after, t, expected) in enumerate([(2, 4, 5), (3, 1, 2), (2, None, 3)]):
    fields = {"Retry-After": str(retry_after)}
    if t is not None:
        fields["RateLimit"] = f'"requests";r=0;t={t}'
    server = denying.Server(2, fields)
    try:
        hf_hub_download("some/model", "file", endpoint=server.url, cache_dir=f"cache{number}")
    except Exception:
        pass  # The server is no hub; the denials come first.
    again, waited = server.waits()[:2]
    holds = again < 0.5 and expected <= waited < expected + 0.9
    denying.expect(f"{fields}: waits of {again} and {waited} s", holds)
PY
