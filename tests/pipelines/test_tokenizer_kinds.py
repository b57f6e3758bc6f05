"""The jobs that read and write text, with every kind of tokenizer."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

import txl_tf
from pipelines.command_line import main
from tests.data.tokenizers.trained_sentence_piece import LINES, trained_sentence_piece
from tests.slow_case import slow_case
from tests.small_models import write_run
from txl_tf.data.tokenizers.byte_tokenizer import ByteTokenizer
from txl_tf.data.tokenizers.character_tokenizer import CharacterTokenizer
from txl_tf.data.tokenizers.id_tokenizer import IdTokenizer
from txl_tf.data.tokenizers.piece_tokenizers import WordPieceTokenizer
from txl_tf.data.tokenizers.word_tokenizer import WordRule, WordTokenizer
from txl_tf.errors import DataDamagedError
from txl_tf.model_folder import Workdir, open_model

KINDS = [
    *(slow_case(kind) for kind in ("bytes", "characters", "wordpiece")),
    "ids",
    "words",
    "sentencepiece",
]
TEXT = "\n".join(LINES[:12]) + "\n"
PROMPT = " ".join(LINES[0].split()[:4])


def tokenizer_of_kind(kind):
    words = sorted(set(TEXT.split()))
    if kind == "bytes":
        return ByteTokenizer()
    if kind == "characters":
        return CharacterTokenizer(sorted(set(TEXT)), unknown_token="?")
    if kind == "ids":
        return IdTokenizer(len(words), words)
    if kind == "words":
        rule = WordRule(add_eos=True)
        return WordTokenizer([*words, "<eos>", "<unk>"], rule, unknown_token="<unk>")
    if kind == "wordpiece":
        letters = sorted(set(TEXT) - set(" \n"))
        pieces = ["<unk>", "<S>", *words[:9], *letters, *(f"##{each}" for each in letters)]
        return WordPieceTokenizer(pieces, WordRule(add_double_eos=True), unknown_token="<unk>")
    return trained_sentence_piece("bpe")


@pytest.fixture(scope="module", params=KINDS)
def run(request, tmp_path_factory):
    """An untrained run, its tokenizer and its data."""
    tokenizer = tokenizer_of_kind(request.param)
    workdir, data = write_run(tmp_path_factory.mktemp(request.param), tokenizer, TEXT)
    return workdir, tokenizer, data


def test_own_text_is_scored_token_by_token_like_the_split_of_that_text(run, tmp_path, capsys):
    workdir, tokenizer, data = run
    path = tmp_path / "own.txt"
    path.write_text(TEXT)
    common = ["evaluate", "--workdir", workdir.folder, "--json"]
    assert main([*common, "--text", str(path), "--per-token"]) == 0
    *tokens, result = map(json.loads, capsys.readouterr().out.splitlines())
    assert [token["id"] for token in tokens] == tokenizer.encode(TEXT.encode()).tolist()
    assert tokens[0]["nats"] is None
    assert sum(token["nats"] for token in tokens[1:]) == pytest.approx(result["total_nats"])
    assert result["batch_size"] == 1

    assert main([*common, "--data", str(data), "--set", "evaluation.batch_size=1"]) == 0
    split = json.loads(capsys.readouterr().out)
    for name in ("total_nats", "num_tokens", "num_bytes", "num_characters", "num_words"):
        assert result[name] == pytest.approx(split[name], rel=1e-6), name
    share = 0 if tokenizer.kind == "ids" else 1 - 1 / len(tokens)
    assert result["num_bytes"] == pytest.approx(len(TEXT) * share)
    assert result["num_words"] == pytest.approx(len(TEXT.split()) * share)
    path.write_bytes(b"PAR1\x15\x04" + bytes(99))
    assert main([*common, "--text", str(path)]) == 65
    assert "not text" in capsys.readouterr().err


def test_generated_text_is_the_text_of_the_tokens(run, capsys):
    workdir, tokenizer, _ = run
    arguments = ["generate", "--workdir", workdir.folder, "--prompt", PROMPT, "--seed", "4"]
    assert main([*arguments, "--max-tokens", "25", "--top-p", "1"]) == 0
    output = capsys.readouterr().out
    assert output.startswith(PROMPT)
    # Twenty-five tokens of a model that knows nothing are some text, and it can be read again.
    assert len(output) > len(PROMPT) + 10
    if tokenizer.kind in ("characters", "ids", "words"):
        assert len(tokenizer.encode(output.rstrip("\n").encode())) >= 25
    if tokenizer.kind == "ids":
        arguments[4] = " ".join(map(str, tokenizer.encode(PROMPT)))
        assert main([*arguments, "--ids", "--max-tokens", "25", "--top-p", "1"]) == 0
        ids = [int(each) for each in capsys.readouterr().out.split()]
        assert tokenizer.decode(ids) == output.rstrip("\n")


@pytest.mark.slow
def test_the_export_is_written(run, tmp_path, capsys):
    workdir, tokenizer, _ = run
    out = tmp_path / "export"
    stop = PROMPT.split()[1]
    options = ["--max-tokens", "9", "--min-p", "0.05", "--seed", "3", "--stop", stop]
    assert main(["export", "--workdir", workdir.folder, "--out", str(out), *options]) == 0
    assert open_model(out).tokenizer().fingerprint == tokenizer.fingerprint
    loaded, lm = tf.saved_model.load(str(out / "1")), txl_tf.load(out)
    prompts = [PROMPT, *LINES[1:3], LINES[0] + "\n"]
    output = loaded.signatures["serving_default"](tf.constant(prompts))["texts"]
    settings = {"max_tokens": 9, "min_p": 0.05, "seed": 3, "stop": stop}
    expected = [lm.generate(text, strip_prompt=True, **settings) for text in prompts]
    assert [text.decode() for text in output.numpy()] == expected
    scored = loaded.signatures["perplexity"](tf.constant(prompts))["nats"]
    totals = [lm.score(text).total_nats for text in prompts]
    np.testing.assert_allclose(scored, totals, rtol=1e-5)


def test_a_vocabulary_that_is_damaged_or_gone_is_reported(run, tmp_path):
    workdir, tokenizer, _ = run
    copy = Workdir(shutil.copytree(workdir.folder, tmp_path / "run"))
    if tokenizer.kind == "bytes":
        copy.keep_vocabulary({"vocabulary.txt": b"x"})
        with pytest.raises(DataDamagedError, match="bytes"):
            open_model(copy.folder).tokenizer()
        return
    path = tmp_path / "run" / "vocabulary" / sorted(tokenizer.vocabulary_files)[-1]
    content = path.read_bytes()
    path.write_bytes(content[:-2])
    with pytest.raises(DataDamagedError):
        open_model(copy.folder).tokenizer()
    # A resumed run rewrites files that differ.
    copy.keep_vocabulary(tokenizer.vocabulary_files)
    assert path.read_bytes() == content
    shutil.rmtree(path.parent)
    with pytest.raises(DataDamagedError, match=rf"missing .* tokenizer '{tokenizer.kind}'"):
        open_model(copy.folder).tokenizer()
