"""Numbers that cannot be meant end a job at once, before TensorFlow starts."""

import pytest

from pipelines.arguments import load_experiment
from pipelines.configs import NAMED_EXPERIMENTS
from pipelines.workdir import Workdir
from tests.pipelines.arguments_process import STARTS, ArgumentsProcess

DATA = {
    "fingerprint": "0" * 64,
    "corpus": "none",
    "tokenizer": "bytes",
    "tokenizer_sha256": "0" * 64,
    "vocabulary_size": 256,
}
DIGITS = {400: "9" * 400, 5000: "9" * 5000}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("arguments")


@pytest.fixture(scope="module")
def process(folder):
    with ArgumentsProcess(folder) as process:
        yield process


@pytest.fixture(scope="module")
def run_folder(folder):
    """A run of which only the description is there."""
    workdir = Workdir(str(folder / "run"))
    workdir.begin(load_experiment("quickstart", []), DATA)
    return workdir.folder


TRAIN = ("train", "--config", "quickstart", "--data", "d", "--workdir", "new")


def assert_refused(answer, *words):
    answer.check()
    assert answer.exit_code == 2, answer
    assert len(answer.lines) >= 2
    assert answer.seconds < 2.0
    for word in words:
        assert word in "\n".join(answer.lines), answer


@pytest.mark.parametrize("name", NAMED_EXPERIMENTS)
def test_every_named_experiment_trains_on_a_tpu(process, name):
    answer = process.run(*TRAIN, "--config", name, "--tpu", "local").check()
    assert answer.exit_code == STARTS, answer


@pytest.mark.parametrize(
    "setting",
    [
        "model.num_layers=1000000",
        "model.vocabulary_size=2147483648",
        "model.intermediate_dim=1000000000",
        "model.num_heads=1099511627776",
        "model.segment_length=1099511627776",
        "model.memory_length=1099511627776",
        "model.clamp_length=4294967296",
        "model.cutoffs=[0]",
        "model.division_factor=1000000000",
        "training.global_batch_size=1099511627776",
        "training.num_steps=1099511627776",
        "training.num_steps=9223372036854775807",
        "training.num_steps=9223372036854775808",
        "training.num_steps=18446744073709551616",
        f"training.num_steps={DIGITS[400]}",
        f"training.num_steps={DIGITS[5000]}",
        f"optimizer.learning_rate={DIGITS[400]}",
        "training.steps_per_loop=2147483647",
        "training.gradient_accumulation_steps=1000000",
        "training.seed=-1",
        "optimizer.learning_rate=1e300",
        "optimizer.learning_rate=1e999",
        "optimizer.learning_rate=NaN",
        "optimizer.epsilon=Infinity",
        "evaluation.batch_size=1099511627776",
        "evaluation.memory_length=1099511627776",
        f"model.dropout={'[' * 100_000}",
        f"model.dropout={'[' * 40}1{']' * 40}",
        'model.dropout={"a": 1, "a": 2}',
        "model.num_layers=true",
        f"{'model.' * 5000}num_layers=3",
        f"model.{'x' * 100_000}=3",
    ],
    ids=lambda setting: setting[:40],
)
@pytest.mark.parametrize("tpu", [(), ("--tpu", "local")], ids=["here", "tpu"])
def test_a_number_that_no_machine_can_mean_is_refused(process, setting, tpu):
    assert_refused(process.run(*TRAIN, *tpu, "--set", setting), setting[:10])


@pytest.mark.parametrize(
    "settings",
    [
        ("model.hidden_dim=1048576", "model.intermediate_dim=1048576"),
        ("model.vocabulary_size=2147483647",),
        ("model.memory_length=16777216",),
        ("model.segment_length=16777216",),
        ("model.segment_length=1048576", "training.rematerialize=true"),
        ("training.global_batch_size=16777216",),
        (
            "training.global_batch_size=16777216",
            "training.gradient_accumulation_steps=16777216",
            "model.memory_length=65536",
        ),
        ("evaluation.batch_size=16777216",),
        ("evaluation.memory_length=16777216", "evaluation.segment_length=16777216"),
    ],
    ids=lambda settings: settings[0],
)
def test_what_the_machine_cannot_hold_is_refused_with_what_it_has(process, settings):
    options = [text for setting in settings for text in ("--set", setting)]
    assert_refused(process.run(*TRAIN, *options), "would take", "GiB", "available")
    # The memory of a TPU is not that of this machine.
    assert process.run(*TRAIN, *options, "--tpu", "local").check().exit_code == STARTS


@pytest.mark.parametrize("replicas", ["1000000", "-1", "0", "65537", DIGITS[400], DIGITS[5000]])
@pytest.mark.parametrize("job", ["train", "evaluate"])
def test_replicas(process, run_folder, job, replicas):
    arguments = TRAIN if job == "train" else ("evaluate", "--workdir", run_folder, "--data", "d")
    assert_refused(process.run(*arguments, "--cpu-replicas", replicas), "--cpu-replicas")
    assert process.run(*arguments, "--cpu-replicas", 2).exit_code == STARTS


