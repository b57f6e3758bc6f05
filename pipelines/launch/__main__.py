"""Lets `python -m pipelines.launch` be `txl launch`, as with every job."""

import sys

from ..command_line import run_job

if __name__ == "__main__":
    sys.exit(run_job("launch"))
