"""The job that writes text, with an untrained model."""

import builtins
import io
import sys
from unittest import mock

import pytest

import txl_tf
from tests.small_models import write_run
from txl_tf.data.tokenizers.byte_tokenizer import ByteTokenizer


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    workdir, _ = write_run(tmp_path_factory.mktemp("run"), ByteTokenizer(), "some text")
    return workdir.folder


@pytest.fixture
def generate(workdir, txl, monkeypatch):
    """A function that runs the job, with an input that is no terminal, and returns the output."""

    def run(*arguments, typed=b"", **end):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed)))
        return txl("generate", "--workdir", workdir, *arguments, **end)

    return run


def test_several_samples_begin_alike_and_differ(generate):
    arguments = ("--num-samples", "3", "--max-tokens", "30", "--min-p", "0.05")
    output = generate("--prompt", "some\n", *arguments)
    parts = output.split("--- ")[1:]
    assert [part.splitlines()[:2] for part in parts] == [
        [f"{index} of 3", "some"] for index in (1, 2, 3)
    ]
    assert len({part.split("\n", 1)[1] for part in parts}) == 3


def test_a_pipe_is_the_prompt_and_the_seed_and_the_step_are_told(generate):
    arguments = ("--max-tokens", "5", "--seed", "4", "--step", "newest")
    told = "step 7, the best of the split valid\nseed 4\n"
    first = generate(*arguments, typed=b"some\nnew text\n", says=told)
    assert first.startswith("some\nnew text") and first[13] != "\n"
    assert first == generate(*arguments, typed=b"some\nnew text")


def test_a_bias_writes_its_token_with_beams_and_without(generate):
    common = ("--prompt", "some ", "--max-tokens", "3", "--logit-bias", "88=100")
    assert generate(*common, "--frequency-penalty", "0.5") == "some XXX\n"
    assert generate(*common, "--beams", "3") == "some XXX\n"


def test_a_terminal_is_asked_line_by_line(workdir, txl, monkeypatch):
    lines = iter(["", "some ", "", "text "])

    def answer():
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr(sys, "stdin", mock.Mock(isatty=lambda: True))
    monkeypatch.setattr(builtins, "input", answer)
    output = txl("generate", "--workdir", workdir, "--max-tokens", "4", "--temperature", "0")
    assert next(lines, None) is None
    session = txl_tf.load(workdir).session(max_tokens=4, temperature=0.0)
    texts = [session.write(prompt) for prompt in ("some ", None, "text ")]
    assert output == "".join(f"{text}\n" for text in texts)


def test_a_prompt_that_is_no_utf_8_is_refused(generate):
    for arguments in ((), ("--prompt", "\udce4"), ("--prompt", "a", "--stop", "\udce4")):
        generate(*arguments, typed=b"\xe4", code=2, says="UTF-8")


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        ([], 2, "There is no text to continue."),
        (["--prompt", ""], 2, "The prompt is empty."),
        (["--prompt", "a", "--beams", "2", "--num-samples", "2"], 2, "writes one text"),
        (["--prompt", "a", "--min-p", "2"], 2, "--min-p 2.0"),
        (["--prompt", "a", "--beams", "2", "--top-k", "3"], 2, "--beams with --top-k"),
        (["--prompt", "a", "--join-marks"], 2, "has no marks like @-@"),
        (["--prompt", "a", "--stop", ""], 2, "--stop"),
        (["--prompt", "a", "--logit-bias", "256=1"], 2, "--logit-bias 256=1"),
        (["--prompt", "a", "--logit-bias", "5=nan"], 2, "--logit-bias 5=nan"),
        (["--prompt", "a", "--presence-penalty", "3"], 2, "--presence-penalty 3.0"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(generate, arguments, exit_code, message):
    generate(*arguments, code=exit_code, says=message)
