"""lm-evaluation-harness' model `local-completions` at the text server."""

import json
import math
import sys

import numpy as np
import pytest

pytest.importorskip("lm_eval")

from tests.harness.test_harness_tasks import CHOICES, CONTEXTS, run
from tests.serving.conftest import lm, running

__all__ = ["lm"]

TASKS = """
import json, sys, lm_eval
common = {
    "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "rows.jsonl"}},
    "test_split": "test", "doc_to_text": "{{context}}",
}
choice = {
    **common, "task": "choice", "output_type": "multiple_choice",
    "doc_to_choice": "{{choices}}", "doc_to_target": 0,
}
writing = {
    **common, "task": "writing", "output_type": "generate_until", "doc_to_target": "{{written}}",
    "generation_kwargs": {"until": ["zzz"], "max_gen_toks": 5, "do_sample": False},
}
rolling = {
    **common, "task": "rolling", "output_type": "loglikelihood_rolling", "doc_to_text": "",
    "doc_to_target": "{{context}}", "metric_list": [{"metric": "bits_per_byte"}],
}
likelihood = {
    **common, "task": "likelihood", "output_type": "loglikelihood",
    "doc_to_target": "{{written}}", "metric_list": [{"metric": "perplexity"}],
}
settings = f"base_url={sys.argv[1]}/v1/completions,model=mine,{sys.argv[2]}"
found = lm_eval.simple_evaluate(
    "local-completions", model_args=settings, bootstrap_iters=0,
    tasks=[choice, writing, rolling, likelihood],
)
print(json.dumps(found["results"], default=str))
"""


@pytest.mark.slow
@pytest.mark.parametrize("settings", ["tokenized_requests=False", "num_concurrent=4"])
def test_the_harness_has_the_figures_of_the_model(lm, tmp_path, settings):
    right, nats, nats_written = [], [], []
    with (tmp_path / "rows.jsonl").open("w") as file:
        for context in CONTEXTS:
            output = lm.generate(context, max_tokens=5, temperature=0, strip_prompt=True)
            row = {"context": context, "choices": CHOICES, "written": output}
            file.write(json.dumps(row) + "\n")
            sums = [lm.score(context + each).nats[len(context) :].sum() for each in CHOICES]
            right.append(sums[0] < sums[1])
            nats.append(lm.score("\n" + context).nats[1:].sum())
            nats_written.append(lm.score(context + output).nats[len(context) :].sum())
    with running(lm) as address:
        finished = run([sys.executable, "-c", TASKS, address, settings], tmp_path)
    assert finished.returncode == 0, finished.stderr
    results = json.loads(finished.stdout.splitlines()[-1])
    assert results["choice"]["acc,none"] == pytest.approx(np.mean(right))
    assert results["writing"]["exact_match,none"] == 1.0
    perplexity = np.exp(np.mean(nats_written))
    assert results["likelihood"]["perplexity,none"] == pytest.approx(perplexity, rel=1e-3)
    bits = sum(nats) / math.log(2) / sum(len(context.encode()) for context in CONTEXTS)
    assert results["rolling"]["bits_per_byte,none"] == pytest.approx(bits, rel=1e-4)
