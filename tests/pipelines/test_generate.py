"""The job that writes text, with an untrained model."""

import builtins
import io
import sys

import pytest

from pipelines.command_line import main
from tests.small_run import write_run
from txl_tf.data.tokenizers.character_tokenizer import ByteTokenizer


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    workdir, _ = write_run(tmp_path_factory.mktemp("run"), ByteTokenizer(), "some text")
    return workdir.folder


@pytest.fixture
def generated(workdir, capsys, monkeypatch):
    """A function that runs the job, with an input that is no terminal, and returns the output."""

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))

    def run(*arguments):
        exit_code = main(["generate", "--workdir", workdir, *arguments])
        printed = capsys.readouterr()
        return printed.out if exit_code == 0 else (exit_code, printed.err)

    return run


@pytest.mark.slow
def test_a_session_goes_on_where_it_stopped(generated, tmp_path):
    common = ("--seed", "3", "--repetition-penalty", "1.1")
    at_once = generated("--prompt", "some ", "--max-tokens", "12", *common)
    file = str(tmp_path / "story.npz")
    first = generated("--prompt", "some ", "--max-tokens", "5", "--session", file, *common)
    second = generated("--max-tokens", "7", "--session", file, *common)
    third = generated("--prompt", "more ", "--max-tokens", "2", "--session", file, *common)
    # Bytes that are no UTF-8 print as one sign or several, depending on their neighbours.
    assert without_signs(first + second) == without_signs(at_once)
    assert third.startswith("more ")
    exit_code, message = generated("--session", file, "--memory-length", "9")
    assert (exit_code, "or memory length" in message) == (78, True)


def without_signs(text):
    """The ASCII of a text: bytes of other characters may be parted by two runs."""
    return "".join(character for character in text.replace("\n", "") if character.isascii())


def test_several_samples_begin_alike_and_differ(generated):
    arguments = ("--num-samples", "3", "--max-tokens", "30", "--min-p", "0.05")
    printed = generated("--prompt", "some\n", *arguments)
    parts = printed.split("--- ")[1:]
    assert [part.splitlines()[:2] for part in parts] == [
        [f"{index} of 3", "some"] for index in (1, 2, 3)
    ]
    assert len({part.split("\n", 1)[1] for part in parts}) == 3


def test_a_pipe_is_the_prompt_and_the_seed_and_the_step_are_told(workdir, capsys, monkeypatch):
    printed = []
    for typed in (b"some\nnew text\n", b"some\nnew text"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed)))
        arguments = ["--max-tokens", "5", "--seed", "4", "--step", "newest"]
        assert main(["generate", "--workdir", workdir, *arguments]) == 0
        printed.append(capsys.readouterr())
    assert printed[0].out == printed[1].out
    assert printed[0].out.startswith("some\nnew text") and printed[0].out[13] != "\n"
    expected = ["step 7, the best of the split valid", "seed 4"]
    assert printed[0].err.splitlines()[-2:] == expected


def test_beams_find_one_text_and_stop(generated):
    printed = generated("--prompt", "some ", "--max-tokens", "4", "--beams", "3")
    assert printed.startswith("some ")
    assert printed == generated("--prompt", "some ", "--max-tokens", "4", "--beams", "3")


def test_a_bias_writes_its_token(generated):
    common = ("--prompt", "some ", "--max-tokens", "3", "--frequency-penalty", "0.5")
    assert generated(*common, "--logit-bias", "88=100") == "some XXX\n"


def test_a_terminal_is_asked_line_by_line(generated, monkeypatch, tmp_path):
    lines = iter(["", "some ", "", "text "])

    def answer():
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(builtins, "input", answer)
    file = tmp_path / "talk.npz"
    generated("--max-tokens", "4", "--temperature", "0", "--session", str(file))
    assert next(lines, None) is None
    assert file.exists()


def test_a_prompt_that_is_no_utf_8_is_refused(generated, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xe4")))
    for arguments in ((), ("--prompt", "\udce4"), ("--prompt", "a", "--stop", "\udce4")):
        exit_code, message = generated(*arguments)
        assert exit_code == 2 and "UTF-8" in message and len(message.splitlines()) <= 3, message


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        ([], 2, "There is no text to continue."),
        (["--session", "none.npz"], 2, "There is no text to continue."),
        (["--prompt", ""], 2, "The prompt is empty."),
        (["--prompt", "a", "--session", "a", "--num-samples", "2"], 2, "continues one text"),
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
def test_what_cannot_be_done_is_said_at_once(generated, arguments, exit_code, message):
    found, error = generated(*arguments)
    assert (found, message in error) == (exit_code, True), error
