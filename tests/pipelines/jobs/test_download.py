"""`txl download` from a server on this machine, with small checkpoints as the official ones lie."""

import functools
import http.server
import shutil
import string
import threading

import numpy as np
import pytest

import txl_tf
from tests.convert import python2_pickle
from tests.convert.goldens import FOLDER, Golden
from tests.convert.models import assert_same_weights

BYTES = list(range(90, 150))
WORDS = [f"w{index}" for index in range(298)]
# Folder, step, checkpoint, symbols, a text and its ids.
CASES = {
    "enwik8": (
        "tf_enwiki8",
        0,
        "tf1_enwik8_like",
        list(map(str, BYTES)),
        b"za\x7f",
        [122, 97, 127],
    ),
    "text8": (
        "tf_text8",
        0,
        "tf1_enwik8_like",
        ["_", *string.ascii_letters, *"1234567"],
        b"a b",
        [1, 0, 2],
    ),
    "wt103": ("tf_wt103", 0, "tf1_wt103_like", ["<eos>", "<unk>", *WORDS], b"w1 x\n", [3, 1, 0]),
    "lm1b": (
        "tf_lm1b",
        1191000,
        "tf1_wt103_like",
        ["<UNK>", "<S>", *WORDS],
        b"w1 x\n",
        [1, 3, 0, 1],
    ),
}


@pytest.fixture
def address(tmp_path):
    """The address of a server of the folder `served`."""
    handler = functools.partial(
        http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "served")
    )
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize("name", CASES)
def test_official_weights_come_with_their_tokenizer(name, tmp_path, address, txl, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder, step, golden, symbols, text, ids = CASES[name]
    served = tmp_path / "served" / folder
    (served / "data").mkdir(parents=True)
    (served / "data" / "cache.pkl").write_bytes(python2_pickle.corpus(symbols, dataset=name))
    (served / "model").mkdir()
    for path in (FOLDER / golden).glob("model.ckpt-0.*"):
        shutil.copy(path, served / "model" / path.name.replace("ckpt-0", f"ckpt-{step}"))
    settings = [f"--set=model.{name}={value}" for name, value in Golden(golden).settings.items()]
    words = ("download", f"official/{name}", "--url", address, *settings, "--out")
    txl(*words, tmp_path / "model")
    lm, original = txl_tf.load(tmp_path / "model"), Golden(golden).load()
    assert lm.tokenizer.encode(text).tolist() == ids
    if name == "enwik8":
        inputs = np.arange(60)[None]
        log_probs, _ = lm.model.log_probs(inputs + BYTES[0], lm.model.initial_memory(1))
        expected, _ = original.log_probs(inputs, original.initial_memory(1))
        np.testing.assert_allclose(log_probs.numpy()[..., BYTES], expected, atol=1e-5)
    else:
        assert_same_weights(lm.model, original)
    if name == "wt103":
        (tmp_path / "text").write_bytes(text * 20)
        for job in (
            ("prepare", "--train-file", "text", "--vocabulary", "model", "--out", "data"),
            ("evaluate", "--workdir", "model", "--data", "data", "--split", "train"),
        ):
            txl(*job)
    # The files stay, so that only the conversion is repeated.
    shutil.rmtree(served)
    shutil.rmtree(tmp_path / "model")
    txl(*words, tmp_path / "model")
