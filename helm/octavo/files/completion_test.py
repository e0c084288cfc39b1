"""Asks each model at $URL for one token; what `helm test` runs."""

import json
import os
import urllib.request


def call(path: str, body: object = None) -> dict:
    headers = {"Content-Type": "application/json"}
    keys = os.environ.get("OCTAVO_API_KEY", "").replace(",", " ").split()
    if keys:
        headers["Authorization"] = f"Bearer {keys[0]}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(os.environ["URL"] + path, data, headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


models = [model["id"] for model in call("/v1/models")["data"]]
assert models, "no model is served"
for model in models:
    answer = call("/v1/completions", {"model": model, "prompt": "Octavo", "max_tokens": 1})
    assert answer["usage"]["completion_tokens"] == 1, answer
    print(f"{model} answers")
