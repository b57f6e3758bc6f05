"""The nine tasks of GLUE, in the files of the download script."""

import pytest

from tests.tasks.task_files import GLUE_FILES, refusal, write_glue
from txl_tf.tasks.published import GLUE_TASKS, read_glue

METRICS = {
    "cola": ("matthews",),
    "sst2": ("accuracy",),
    "mrpc": ("accuracy", "f1"),
    "stsb": ("pearson", "spearman"),
    "qqp": ("accuracy", "f1"),
    "mnli": ("accuracy",),
    "qnli": ("accuracy",),
    "rte": ("accuracy",),
    "wnli": ("accuracy",),
}
# First example of train, of valid and of test, and how many train has.
EXAMPLES = {
    "cola": (("The sailors rode the breeze.",), "1", 2, "Bill whistled past the house."),
    "sst2": (("a fine film ",), "1", 2, "uneasy mishmash"),
    "mrpc": (('Amrozi accused "the witness".', 'He called him "the witness.'), "1", 2, "One."),
    "stsb": (("A plane.", "An air plane."), 5.0, 2, "A girl."),
    "qqp": (("How do I sleep?", "How can I sleep?"), "1", 2, "Who?"),
    "mnli": (("It rains.", "It is wet."), "neutral", 2, "On."),
    "qnli": (("When?", "In 1990."), "entailment", 2, "How?"),
    "rte": (("No weapons found.", "Weapons found."), "not_entailment", 2, "A."),
    "wnli": (("I stuck a pin.", "It had a hole."), "1", 2, "Maude and Dora."),
}


def test_there_are_nine_tasks_with_the_published_metrics():
    assert {name: task.metrics for name, task in GLUE_TASKS.items()} == METRICS


@pytest.mark.parametrize("task", GLUE_FILES)
def test_each_task_is_read_as_published(tmp_path, task):
    data = read_glue(str(write_glue(tmp_path / task, task)), task)
    texts, label, num_examples, of_test = EXAMPLES[task]
    assert (data.name, data.metrics) == (f"glue/{task}", METRICS[task])
    assert data.kind == ("regression" if task == "stsb" else "classification")
    first = data.splits["train"][0]
    assert (first.name, first.texts, first.label) == ("0", texts, label)
    assert len(data.splits["train"]) == num_examples
    assert data.splits["valid"][0].label is not None
    test = data.splits["test"][0]
    assert (test.texts[0], test.label) == (of_test, None)
    assert test.name == ("9" if task == "mnli" else "0")
    extra = {"valid_mismatched", "test_mismatched"} if task == "mnli" else set()
    assert set(data.splits) == {"train", "valid", "test"} | extra


def test_files_without_a_header_count_their_lines_from_the_first(tmp_path):
    data = read_glue(str(write_glue(tmp_path, "cola")), "CoLA")
    assert data.splits["train"][0].where.endswith("train.tsv, line 1")
    assert data.splits["test"][0].where.endswith("test.tsv, line 2")


def test_broken_records_of_qqp_are_left_out_and_empty_questions_kept(tmp_path):
    data = read_glue(str(write_glue(tmp_path, "qqp")), "QQP")
    last = data.splits["train"][1]
    assert (last.name, last.texts) == ("1", ("Where?", ""))
    assert last.where.endswith("line 5")
    header = GLUE_FILES["qqp"]["train"].partition("\n")[0]
    (tmp_path / "train.tsv").write_text(header + "\n" + "5\t6\n" * 17)
    arguments = (read_glue, str(tmp_path), "qqp")
    refusal(*arguments, code=65, where="train.tsv, line 18", says="2 fields; 6 are expected")
    (tmp_path / "train.tsv").write_text(header + "\n1\t2\t3\t\t \t0\n")
    refusal(*arguments, code=65, where="train.tsv, line 2", says="All texts")


def test_the_files_of_the_test_may_be_missing(tmp_path):
    folder = write_glue(tmp_path, "rte")
    (folder / "test.tsv").unlink()
    assert set(read_glue(str(folder), "RTE").splits) == {"train", "valid"}
    (folder / "dev.tsv").unlink()
    refusal(read_glue, str(folder), "RTE", code=66, where="dev.tsv", says="no such text file")


@pytest.mark.parametrize(
    "task, file, old, new, code, place, says",
    [
        ("sst2", "train", "\t1\n", "\t2\n", 78, "line 2", "The 2 classes are: '0', '1'"),
        ("sst2", "train", "\t1\n", "\t\n", 65, "line 2", "'label' is empty"),
        ("sst2", "dev", "sentence", "sentences", 78, "line 2", "Did you mean sentences?"),
        ("cola", "dev", "gj04\t1\t\t", "gj04\t1\t", 65, "line 1", "3 fields; 4 are expected"),
        ("mnli", "dev_mismatched", "\tentailment", "\t-", 78, "line 2", "'-' is no class"),
        ("qnli", "train", "not_entailment", "no_entailment", 78, "line 3", "Did you mean not_"),
        ("stsb", "train", "5.000", "five", 65, "line 2", "must be a finite number"),
        ("stsb", "dev", "A dog.", "", 65, "line 2", "'sentence2' is empty"),
        ("cola", "test", "\n1\t", "\n0\t", 65, "line 3", "'0' stands in"),
    ],
)
def test_each_fault_is_refused_with_its_line(tmp_path, task, file, old, new, code, place, says):
    folder = write_glue(tmp_path, task)
    path = folder / f"{file}.tsv"
    text = GLUE_FILES[task][file]
    assert old in text
    path.write_text(text.replace(old, new, 1))
    refusal(read_glue, str(folder), task, code=code, where=f"{path}, {place}", says=says)


def test_an_unknown_task_is_named_with_the_known_ones(tmp_path):
    error = refusal(read_glue, str(tmp_path), "SST2x", code=2, where="SST2x", says="mean sst2?")
    assert "wnli" in error.remedy
