"""Mutates files of every format and runs every job that reads them.

    python -m tests.measurements.measure_mutated_files --files 3000 --results DIR

A file counts as well answered if every job that reads it ends with the right exit
code and at most three lines, without a traceback, within ten seconds of computing and
with less than 1 GB of memory beyond what a good file takes.

Exit code 0 is right where the file says something that can be. The rule: nothing but the
file itself says what a free field is (a name, a time, a setting that decides no step), and
a file that is well formed, and agrees with all that other files say of it, is another file
and not a damaged one.
"""

import argparse
import collections
import contextlib
import functools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.mutated_files import forked_jobs
from tests.mutated_files.good_files import make_good_files
from tests.mutated_files.mutations import (
    Mutation,
    byte_mutations,
    json_mutations,
    special_mutations,
)
from tests.mutated_files.targets import Target, all_targets
from tests.pipelines.fork_server import import_before_forks

_MOST_SECONDS = 10.0
_MOST_BYTES = 1 << 30
_NON_FINITE = "finite"


def main() -> None:
    """Measures, and prints the figures and every failure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", default="", help="part of the path of the files to mutate")
    parser.add_argument("--jobs", nargs="+", help="names of jobs; the others are left out")
    parser.add_argument("--good", type=Path, help="good files that were made before")
    parser.add_argument("--results", type=Path, required=True, help="folder for what is found")
    parser.add_argument("--part", type=int)
    arguments = parser.parse_args()
    if arguments.part is not None:
        _measure_part(arguments)
        return
    command = [sys.executable, "-W", "ignore", "-m", __spec__.name, *sys.argv[1:], "--part"]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    parts = [
        subprocess.Popen([*command, str(part)], env=environment)
        for part in range(arguments.processes)
    ]
    for part in parts:
        part.wait()
    _print_results(arguments.results)


def _print_results(folder: Path) -> None:
    lines = [line for path in sorted(folder.glob("part-*")) for line in path.open()]
    results = [json.loads(line) for line in lines]
    codes = collections.Counter(each["code"] for each in results)
    failures = [each for each in results if each["problem"]]
    for each in failures:
        print(f"{each['problem']}: {each['path']}: {each['name']}: {each['job']}: {each['said']}")
    accepted = collections.Counter(
        (each["path"], each["name"].partition("=")[0].split()[0])
        for each in results
        if each["code"] == 0
    )
    print(f"accepted: {dict(accepted.most_common(60))}")
    files = {(each["path"], each["name"], each["number"]) for each in results}
    print(f"files: {len(files)}; jobs: {len(results)}; exit codes: {dict(sorted(codes.items()))}")
    print(f"most CPU seconds beyond a good file's: {max(each['seconds'] for each in results):.1f}")
    print(f"most MB beyond a good file's: {max(each['bytes'] for each in results) >> 20}")
    kinds = collections.Counter(each["problem"] for each in failures)
    print(f"failures: {len(failures)} {dict(kinds)}")


def _measure_part(arguments: argparse.Namespace) -> None:
    import_before_forks()
    with contextlib.ExitStack() as exits:
        scratch = exits.enter_context(tempfile.TemporaryDirectory())
        good, work = Path(scratch) / "good", Path(scratch) / "work"

        def run(job: list[str]) -> None:
            outcome = forked_jobs.run_job(job, Path(scratch))
            assert outcome.exit_code == 0, (job, outcome)

        if arguments.good is not None:
            good = arguments.good
        else:
            make_good_files(good, run)
        shutil.copytree(good, work, symlinks=True)
        arguments.results.mkdir(parents=True, exist_ok=True)
        results = exits.enter_context((arguments.results / f"part-{arguments.part}").open("w"))
        baselines: dict[str, forked_jobs.Outcome] = {}
        cases = list(_cases(good, arguments))
        for number, (target, name, mutation) in enumerate(cases):
            if number % arguments.processes != arguments.part:
                continue
            for job in _jobs(target, arguments.jobs):
                if job not in baselines:
                    _restore(good, work)
                    baselines[job] = _run(job, work)
                    assert baselines[job].exit_code in (0, 66), (job, baselines[job])
                _restore(good, work)
                change = functools.partial(_change, work / target.path, target, mutation)
                outcome = _run(job, work, change)
                result = _result(number, target, name, job, outcome, baselines[job])
                print(json.dumps(result), file=results, flush=True)
            if number % 50 == arguments.part:
                print(f"{number} of {len(cases)}", file=sys.stderr, flush=True)


def _cases(good: Path, arguments: argparse.Namespace) -> Iterator[tuple[Target, str, Mutation]]:
    source = random.Random(arguments.seed)
    targets = [each for each in all_targets() if arguments.only in each.path]
    share = -(-arguments.files // len(targets))
    found: list[tuple[Target, str, Mutation]] = []
    pools = []
    for target in targets:
        path = good / target.path
        others = [good / each.path for each in source.sample(all_targets(), 3)]
        pool = list(special_mutations(others))
        more = list(json_mutations(path, target.seal_values)) if target.is_json else []
        source.shuffle(more)
        pool += more[: share * 4]
        pool += byte_mutations(path, source, share if not more else share // 4)
        pools.append((target, pool))
    # Formats with many fields take the places that others leave.
    index = 0
    while len(found) < arguments.files and any(index < len(pool) for _, pool in pools):
        found += [(target, *pool[index]) for target, pool in pools if index < len(pool)]
        index += 1
    found = found[: arguments.files]
    # So that a run that is ended early has measured some of everything.
    source.shuffle(found)
    yield from found


def _jobs(target: Target, names: list[str] | None) -> list[str]:
    return [job for job in target.jobs if names is None or job.partition(" ")[0] in names]


def _restore(good: Path, work: Path) -> None:
    shutil.rmtree(work)
    shutil.copytree(good, work, symlinks=True)


def _change(path: Path, target: Target, mutation: Mutation) -> None:
    mutation(path)
    if path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 30:
        target.seal(path)


def _run(job: str, folder: Path, before: Callable[[], None] = lambda: None) -> forked_jobs.Outcome:
    return forked_jobs.run_job(job.replace("{}", str(folder)).split(), folder.parent, before)


def _result(
    number: int,
    target: Target,
    name: str,
    job: str,
    outcome: forked_jobs.Outcome,
    good: forked_jobs.Outcome,
) -> dict:
    seconds = outcome.cpu_seconds - good.cpu_seconds
    more_bytes = outcome.most_bytes - good.most_bytes
    _, _, said = outcome.stderr.rpartition("txl: ")
    code = outcome.exit_code
    problem = ""
    if outcome.timed_out:
        problem = "hang"
    elif "Traceback" in outcome.stderr or code == 99 or (code == 70 and _NON_FINITE not in said):
        problem = "traceback"
    elif code < 0:
        problem = f"signal {-code}"
    elif seconds > _MOST_SECONDS:
        problem = "slow"
    elif more_bytes > _MOST_BYTES:
        problem = "memory"
    elif code not in (0, 70, *target.codes):
        problem = f"exit code {code}"
    elif code and ("txl: " not in outcome.stderr or len(said.strip().splitlines()) > 3):
        problem = "lines"
    return {
        "number": number,
        "path": target.path,
        "name": name,
        "job": job.partition(" ")[0],
        "code": code,
        "problem": problem,
        "seconds": seconds,
        "bytes": more_bytes,
        "said": said.strip()[-400:] if problem else "",
    }


if __name__ == "__main__":
    main()
