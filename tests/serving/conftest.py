"""A small model with a text server of its own, in this process."""

import asyncio
import contextlib
import queue
import threading

import keras
import pytest
from aiohttp.test_utils import TestServer

import txl_tf
from tests.small_models import toy_experiment
from txl_tf.data.tokenizers.byte_tokenizer import ByteTokenizer
from txl_tf.models import create_model
from txl_tf.serving.text_engine import TextEngine
from txl_tf.serving.text_server import TextServer


@pytest.fixture(scope="session")
def lm():
    keras.utils.set_random_seed(3)
    config = toy_experiment(model={"vocabulary_size": 256}).model
    return txl_tf.TransformerXLCausalLM(create_model(config, dtype="float32"), ByteTokenizer())


@contextlib.contextmanager
def running(lm, api_key="", options=None, **settings):
    """Serves a model, if there is one; yields the address."""
    server = TextServer("mine", api_key, max_body_bytes=1 << 16, **(options or {}))
    if lm is not None:
        server.engine = TextEngine(lm, server.metrics, max_rows=4, **settings)
    loop, stop, port = asyncio.new_event_loop(), asyncio.Event(), queue.Queue()

    async def serve():
        async with TestServer(server.application()) as started:
            port.put(started.port)
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=[serve()])
    thread.start()
    try:
        yield f"http://127.0.0.1:{port.get(timeout=30)}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


@pytest.fixture(scope="session")
def address(lm):
    with running(lm) as address:
        yield address
