"""What the flags of `octavo bench` may name; apart, so that asking for help costs nothing."""

DATASETS = (
    *("random", "prefix_repetition", "sharegpt", "lengths", "custom"),
    *("azure", "burstgpt", "mooncake", "timed_trace"),
)
HAVE_TIMES = ("azure", "burstgpt", "mooncake", "timed_trace")
KEEP_TIMES = ("azure", "mooncake", "timed_trace")
"""Those sent at their own times, unless something else is asked for."""
SHUFFLED = ("prefix_repetition", "sharegpt", "lengths", "custom")

ENDPOINTS = {
    "openai": "/v1/completions",
    "vllm": "/v1/completions",
    "openai-chat": "/v1/chat/completions",
}
"""Where each backend takes requests, unless another path is given."""

PROMPT_FORMATS = ("ids", "text")
OBJECTIVES = ("ttft", "tpot", "e2el")
METRICS = {
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
    "normalized_latency": ("E2EL per token", "Normalized Latency"),
    "client_queue_time": ("Client Queue Time", "Client-side Queueing"),
}
"""Short and long names of what percentiles are taken of."""