@pytest.mark.parametrize(
    "options",
    [
        ("--max-tokens", "1099511627776"),
        ("--max-tokens", DIGITS[400]),
        ("--max-tokens", "2147483647", "--num-samples", "1048576"),
        ("--num-samples", "1000000", "--memory-length", "65536"),
        ("--beams", "1000000000"),
        ("--beams", "65536", "--memory-length", "65536"),
        ("--memory-length", "4294967296"),
        ("--memory-length", "-1"),
        ("--temperature", "nan"),
        ("--temperature", "inf"),
        ("--temperature", "1e-300"),
        ("--temperature", "1e300"),
        ("--top-k", "99999999999"),
        ("--top-p", "nan"),
        ("--min-p", "1e-320"),
        ("--repetition-penalty", "1e300"),
        ("--seed", "4294967296"),
        ("--step", "-1"),
    ],
    ids=lambda options: " ".join(options)[:40],
)
def test_writing(process, run_folder, options):
    arguments = ("generate", "--workdir", run_folder, "--prompt", "a")
    assert_refused(process.run(*arguments, *options), options[0])


@pytest.mark.parametrize(
    "arguments",
    [
        ("export", "--out", "o", "--max-input-tokens", "4294967296"),
        ("export", "--out", "o", "--max-output-tokens", "0"),
        ("export", "--out", "o", "--num-candidates", DIGITS[400]),
        ("export", "--out", "o", "--version", "9223372036854775808"),
        ("export", "--out", "o", "--memory-length", "99999999999"),
        ("evaluate", "--data", "d", "--set", "evaluation.batch_size=99999999999"),
        ("evaluate", "--data", "d", "--watch", "--watch-seconds", "1e300"),
        ("evaluate", "--data", "d", "--num-words", DIGITS[400]),
        ("evaluate", "--data", "d", "--set", "evaluation.memory_length=16000000"),
        ("analyze", "context", "--data", "d", "--out", "o", "--context", "1,99999999999"),
        ("analyze", "context", "--data", "d", "--out", "o", "--batch-size", "99999999999"),
        ("analyze", "context", "--data", "d", "--out", "o", "--memory", "0,16000000"),
        ("analyze", "attention", "--data", "d", "--out", "o", "--rows", "99999999999"),
        ("analyze", "attention", "--data", "d", "--out", "o", "--memory-length", "16000000"),
    ],
    ids=lambda arguments: " ".join(arguments)[:60],
)
def test_jobs_on_a_run(process, run_folder, arguments):
    assert_refused(process.run(*arguments, "--workdir", run_folder))


@pytest.mark.parametrize(
    "arguments",
    [
        ("prepare", "--corpus", "python_standard_library", "--workers", "1000000"),
        ("prepare", "--corpus", "python_standard_library", "--shard-megabytes", "1e-300"),
        ("prepare", "--corpus", "python_standard_library", "--shard-megabytes", "1e300"),
        (
            *("prepare", "--corpus", "python_standard_library", "--tokenizer", "words"),
            *("--vocabulary-size", DIGITS[400]),
        ),
        ("prepare", "--corpus", "lm1b", "--passes", "1000000000"),
        ("doctor", "--timeout-seconds", "1e300"),
        ("doctor", "--timeout-seconds", "nan"),
        ("analyze", "speed", "--attention", "1,2,99999999999"),
        ("analyze", "speed", "--attention", ",".join(["1"] * 10_000)),
        ("analyze", "speed", "--attention", "16777216"),
        ("analyze", "speed", "--repeats", "99999999999"),
        ("benchmark", "train", "--turn-seconds", "nan"),
        ("compile", "--config", "quickstart", "--topology", f"v5e:{'9' * 5000}x2"),
        ("compile", "--config", "quickstart", "--topology", "v5e:99999x99998"),
        ("quickstart", "--workdir", "q", "--set", "training.global_batch_size=16000000"),
    ],
    ids=lambda arguments: " ".join(arguments)[:60],
)
def test_jobs_on_their_own(process, arguments):
    out = ("--out", "new-data") if arguments[0] == "prepare" else ()
    assert_refused(process.run(*arguments, *out))


@pytest.mark.parametrize("option", ["--port", "--grpc-port", "--poll-seconds"])
@pytest.mark.parametrize("value", ["-1", "99999999999", DIGITS[400]])
def test_serving(process, folder, option, value):
    (folder / "export" / "1").mkdir(parents=True, exist_ok=True)
    assert_refused(process.run("serve", "--export", folder / "export", option, value), option)


@pytest.mark.parametrize(
    "tpu",
    [
        "",
        " ",
        "grpc://",
        "grpc://a",
        "grpc://a:b",
        "grpc://a:99999",
        "grpc://a:1,b:2",
        "http://a:1",
    ],
)
@pytest.mark.parametrize("job", ["train", "doctor"])
def test_what_is_no_address_of_a_tpu(process, job, tpu):
    arguments = TRAIN if job == "train" else ("doctor",)
    assert_refused(process.run(*arguments, "--tpu", tpu), "--tpu")


def test_files_beyond_what_names_can_number(process, folder):
    text = folder / "text.txt"
    text.write_bytes(b"a" * 200_000)
    arguments = ("prepare", "--text", text, "--out", "new-data", "--shard-megabytes")
    assert_refused(process.run(*arguments, "0.000001"), "200,000 files", "99,999")
    assert process.run(*arguments, "0.001").exit_code == STARTS
