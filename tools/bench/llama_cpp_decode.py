"""llama_cpp_decode.py MODEL.gguf THREADS PROMPT_IDS COUNT RUNS: greedy decode by llama.cpp.

Prints one JSON object a run. Uses the C API through the ctypes declarations of llama-cpp-python, so
that no Python of its own is between two tokens but one argmax. Needs llama-cpp-python and numpy.
"""

import ctypes
import json
import sys
import time

import llama_cpp
import numpy as np


def main(path: str, threads: int, prompt: list[int], count: int, runs: int) -> None:
    llama_cpp.llama_log_set(QUIET, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    model_params = llama_cpp.llama_model_default_params()
    model = llama_cpp.llama_model_load_from_file(path.encode(), model_params)
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = len(prompt) + count + 16
    params.n_batch = params.n_ubatch = 512
    params.n_threads = params.n_threads_batch = threads
    vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))

    for _ in range(runs):
        context = llama_cpp.llama_init_from_model(model, params)

        def feed(ids: list[int], context=context) -> int:
            array = (llama_cpp.llama_token * len(ids))(*ids)
            if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(array, len(ids))):
                raise SystemExit("llama_decode failed")
            logits = llama_cpp.llama_get_logits_ith(context, -1)
            return int(np.ctypeslib.as_array(logits, (vocab,)).argmax())

        begin = time.perf_counter()
        tokens = [feed(prompt)]
        first = time.perf_counter()
        for _ in range(count - 1):
            tokens.append(feed([tokens[-1]]))
        end = time.perf_counter()
        llama_cpp.llama_free(context)
        result = {"token_ids": tokens, "tokens_per_s": (count - 1) / (end - first)}
        print(json.dumps(result | {"ttft_ms": 1e3 * (first - begin)}), flush=True)


QUIET = llama_cpp.llama_log_callback(lambda level, text, data: None)

if __name__ == "__main__":
    if len(sys.argv) != 6:
        sys.exit(__doc__)
    main(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
